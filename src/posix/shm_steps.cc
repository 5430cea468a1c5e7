// The meeting of a connection's two ends, step by step (docs/design/same_host.md). No step waits.
#include <errno.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>

#include "base/config.h"
#include "base/memory_room.h"
#include "base/private_fds.h"
#include "base/real.h"
#include "engine/stats.h"
#include "posix/calls.h"
#include "posix/epoll_set.h"
#include "posix/kernel_events.h"
#include "posix/own_thread.h"
#include "posix/received_descriptors.h"
#include "posix/request_thread.h"
#include "posix/same_host.h"
#include "posix/shm_socket.h"
#include "posix/unix_rendezvous.h"

namespace accel::posix {
namespace {

/// The other end makes about as many calls as this one.
constexpr Duration kMeetsWithin = 2s;
constexpr Duration kTriesAgain = 1ms;
/// At the name others may ask as well.
constexpr int kMostStrangers = 16;

void count(Counter c) { Engine::get()->counters().add(c); }

size_t ring_size() { return std::bit_ceil(size_t{config().settings.same_host_ring}); }

/// Descriptors are the program's, and it shall not miss the second one that each connection has.
constexpr rlim_t kPartOfDescriptors = 4;
/// Rings may take this part of what the memory cgroup leaves as the first one is made.
constexpr uint64_t kRoomPart = 8;
/// The other end may have a larger setting.
constexpr size_t kMostOfOthers = size_t{1} << 20;

bool has_room(const shm::Poller& poller) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || poller.links() >= limit.rlim_cur / kPartOfDescriptors)
    return false;
  static const uint64_t most =
      std::min<uint64_t>(config().settings.same_host_memory, memory_room() / kRoomPart);
  return (poller.links() + 1) * 2 * ring_size() <= most;
}

void dispose_of(const std::vector<int>& descriptors) {
  for (const int fd : descriptors) close_received(fd);
  request_thread_look_again();
}

}  // namespace

void ShmSocket::begin(Pass& pass) {
  shm::Poller& poller = *pass.engine().links();
  stats::forget_kernel(shadow());
  prepare_kernel_events();
  const PathChoice judged = pass.engine().judge_on_host(pass, names_.local, names_.remote);
  if (judged.reason != Reason::accelerated) return give_up(judged.reason);
  if (!has_room(poller) || !poller.watch_tcp(link_)) return give_up(Reason::resources);
  poller.set_deadline(link_, pass.now() + kMeetsWithin);
  pass.engine().touch();
  meet();
}

void ShmSocket::follow_filters(Pass& pass) {
  if (stage_ == Stage::kKernel) return;
  const PathChoice now = pass.engine().judge_on_host(pass, names_.local, names_.remote);
  if (now.reason != Reason::accelerated) (void)to_kernel(now.reason);
}

void ShmSocket::set_bell(int fd) {
  link_.bell = keep_private(fd);
  (void)Engine::get()->links()->watch_bell(link_);
}

void ShmSocket::drop_bell() {
  if (link_.bell < 0) return;
  Engine::get()->links()->forget_bell(link_);
  close_private(std::exchange(link_.bell, -1));
}

/// Whoever comes first has the name, the other one goes to it.
void ShmSocket::meet() {
  if (stage_ != Stage::kAlone || candidates.calls_under_way(shadow())) return;
  const std::string name = meeting_name(names_);
  if (const int fd = connect_by_name(name); fd >= 0) {
    set_bell(fd);
    // Only who has the connection's other end may have a descriptor of this one.
    const int own = shadow();
    if (!is_of_peers_user(link_.bell, names_) || !send_descriptors(link_.bell, {&own, 1}))
      return (void)refuse();
    stage_ = Stage::kJoined;
  } else if (const int listener = listen_by_name(name); listener >= 0) {
    set_bell(listener);
    stage_ = Stage::kListens;
  }
}

/// True: another step may follow at once.
bool ShmSocket::see_to_meeting() {
  switch (stage_) {
    case Stage::kAlone:
      meet();
      return false;
    case Stage::kListens:
      return hear();
    case Stage::kAccepted:
      return offer();
    case Stage::kJoined:
      return take_offer();
    case Stage::kOffered: {
      char word;
      const ssize_t n = real.recv(link_.bell, &word, 1, MSG_DONTWAIT);
      if (n == 1) return open_rings();
      return n == 0 ? refuse() : false;
    }
    default:
      return false;
  }
}

