#include "mlx5/listener_groups.h"

#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/private_fds.h"
#include "base/real.h"

namespace accel::mlx5 {
namespace {

/// Between another's bind() and its listen() the name is taken and answers nobody: two system calls, so it is
/// asked again at once.
constexpr int kKnocks = 1000;
/// At once; what is left stays an event of event_fd().
constexpr int kMostEvents = 256;
constexpr int kBacklog = 4096;
/// A coordinator that ends may leave one connection unheard. Who is refused again and again (root does not
/// share with others) asks after a second, then after twice as long each time.
constexpr unsigned kUnheardAtOnce = 3, kMostDoublings = 6;

struct Name {
  sockaddr_un address{};
  socklen_t length = 0;
};

Name name_of(int scope, const FlowKey& local) {
  Name name;
  name.address.sun_family = AF_UNIX;
  char* const text = name.address.sun_path + 1;
  const size_t room = sizeof(name.address.sun_path) - 1;
  int n = snprintf(text, room, "accel-mlx5-%d-%u-", scope, local.local.port);
  for (const uint8_t b : local.local.address.bytes)
    n += snprintf(text + n, room - static_cast<size_t>(n), "%02x", b);
  if (local.protocol == Protocol::kUdp) n += snprintf(text + n, room - static_cast<size_t>(n), "-udp");
  if (local.vlan != 0) n += snprintf(text + n, room - static_cast<size_t>(n), "-%u", local.vlan);
  name.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(n));
  return name;
}

int make_socket() {
  return keep_private(real.socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

/// The process at the other end; 0: another namespace's. False: it is not one that may share with us.
bool peer_of(int fd, pid_t& pid) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (real.getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  pid = peer.pid;
  return peer.uid == geteuid() || peer.uid == 0;
}

int open_process(pid_t pid) {
  if (pid <= 0) return -1;
  return keep_private(static_cast<int>(real.syscall(SYS_pidfd_open, pid, 0)));
}

/// One message; 0: there is none now, -1: the connection has ended.
ssize_t hear(int fd, void* message, size_t size) {
  const ssize_t n = real.recv(fd, message, size, MSG_DONTWAIT);
  if (n < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
  return n == 0 ? -1 : n;
}

bool say(int fd, const void* message, size_t size) {
  return real.send(fd, message, size, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

}  // namespace

ListenerGroups::ListenerGroups(int scope, bool (*user_changes)())
    : scope_(scope), user_changes_(user_changes), events_(keep_private(real.epoll_create1(EPOLL_CLOEXEC))) {}

ListenerGroups::~ListenerGroups() { abandon(); }

/// The set of events is a forked child's parent's as well: nothing is taken out of it here.
void ListenerGroups::abandon() {
  if (events_ >= 0) close_private(events_);
  events_ = -1;
  for (Group& group : groups_) close_all(group);
  groups_.clear();
}

/// Adds it to what serve() looks at; -1 stays -1.
int ListenerGroups::watch(int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (fd < 0 || real.epoll_ctl(events_, EPOLL_CTL_ADD, fd, &event) == 0) return fd;
  close_private(fd);
  return -1;
}

/// Closing alone leaves it among the events while a forked child has it open.
void ListenerGroups::drop(int& fd) {
  if (fd < 0) return;
  epoll_event none{};
  if (events_ >= 0) real.epoll_ctl(events_, EPOLL_CTL_DEL, fd, &none);
  close_private(fd);
  fd = -1;
}

void ListenerGroups::close_all(Group& group) {
  drop(group.name_socket);
  drop(group.coordinator);
  drop(group.pause);
  while (!group.members.empty()) forget(group, group.members.begin());
}

ListenerGroups::Group* ListenerGroups::find(const FlowKey& local) {
  const auto at =
      std::find_if(groups_.begin(), groups_.end(), [&](const Group& g) { return g.local == local; });
  return at == groups_.end() ? nullptr : &*at;
}

// --- coming and going ---

bool ListenerGroups::join(const FlowKey& local) {
  Group& group = groups_.emplace_back();
  group.local = local;
  enter(group);
  if (group.coordinator >= 0) return false;
  // A worker that is root for a moment more: the others, which are not, are its like behind setuid().
  if (group.name_socket < 0 && errno == EPERM && user_changes_ != nullptr && user_changes_()) {
    begin_pause(group);
    return false;
  }
  // Where there can be no group, what the device says to our rule decides.
  group.held = kAllShares;
  return true;
}

void ListenerGroups::user_changed() {
  for (Group& group : groups_)
    if (group.pause >= 0) end_pause(group);
}

void ListenerGroups::set_listening(const FlowKey& local, bool listening) {
  Group* group = find(local);
  if (!group || group->listening == listening) return;
  group->listening = listening;
  group->coordinator >= 0 ? report(*group) : share_out(*group);
}

void ListenerGroups::leave(const FlowKey& local) {
  Group* group = find(local);
  if (!group) return;
  group->held = 0;
  group->listening = false;
  if (group->coordinator >= 0) report(*group);
  // The one who comes after us must not wait for our end.
  for (const Member& member : group->members) tell(*group, member, member.held);
  close_all(*group);
  groups_.remove_if([&](const Group& g) { return &g == group; });
}

/// Becomes the coordinator, or comes to the one there is.
void ListenerGroups::enter(Group& group) {
  for (int i = 0; i < kKnocks; ++i) {
    if (open_name_socket(group) || connect_to_coordinator(group)) return;
    if (errno != ECONNREFUSED) return;
    sched_yield();
  }
}

bool ListenerGroups::open_name_socket(Group& group) {
  int fd = make_socket();
  const Name name = name_of(scope_, group.local);
  if (fd < 0) return false;
  if (real.bind(fd, reinterpret_cast<const sockaddr*>(&name.address), name.length) != 0 ||
      real.listen(fd, kBacklog) != 0) {
    drop(fd);
    return false;
  }
  group.name_socket = watch(fd);
  for (const Share& other : group.others) expect(group, other);
  group.others.clear();
  return group.name_socket >= 0;
}

bool ListenerGroups::connect_to_coordinator(Group& group) {
  int fd = make_socket();
  const Name name = name_of(scope_, group.local);
  if (fd < 0) return false;
  if (real.connect(fd, reinterpret_cast<const sockaddr*>(&name.address), name.length) != 0) {
    const int error = errno;
    drop(fd);
    errno = error;
    return false;
  }
  if (pid_t pid; !peer_of(fd, pid)) {
    drop(fd);
    errno = EPERM;
    return false;
  }
  group.coordinator = watch(fd);
  if (group.coordinator >= 0) report(group);
  return group.coordinator >= 0;
}

/// After the coordinator's end, or its refusal. Where nobody can be asked what is held stays: the other may
/// have a rule for all, and ours for a share would go before it.
void ListenerGroups::enter_again(Group& group) {
  enter(group);
  if (group.name_socket >= 0) share_out(group);
  if (group.name_socket < 0 && group.coordinator < 0) begin_pause(group);
}

void ListenerGroups::begin_pause(Group& group) {
  const unsigned doublings = std::min(group.pauses++, kMostDoublings);
  const itimerspec after{{}, {time_t{1} << doublings, 0}};
  const int timer = keep_private(real.timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (timer >= 0) timerfd_settime(timer, 0, &after, nullptr);
  group.pause = watch(timer);
}

void ListenerGroups::end_pause(Group& group) {
  drop(group.pause);
  enter_again(group);
}

void ListenerGroups::report(Group& group) {
  Report message{};
  message.held = group.held;
  message.listening = group.listening;
  (void)say(group.coordinator, &message, sizeof(message));  // its end is an event of its own
}

void ListenerGroups::hear_coordinator(Group& group) {
  Orders orders{}, heard{};
  ssize_t n;
  bool any = false;
  while ((n = hear(group.coordinator, &heard, sizeof(heard))) > 0) {
    if (static_cast<size_t>(n) != sizeof(heard) || heard.count > kShareCount) continue;
    orders = heard;
    any = true;
  }
  if (any) {
    group.unheard = group.pauses = 0;
    group.others.assign(orders.others, orders.others + orders.count);
    const Shares held = holder_->hold(group.local, orders.wanted);
    if (held != std::exchange(group.held, held)) report(group);
  }
  if (n >= 0) return;
  drop(group.coordinator);
  if (any || ++group.unheard < kUnheardAtOnce)
    enter_again(group);
  else
    begin_pause(group);
}

// --- coordinating ---

void ListenerGroups::admit(Group& group) {
  for (;;) {
    int fd = keep_private(real.accept4(group.name_socket, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd < 0) return;
    pid_t pid = 0;
    if (!peer_of(fd, pid)) {
      drop(fd);
      continue;
    }
    // One that was expected, or that came before and ran another program since.
    const auto known = std::find_if(group.members.begin(), group.members.end(),
                                    [&](const Member& m) { return m.fd < 0 && m.pid == pid && pid != 0; });
    Member& member = known != group.members.end() ? *known : group.members.emplace_back();
    member.pid = pid;
    if (member.process < 0) member.process = watch(open_process(pid));
    member.fd = watch(fd);
  }
}

/// A member of the former coordinator's: its shares are its own until it comes, or has ended.
void ListenerGroups::expect(Group& group, const Share& other) {
  if (other.pid == getpid() || other.held == 0) return;
  const int process = watch(open_process(other.pid));
  if (process < 0) return;
  Member& member = group.members.emplace_back();
  member.process = process;
  member.pid = other.pid;
  member.held = other.held;
}

void ListenerGroups::hear_member(Group& group, Member& member) {
  Report heard{};
  ssize_t n;
  while ((n = hear(member.fd, &heard, sizeof(heard))) > 0) {
    if (static_cast<size_t>(n) != sizeof(heard)) continue;
    member.held = heard.held;
    member.state = heard.listening ? Member::kListening : Member::kLeaving;
  }
  if (n < 0) {
    drop(member.fd);
    member.state = Member::kUnheard;
    // With its shares it is waited for, where that can be.
    if (member.held == 0 || member.process < 0)
      forget(group, std::find_if(group.members.begin(), group.members.end(),
                                 [&](const Member& m) { return &m == &member; }));
  }
  share_out(group);
}

void ListenerGroups::forget(Group& group, std::list<Member>::iterator member) {
  drop(member->fd);
  drop(member->process);
  group.members.erase(member);
}

/// Who should have what, after any change: gives up what is another's, and tells the others.
void ListenerGroups::share_out(Group& group) {
  if (group.name_socket < 0 || (group.members.empty() && group.held == kAllShares)) return;
  std::vector<ShareHolder> all;
  std::vector<Shares> wanted;
  bool again = true;
  for (int turn = 0; again && turn < 3; ++turn) {
    all.assign(1, {group.held, group.listening, group.listening});
    for (const Member& m : group.members)
      all.push_back({m.held, m.state == Member::kListening, m.state != Member::kLeaving});
    wanted = divide(all);
    const Shares held = holder_->hold(group.local, wanted[0]);
    again = held != std::exchange(group.held, held);
  }
  size_t i = 1;
  for (const Member& member : group.members) tell(group, member, wanted[i++]);
}

/// One that does not read must not wait for what was not said: its connection ends, and it comes anew.
void ListenerGroups::tell(const Group& group, const Member& member, Shares wanted) {
  if (member.fd < 0 || member.state == Member::kUnheard) return;
  Orders orders{};
  orders.wanted = wanted;
  auto add = [&](pid_t pid, Shares held) {
    if (held != 0 && orders.count < kShareCount) orders.others[orders.count++] = {pid, held};
  };
  add(getpid(), group.held);
  for (const Member& other : group.members)
    if (&other != &member) add(other.pid, other.held);
  if (!say(member.fd, &orders, sizeof(orders))) (void)real.shutdown(member.fd, SHUT_RDWR);
}

// --- events ---

void ListenerGroups::serve() {
  if (groups_.empty()) return;
  // One at a time: what an event has closed must not be taken for the next one's, opened with its number.
  epoll_event event;
  for (int i = 0; i < kMostEvents && real.epoll_wait(events_, &event, 1, 0) == 1; ++i)
    on_event(event.data.fd);
}

void ListenerGroups::on_event(int fd) {
  for (Group& group : groups_) {
    if (fd == group.name_socket) return admit(group);
    if (fd == group.coordinator) return hear_coordinator(group);
    if (fd == group.pause) return end_pause(group);
    for (auto m = group.members.begin(); m != group.members.end(); ++m) {
      if (fd == m->fd) return hear_member(group, *m);
      if (fd != m->process) continue;
      forget(group, m);
      return share_out(group);
    }
  }
}

}  // namespace accel::mlx5
