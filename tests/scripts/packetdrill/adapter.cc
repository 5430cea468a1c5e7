// The pure core for packetdrill (--so_filename), in virtual time: README.md, "packetdrill itself".
//
// packetdrill has two threads: one plays the script, and one makes the calls that sleep. Time passes in the
// calls of the first one only (usleep(), gettimeofday(), netdev_receive()), and stands still from the end of
// a sleeping call until its thread asks for the time.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>

#include "../world.h"
#include "interface.h"

namespace accel::scripts {
namespace {

using Kind = Operation::Kind;
using Held = std::unique_lock<std::mutex>;

constexpr Duration kEpoch = std::chrono::hours(24 * 365 * 30);  ///< what gettimeofday() says at first
constexpr Duration kTick =
    10us;  ///< packetdrill's wait for a moment is to look at the clock until it is there
constexpr Duration kPatience = 60s;  ///< for a packet that is to leave
constexpr auto kReturns =
    std::chrono::seconds(1);  ///< real time: a thread whose call is over has asked by then

int failed(int error) {
  errno = error;
  return -1;
}

IpAddress address_of(const char* text) {
  in_addr v4{};
  in6_addr v6{};
  if (inet_pton(AF_INET, text, &v4) == 1) return IpAddress::from_v4_bytes(&v4);
  if (inet_pton(AF_INET6, text, &v6) == 1) return IpAddress::from_v6_bytes(&v6);
  return {};
}

/// False: of another family than the two.
bool read_address(const sockaddr* raw, socklen_t length, Endpoint& out) {
  if (raw && length >= sizeof(sockaddr_in) && raw->sa_family == AF_INET) {
    const auto& in = *reinterpret_cast<const sockaddr_in*>(raw);
    out = {IpAddress::from_v4_bytes(&in.sin_addr), ntohs(in.sin_port)};
    return true;
  }
  if (raw && length >= sizeof(sockaddr_in6) && raw->sa_family == AF_INET6) {
    const auto& in = *reinterpret_cast<const sockaddr_in6*>(raw);
    out = {IpAddress::from_v6_bytes(&in.sin6_addr), ntohs(in.sin6_port)};
    return true;
  }
  return false;
}

/// As accept() gives it.
void write_address(const Endpoint& from, int family, sockaddr* raw, socklen_t* length) {
  if (!raw || !length) return;
  sockaddr_storage out{};
  socklen_t size = sizeof(sockaddr_in);
  if (family == AF_INET) {
    auto& in = reinterpret_cast<sockaddr_in&>(out);
    in.sin_family = AF_INET;
    in.sin_port = htons(from.port);
    std::memcpy(&in.sin_addr, from.address.v4_bytes(), 4);
  } else {
    auto& in = reinterpret_cast<sockaddr_in6&>(out);
    in.sin6_family = AF_INET6;
    in.sin6_port = htons(from.port);
    std::memcpy(&in.sin6_addr, from.address.bytes.data(), 16);
    size = sizeof in;
  }
  std::memcpy(raw, &out, std::min(*length, size));
  *length = size;
}

class Adapter {
 public:
  explicit Adapter(const std::string& flags);

  int socket(int domain, int type, int protocol);
  int bind(int fd, const sockaddr* to, socklen_t length);
  int accept(int fd, sockaddr* from, socklen_t* length);
  int connect(int fd, const sockaddr* to, socklen_t length);
  ssize_t read(int fd, std::span<const iovec> into, int flags);
  ssize_t write(int fd, std::span<const iovec> from, int flags);
  int set_flags(int fd, int flags);
  int flags(int fd);
  int close(int fd);
  int get_option(int fd, int level, int name, void* value, socklen_t* length);
  int set_option(int fd, int level, int name, const void* value, socklen_t length);
  int poll(std::span<pollfd> fds, int timeout_ms);
  /// A call of numbers only.
  int call(Kind kind, int fd, int64_t number, int64_t* out = nullptr);

  int epoll_create();
  int epoll_control(int epoll, int operation, int fd, const epoll_event* event);
  int epoll_wait(int epoll, std::span<epoll_event> events, int timeout_ms);

  int inject(std::span<const uint8_t> packet);
  int receive(void* packet, size_t* size, long long* us);
  void sleep(Duration time);
  timeval time();