bool ShmSocket::hear() {
  for (int i = 0; i < kMostStrangers; ++i) {
    const int fd = real.accept4(link_.bell, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return errno == EAGAIN ? false : refuse();
    if (!is_of_peers_user(fd, names_)) {
      count(Counter::shm_refused);
      real.close(fd);
      continue;
    }
    drop_bell();
    set_bell(fd);
    stage_ = Stage::kAccepted;
    return true;
  }
  return false;
}

bool ShmSocket::offer() {
  if (!message_arrived(link_.bell)) return false;
  const std::vector<int> came = receive_descriptors(link_.bell);
  const bool proven = came.size() == 1 && is_other_end(came[0], shadow(), names_);
  dispose_of(came);
  const std::optional<StreamCounts> counts = proven ? stream_counts(shadow()) : std::nullopt;
  if (!counts) return refuse();
  auto rings = std::make_unique<shm::Link::Rings>(0, counts->read);
  const Result<int> memory = rings->mapping.make(ring_size());
  if (!memory) return refuse();
  for (size_t i = 0; i < 2; ++i) rings->mapping.direction(i).reader_asleep = 1;
  rings->open();
  link_.rings = std::move(rings);
  const int fds_to_send[] = {shadow(), *memory};
  const bool sent = send_descriptors(link_.bell, fds_to_send);
  real.close(*memory);
  if (!sent) return refuse();
  stage_ = Stage::kOffered;
  return true;
}

bool ShmSocket::take_offer() {
  if (!message_arrived(link_.bell)) return false;
  const std::vector<int> came = receive_descriptors(link_.bell);
  const bool proven = came.size() == 2 && is_other_end(came[0], shadow(), names_);
  const std::optional<StreamCounts> counts = proven ? stream_counts(shadow()) : std::nullopt;
  bool fit = false;
  if (counts) {
    auto rings = std::make_unique<shm::Link::Rings>(1, counts->read);
    fit = rings->mapping.take(came[1], kMostOfOthers).ok();
    if (fit) rings->open();
    if (fit) link_.rings = std::move(rings);
  }
  dispose_of(came);
  if (!fit || real.send(link_.bell, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) != 1) return refuse();
  return open_rings();
}

/// From here on what is sent is in the ring. What the kernel has been given before is counted.
bool ShmSocket::open_rings() {
  Engine& engine = *Engine::get();
  engine.links()->set_deadline(link_, kNever);
  engine.links()->heat(link_);
  stage_ = Stage::kOpen;
  choice = {PathKind::kShm, Reason::same_host, {}};
  set_buffers();
  if (const auto counts = stream_counts(shadow())) (void)link_.rings->sender->begin(counts->sent);
  count(Counter::shm_opened);
  ring();
  look();
  return false;
}

bool ShmSocket::refuse() {
  count(Counter::shm_refused);
  give_up(Reason::same_host_refused);
  return false;
}

/// Before the rings are open. The file may be gone afterwards, for all but its caller's reference.
void ShmSocket::give_up(Reason reason) {
  if (may_give_up()) leave_table(reason);
}

/// False: the other end has begun and ended, and its bytes are here alone. They are given out as from open
/// rings.
bool ShmSocket::may_give_up() {
  if (!link_.rings || link_.rings->receiver->decline()) return true;
  Engine::get()->links()->set_deadline(link_, kNever);
  stage_ = Stage::kOpen;
  choice = {PathKind::kShm, Reason::same_host, {}};
  return false;
}

void ShmSocket::leave_table(Reason reason) {
  Engine* engine = Engine::get();
  const bool alone = fds.find(number_) == this && descriptors == 1;
  if (fds.find(number_) == this) candidates.forget(number_);
  end_link();
  stage_ = Stage::kKernel;
  choice = {PathKind::kKernel, reason, {}};
  stats::note_kernel(shadow(), reason);
  engine->touch();
  ++readiness_epoch;
  // What went with a fork, or could not be met, may come again.
  const bool passing =
      reason == Reason::inherited || reason == Reason::same_host_left || reason == Reason::same_host_unmet;
  if (alone && passing) stay_candidate();
  fds.forget(this);
}

/// In the real set it is by the program's own data again, once it has left the table. Of a program with
/// threads one may be in a call that goes on in the kernel now: it is not among those that are counted, and
/// would never hear of the ring.
void ShmSocket::stay_candidate() {
  if (retired() || sockets_stay() || never_waits() || !alone_but_for_own_threads()) return;
  EpollItem* const item = watches;
  if (item != nullptr && (item->next_of_file != nullptr || item->fd != number_ || !item->armed)) return;
  candidates.again(number_);
  if (item == nullptr) return candidates.note_membership(-1, EPOLL_CTL_DEL, number_, {});
  epoll_event event{};
  event.events = item->events;
  event.data = item->data;
  candidates.note_membership(item->set->kernel_fd(), EPOLL_CTL_ADD, number_, event);
}

Result<void> ShmSocket::detach(Pass&, Reason reason) { return to_kernel(reason); }

}  // namespace accel::posix