 private:
  struct File {
    int family = AF_INET;
    bool nonblocking = false;
    std::map<int, epoll_event> interest;  ///< of an epoll set
    bool epoll = false;
  };
  struct Waiting {
    std::vector<std::shared_ptr<Pending>> calls;  ///< one of them has to return
    std::thread::id thread;
    bool over() const {
      return std::any_of(calls.begin(), calls.end(), [](const auto& c) { return c->answer.has_value(); });
    }
  };

  void set_flag(const std::string& name, const std::string& value);
  /// The calling thread is here: it owes nothing.
  Held enter();
  /// Gives the lock up until one of the operations has returned.
  void wait(Held& held, std::vector<std::shared_ptr<Pending>> calls);
  Answer perform(Held& held, Operation operation);
  int64_t result(const Answer& a) { return a.value < 0 ? failed(a.error) : a.value; }
  void advance(Held& held, Duration until);
  void tell_others(Held& held);
  Operation operation(Kind kind, int fd) const {
    Operation op;
    op.kind = kind;
    op.fd = fd;
    return op;
  }
  int tell_info(int fd, void* value, socklen_t* length);

  std::mutex lock_;
  std::condition_variable changed_;
  std::unique_ptr<World> world_;
  std::map<int, File> files_;
  std::vector<Waiting*> waiting_;
  std::set<std::thread::id> owing_;  ///< threads whose calls have returned, and that have not come again
  uint32_t mtu_ = 1500;
  int next_epoll_ = 10000;
};

// ---------------------------------------------------------------- flags, threads, time

Adapter::Adapter(const std::string& flags) {
  Addresses ends{address_of("192.168.0.2"), address_of("192.0.2.1")};
  std::vector<std::pair<std::string, std::string>> rest;
  std::stringstream in(flags);
  for (std::string flag; std::getline(in, flag, ',');) {
    const size_t equals = flag.find('=');
    const std::string name = flag.substr(0, equals),
                      value = equals == std::string::npos ? "" : flag.substr(equals + 1);
    if (name == "local")
      ends.own = address_of(value.c_str());
    else if (name == "mtu")
      std::from_chars(value.data(), value.data() + value.size(), mtu_);
    else if (!flag.empty())
      rest.emplace_back(name, value);
  }
  world_ = make_core_world(ends, mtu_);
  for (const auto& [name, value] : rest)
    if (!world_->set_sysctl(name, value)) std::fprintf(stderr, "so_flags: unknown: %s\n", name.c_str());
}

Held Adapter::enter() {
  Held held(lock_);
  if (owing_.erase(std::this_thread::get_id()) != 0) changed_.notify_all();
  return held;
}

/// Wakes those whose calls have returned, and waits until they have asked for the time.
void Adapter::tell_others(Held& held) {
  for (Waiting* w : waiting_)
    if (w->over()) owing_.insert(w->thread);
  if (owing_.empty()) return;
  changed_.notify_all();
  changed_.wait_for(held, kReturns, [&] { return owing_.empty(); });
  owing_.clear();
}

void Adapter::wait(Held& held, std::vector<std::shared_ptr<Pending>> calls) {
  Waiting here{std::move(calls), std::this_thread::get_id()};
  if (here.over()) return;
  waiting_.push_back(&here);
  changed_.wait(held, [&] { return here.over(); });
  std::erase(waiting_, &here);
}

Answer Adapter::perform(Held& held, Operation operation) {
  const auto pending = world_->start(std::move(operation));
  tell_others(held);  // it may be what another call waits for
  wait(held, {pending});
  return *pending->answer;
}

/// One step: to `until`, or to what happens before.
void Adapter::advance(Held& held, Duration until) {
  world_->run(until);
  tell_others(held);
}

void Adapter::sleep(Duration time) {
  Held held = enter();
  const Duration end = world_->now() + time;
  while (world_->now() < end) advance(held, end);
}

timeval Adapter::time() {
  Held held = enter();
  const Duration end = world_->now() + kTick;
  while (world_->now() < end) advance(held, end);
  const auto us = (kEpoch + world_->now()) / 1us;
  return {us / 1'000'000, us % 1'000'000};
}

int Adapter::inject(std::span<const uint8_t> packet) {
  Held held = enter();
  if (packet.empty() || packet.size() > mtu_) return failed(EMSGSIZE);
  world_->inject(Bytes(packet.begin(), packet.end()));
  tell_others(held);
  return 0;
}

int Adapter::receive(void* packet, size_t* size, long long* us) {
  Held held = enter();
  const Duration end = world_->now() + kPatience;
  while (world_->sent.empty() && world_->now() < end) advance(held, end);
  if (world_->sent.empty()) {
    *size = 0;
    *us = (kEpoch + world_->now()) / 1us;
    return 0;
  }
  const Segment s = std::move(world_->sent.front());
  world_->sent.pop_front();
  if (s.packet.size() > *size) return failed(EMSGSIZE);
  std::memcpy(packet, s.packet.data(), s.packet.size());
  *size = s.packet.size();
  *us = (kEpoch + s.at) / 1us;
  return 0;
}

// ---------------------------------------------------------------- system calls

int Adapter::socket(int domain, int type, int protocol) {
  Held held = enter();
  if (domain != AF_INET && domain != AF_INET6) return failed(EAFNOSUPPORT);
  if ((type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) != SOCK_STREAM || (protocol != 0 && protocol != IPPROTO_TCP))
    return failed(EPROTONOSUPPORT);
  Operation op = operation(Kind::kSocket, -1);
  op.flags = static_cast<uint32_t>(type & SOCK_NONBLOCK);
  const auto fd = static_cast<int>(result(perform(held, op)));
  if (fd >= 0) files_[fd] = {domain, op.flags != 0, {}, false};
  return fd;
}

int Adapter::bind(int fd, const sockaddr* to, socklen_t length) {
  Held held = enter();
  Endpoint end;
  if (!read_address(to, length, end)) return failed(EAFNOSUPPORT);
  if (!end.address.is_any()) world_->addresses.own = end.address;
  Operation op = operation(Kind::kBind, fd);
  op.number = end.port;
  return static_cast<int>(result(perform(held, op)));
}

int Adapter::accept(int fd, sockaddr* from, socklen_t* length) {
  Held held = enter();
  const Answer a = perform(held, operation(Kind::kAccept, fd));
  if (a.value < 0) return failed(a.error);
  const auto accepted = static_cast<int>(a.value);
  const int family = files_[fd].family;
  files_[accepted] = {family, false, {}, false};
  write_address(a.peer, family, from, length);
  return accepted;
}

int Adapter::connect(int fd, const sockaddr* to, socklen_t length) {
  Held held = enter();
  Endpoint end;
  if (!read_address(to, length, end)) return failed(EAFNOSUPPORT);
  Addresses& ends = world_->addresses;
  ends.peer = end.address;
  if (ends.own.is_v4() != ends.peer.is_v4())
    ends.own = address_of(ends.peer.is_v4() ? "192.168.0.2" : "fd3d:fa7b:d17d::2");
  Operation op = operation(Kind::kConnect, fd);
  op.number = end.port;
  return static_cast<int>(result(perform(held, op)));
}

ssize_t Adapter::read(int fd, std::span<const iovec> into, int flags) {
  Held held = enter();
  Operation op = operation(Kind::kRead, fd);
  op.flags = static_cast<uint32_t>(flags);
  for (const iovec& v : into) op.size += v.iov_len;
  const Answer a = perform(held, op);
  size_t at = 0;
  for (const iovec& v : into) {
    const size_t n = std::min(v.iov_len, a.read.size() - at);
    std::copy_n(a.read.data() + at, n, static_cast<uint8_t*>(v.iov_base));
    at += n;
  }
  return result(a);
}

ssize_t Adapter::write(int fd, std::span<const iovec> from, int flags) {
  Held held = enter();
  Operation op = operation(Kind::kWrite, fd);
  op.flags = static_cast<uint32_t>(flags);
  for (const iovec& v : from) {
    const auto* bytes = static_cast<const uint8_t*>(v.iov_base);
    op.bytes.insert(op.bytes.end(), bytes, bytes + v.iov_len);
  }
  return result(perform(held, op));
}

int Adapter::call(Kind kind, int fd, int64_t number, int64_t* out) {
  Held held = enter();
  Operation op = operation(kind, fd);
  op.number = number;
  const Answer a = perform(held, op);
  if (out) *out = a.out;
  return static_cast<int>(result(a));
}

int Adapter::close(int fd) {
  const int r = call(Kind::kClose, fd, 0);
  Held held = enter();
  const auto file = files_.find(fd);
  if (file == files_.end()) return failed(EBADF);
  const bool epoll = file->second.epoll;
  files_.erase(file);
  return epoll ? 0 : r;
}

int Adapter::set_flags(int fd, int flags) {
  const int r = call(Kind::kNonblocking, fd, flags & O_NONBLOCK);
  Held held = enter();
  if (r == 0) files_[fd].nonblocking = (flags & O_NONBLOCK) != 0;
  return r;
}

int Adapter::flags(int fd) {
  Held held = enter();
  const auto file = files_.find(fd);
  return file == files_.end() ? failed(EBADF) : O_RDWR | (file->second.nonblocking ? O_NONBLOCK : 0);
}

// ---------------------------------------------------------------- options

int Adapter::tell_info(int fd, void* value, socklen_t* length) {
  tcp_info i{};
  bool known = true;
  auto field = [&](const char* name) {
    const auto v = world_->info(fd, name);
    known = known && v.has_value();
    return v.value_or(0);
  };
#define FIELD(name) i.name = static_cast<decltype(i.name)>(field(#name))
  FIELD(tcpi_state);
  FIELD(tcpi_ca_state);
  FIELD(tcpi_retransmits);
  FIELD(tcpi_probes);
  FIELD(tcpi_backoff);
  FIELD(tcpi_options);
  FIELD(tcpi_rto);
  FIELD(tcpi_ato);
  FIELD(tcpi_snd_mss);
  FIELD(tcpi_rcv_mss);
  FIELD(tcpi_unacked);
  FIELD(tcpi_sacked);
  FIELD(tcpi_lost);
  FIELD(tcpi_retrans);
  FIELD(tcpi_pmtu);
  FIELD(tcpi_rtt);
  FIELD(tcpi_rttvar);
  FIELD(tcpi_snd_ssthresh);
  FIELD(tcpi_snd_cwnd);
  FIELD(tcpi_advmss);
  FIELD(tcpi_reordering);
  FIELD(tcpi_total_retrans);
  FIELD(tcpi_bytes_acked);
  FIELD(tcpi_bytes_received);
  FIELD(tcpi_segs_out);
  FIELD(tcpi_segs_in);
  FIELD(tcpi_notsent_bytes);
  FIELD(tcpi_min_rtt);
  FIELD(tcpi_data_segs_in);
  FIELD(tcpi_data_segs_out);
  FIELD(tcpi_bytes_sent);
  FIELD(tcpi_bytes_retrans);
  FIELD(tcpi_delivered);
  FIELD(tcpi_dsack_dups);
  FIELD(tcpi_reord_seen);
  FIELD(tcpi_rcv_ooopack);
  FIELD(tcpi_snd_wnd);
#undef FIELD
  i.tcpi_snd_wscale = static_cast<uint8_t>(field("tcpi_snd_wscale")) & 15;
  i.tcpi_rcv_wscale = static_cast<uint8_t>(field("tcpi_rcv_wscale")) & 15;
  if (!known) return failed(ENOTCONN);
  *length = std::min<socklen_t>(*length, sizeof i);
  std::memcpy(value, &i, *length);
  return 0;
}

int Adapter::get_option(int fd, int level, int name, void* value, socklen_t* length) {
  Held held = enter();
  if (level == IPPROTO_TCP && name == TCP_INFO) return tell_info(fd, value, length);
  Operation op = operation(Kind::kGetOption, fd);
  op.level = level;
  op.name = name;
  const Answer a = perform(held, op);
  if (a.value < 0) return failed(a.error);
  const auto number = static_cast<int>(a.out);
  *length = std::min<socklen_t>(*length, sizeof number);
  std::memcpy(value, &number, *length);
  return 0;
}

int Adapter::set_option(int fd, int level, int name, const void* value, socklen_t length) {
  Held held = enter();
  Operation op = operation(Kind::kSetOption, fd);
  op.level = level;
  op.name = name;
  if (level == IPPROTO_TCP && name == TCP_CONGESTION) {
    op.text.assign(static_cast<const char*>(value), strnlen(static_cast<const char*>(value), length));
  } else if (level == SOL_SOCKET && name == SO_LINGER) {
    linger l{};
    if (length < sizeof l) return failed(EINVAL);
    std::memcpy(&l, value, sizeof l);
    op.number = l.l_onoff;
    op.second = l.l_linger;
  } else {
    int number = 0;
    if (length < sizeof number) return failed(EINVAL);
    std::memcpy(&number, value, sizeof number);
    op.number = number;
  }
  return static_cast<int>(result(perform(held, op)));
}

// ---------------------------------------------------------------- several descriptors at once

int Adapter::poll(std::span<pollfd> fds, int timeout_ms) {
  Held held = enter();
  for (pollfd& p : fds) p.revents = 0;
  // First what is there; then, for the time that is left, whichever is there first.
  int ready = 0;
  for (const int time : {0, timeout_ms}) {
    std::vector<std::shared_ptr<Pending>> calls;
    for (const pollfd& p : fds) {
      Operation op = operation(Kind::kPoll, p.fd);
      op.number = p.events;
      op.second = time;
      calls.push_back(world_->start(std::move(op)));
    }
    if (calls.empty()) return 0;
    tell_others(held);
    if (time != 0) wait(held, calls);
    for (size_t i = 0; i < calls.size(); ++i) {
      if (!calls[i]->answer) continue;
      const Answer& a = *calls[i]->answer;
      fds[i].revents = static_cast<short>(a.value < 0 ? POLLNVAL : a.out);
      ready += fds[i].revents != 0;
    }
    if (ready != 0 || timeout_ms == 0) break;
  }
  return ready;
}

int Adapter::epoll_create() {
  Held held = enter();
  files_[next_epoll_].epoll = true;
  return next_epoll_++;
}

int Adapter::epoll_control(int epoll, int operation, int fd, const epoll_event* event) {
  Held held = enter();
  const auto set = files_.find(epoll);
  if (set == files_.end() || !files_.contains(fd)) return failed(EBADF);
  if (!set->second.epoll || files_[fd].epoll) return failed(EINVAL);
  auto& interest = set->second.interest;
  const bool there = interest.contains(fd);
  if (operation == EPOLL_CTL_ADD ? there : !there) return failed(there ? EEXIST : ENOENT);
  if (operation == EPOLL_CTL_DEL) return interest.erase(fd), 0;
  if ((event->events & (EPOLLET | EPOLLEXCLUSIVE)) != 0) return failed(EINVAL);  // readiness as it is, only
  interest[fd] = *event;
  return 0;
}

int Adapter::epoll_wait(int epoll, std::span<epoll_event> events, int timeout_ms) {
  std::vector<pollfd> fds;
  std::vector<epoll_event> of;
  {
    Held held = enter();
    const auto set = files_.find(epoll);
    if (set == files_.end() || !set->second.epoll) return failed(EBADF);
    constexpr uint32_t kPolled = EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP | EPOLLERR | EPOLLHUP;
    for (const auto& [fd, event] : set->second.interest) {
      if (event.events == 0) continue;
      fds.push_back({fd, static_cast<short>(event.events & kPolled), 0});
      of.push_back(event);
    }
  }
  const int ready = poll(fds, timeout_ms);
  if (ready < 0) return ready;
  Held held = enter();
  int n = 0;
  for (size_t i = 0; i < fds.size() && n < static_cast<int>(events.size()); ++i) {
    if (fds[i].revents == 0) continue;
    events[static_cast<size_t>(n++)] = {static_cast<uint32_t>(fds[i].revents), of[i].data};
    if ((of[i].events & EPOLLONESHOT) != 0) files_[epoll].interest[fds[i].fd].events = 0;
  }
  return n;
}

// ---------------------------------------------------------------- the table

Adapter& of(void* userdata) { return *static_cast<Adapter*>(userdata); }

std::span<const iovec> vector_of(const iovec* v, size_t n) { return {v, n}; }

int control(void* u, int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  const int value = va_arg(arguments, int);
  va_end(arguments);
  if (command == F_GETFL) return of(u).flags(fd);
  return command == F_SETFL ? of(u).set_flags(fd, value) : failed(EINVAL);
}

int request(void* u, int fd, unsigned long what, ...) {
  va_list arguments;
  va_start(arguments, what);
  int* out = va_arg(arguments, int*);
  va_end(arguments);
  int64_t value = 0;
  const int r = of(u).call(Kind::kIoctl, fd, static_cast<int64_t>(what), &value);
  if (r == 0 && out) *out = static_cast<int>(value);
  return r;
}

void fill(packetdrill_interface& i) {
  i.free = [](void* u) { delete &of(u); };
  i.socket = [](void* u, int domain, int type, int protocol) { return of(u).socket(domain, type, protocol); };
  i.bind = [](void* u, int fd, const sockaddr* a, socklen_t n) { return of(u).bind(fd, a, n); };
  i.listen = [](void* u, int fd, int backlog) { return of(u).call(Kind::kListen, fd, backlog); };
  i.accept = [](void* u, int fd, sockaddr* a, socklen_t* n) { return of(u).accept(fd, a, n); };
  i.connect = [](void* u, int fd, const sockaddr* a, socklen_t n) { return of(u).connect(fd, a, n); };
  i.read = [](void* u, int fd, void* p, size_t n) {
    const iovec v{p, n};
    return of(u).read(fd, {&v, 1}, 0);
  };
  i.readv = [](void* u, int fd, const iovec* v, int n) {
    return of(u).read(fd, vector_of(v, static_cast<size_t>(n)), 0);
  };
  i.recv = [](void* u, int fd, void* p, size_t n, int flags) {
    const iovec v{p, n};
    return of(u).read(fd, {&v, 1}, flags);
  };
  i.recvfrom = [](void* u, int fd, void* p, size_t n, int flags, sockaddr*, socklen_t* length) {
    const iovec v{p, n};
    if (length) *length = 0;  // as TCP does
    return of(u).read(fd, {&v, 1}, flags);
  };
  i.recvmsg = [](void* u, int fd, msghdr* m, int flags) {
    m->msg_namelen = 0;
    m->msg_controllen = 0;
    m->msg_flags = 0;
    return of(u).read(fd, vector_of(m->msg_iov, m->msg_iovlen), flags);
  };
  i.write = [](void* u, int fd, const void* p, size_t n) {
    const iovec v{const_cast<void*>(p), n};
    return of(u).write(fd, {&v, 1}, 0);
  };
  i.writev = [](void* u, int fd, const iovec* v, int n) {
    return of(u).write(fd, vector_of(v, static_cast<size_t>(n)), 0);
  };
  i.send = [](void* u, int fd, const void* p, size_t n, int flags) {
    const iovec v{const_cast<void*>(p), n};
    return of(u).write(fd, {&v, 1}, flags);
  };
  // The address of a stream's peer changes nothing.
  i.sendto = [](void* u, int fd, const void* p, size_t n, int flags, const sockaddr*, socklen_t) {
    const iovec v{const_cast<void*>(p), n};
    return of(u).write(fd, {&v, 1}, flags);
  };
  i.sendmsg = [](void* u, int fd, const msghdr* m, int flags) {
    return of(u).write(fd, vector_of(m->msg_iov, m->msg_iovlen), flags);
  };
  i.fcntl = control;
  i.ioctl = request;
  i.close = [](void* u, int fd) { return of(u).close(fd); };
  i.shutdown = [](void* u, int fd, int how) { return of(u).call(Kind::kShutdown, fd, how); };
  i.getsockopt = [](void* u, int fd, int level, int name, void* v, socklen_t* n) {
    return of(u).get_option(fd, level, name, v, n);
  };
  i.setsockopt = [](void* u, int fd, int level, int name, const void* v, socklen_t n) {
    return of(u).set_option(fd, level, name, v, n);
  };
  i.poll = [](void* u, pollfd* fds, nfds_t n, int timeout) { return of(u).poll({fds, n}, timeout); };
  i.netdev_send = [](void* u, const void* p, size_t n) {
    return of(u).inject({static_cast<const uint8_t*>(p), n});
  };
  i.netdev_receive = [](void* u, void* p, size_t* n, long long* us) { return of(u).receive(p, n, us); };
  i.usleep = [](void* u, useconds_t us) {
    of(u).sleep(std::chrono::microseconds(us));
    return 0;
  };
  i.gettimeofday = [](void* u, timeval* tv, struct timezone*) {
    *tv = of(u).time();
    return 0;
  };
  i.epoll_create = [](void* u, int) { return of(u).epoll_create(); };
  i.epoll_ctl = [](void* u, int epoll, int operation, int fd, epoll_event* event) {
    return of(u).epoll_control(epoll, operation, fd, event);
  };
  i.epoll_wait = [](void* u, int epoll, epoll_event* events, int n, int timeout) {
    return n <= 0 ? failed(EINVAL) : of(u).epoll_wait(epoll, {events, static_cast<size_t>(n)}, timeout);
  };
  // Pipes are the kernel's: what is spliced is no part of TCP.
  i.pipe = [](void*, int*) { return failed(ENOSYS); };
  i.splice = [](void*, int, off64_t*, int, off64_t*, size_t, unsigned) { return failed(ENOSYS); };
}

}  // namespace
}  // namespace accel::scripts

extern "C" [[gnu::visibility("default")]] void packetdrill_interface_init(const char* flags,
                                                                          packetdrill_interface* interface) {
  interface->userdata = new accel::scripts::Adapter(flags ? flags : "");
  accel::scripts::fill(*interface);
}
