// A live connection moves into a kernel socket by TCP_REPAIR (net/ipv4/tcp.c: do_tcp_setsockopt,
// tcp_repair_*).
//
// Order: the kernel's socket gets the whole state while it is still mute (repair mode); our copy is
// forgotten; repair mode ends, which makes the kernel probe the peer, and the FIN is queued where ours was;
// then the device brings the flow's frames to the kernel. Not before: the kernel would drop what acknowledges
// a FIN that it has not sent. What has come to our queue until then is given to the kernel (Injector).
//
// Not carried over: TS.Recent (the kernel learns it from the peer's next segment), cwnd and RTT (it starts
// anew), urgent data.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "base/real.h"
#include "base/socket_option.h"
#include "engine/accept_queue.h"
#include "engine/housekeeping.h"
#include "engine/inject.h"
#include "engine/raw_segment.h"
#include "engine/stats.h"
#include "engine/worker.h"
#include "stack/tcp/conn.h"
#include "stack/wire/ipv4.h"
#include "stack/wire/ipv6.h"

#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72
#endif

namespace accel {
namespace {

constexpr int kNoQueue = 0, kReceiveQueue = 1, kSendQueue = 2;
constexpr size_t kChunk = 64 << 10;
constexpr Duration kAskAgain =
    std::chrono::milliseconds(10);  // whether the kernel's sockets have been acknowledged
constexpr Duration kFarewell = std::chrono::milliseconds(200);
constexpr int kMostPolls = 64;  ///< more than a ring holds; a UDP socket's peer may send without end

union AnyAddress {
  sockaddr any;
  sockaddr_in v4;
  sockaddr_in6 v6;
};

/// `ifindex`: the scope of a link-local address.
socklen_t to_address(const Endpoint& e, int family, int ifindex, AnyAddress& out) {
  out = {};
  if (family == AF_INET) {
    out.v4.sin_family = AF_INET;
    out.v4.sin_port = htons(e.port);
    std::memcpy(&out.v4.sin_addr, e.address.v4_bytes(), 4);
    return sizeof(out.v4);
  }
  out.v6.sin6_family = AF_INET6;
  out.v6.sin6_port = htons(e.port);
  std::memcpy(&out.v6.sin6_addr, e.address.bytes.data(), 16);
  if (e.address.is_link_local() && !e.address.is_v4()) out.v6.sin6_scope_id = static_cast<uint32_t>(ifindex);
  return sizeof(out.v6);
}

/// setsockopt that remembers the first error. What takes a capability that the process has given up is the
/// guardian's errand.
class Repair {
 public:
  /// `ifindex`: the connection's device. `listener`: a socket that listens at its local end, or -1.
  Repair(int fd, int family, int ifindex, int listener, Guardian& guardian)
      : fd_(fd), family_(family), ifindex_(ifindex), listener_(listener), guardian_(guardian) {}

  template <class T>
  Repair& set(int name, const T& value, int level = IPPROTO_TCP) {
    if (ok() && real.setsockopt(fd_, level, name, &value, sizeof(value)) != 0) error_ = errno;
    return *this;
  }
  /// Repair mode, with the local end as the socket's name: beside a listener as well, since repair mode
  /// implies SK_FORCE_REUSE.
  Repair& begin(const Endpoint& local) {
    if (set(TCP_REPAIR, TCP_REPAIR_ON).ok() && bind(local).ok()) return *this;
    if (error_ == EACCES) real.setsockopt(fd_, IPPROTO_TCP, TCP_REPAIR, &kOff, sizeof kOff);
    if (error_ == EPERM || error_ == EACCES) begin_by_guardian(local);
    return *this;
  }
  /// `mode`: TCP_REPAIR_OFF, TCP_REPAIR_OFF_NO_WP.
  Repair& end(int mode) { return set_privileged(TCP_REPAIR, mode, IPPROTO_TCP, Errand::kRepair); }
  /// In repair mode.
  Repair& send_buffer(int bytes) {
    return set_privileged(SO_SNDBUFFORCE, bytes, SOL_SOCKET, Errand::kSendBuffer);
  }
  Repair& receive_buffer(int bytes) {
    return set_privileged(SO_RCVBUFFORCE, bytes, SOL_SOCKET, Errand::kReceiveBuffer);
  }
  Repair& queue(int which) { return set(TCP_REPAIR_QUEUE, which); }

  Repair& connect(const Endpoint& remote) {
    AnyAddress a;
    const socklen_t length = to_address(remote, family_, ifindex_, a);
    if (ok() && real.connect(fd_, &a.any, length) != 0) error_ = errno;
    return *this;
  }
  /// In repair mode: into the queue chosen. Else it is sent.
  Repair& put(std::span<const uint8_t> bytes) {
    while (ok() && !bytes.empty()) {
      const ssize_t n =
          real.send(fd_, bytes.data(), std::min(bytes.size(), kChunk), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0)
        bytes = bytes.subspan(static_cast<size_t>(n));
      else if (n == 0 || errno != EINTR)
        error_ = n == 0 ? EIO : errno;
    }
    return *this;
  }
  void fail(int error) {
    if (ok()) error_ = error;
  }
  bool ok() const { return error_ == 0; }
  Errno error() const { return err(error_); }

 private:
  using Errand = guardian::Errand;
  static constexpr int kOff = TCP_REPAIR_OFF_NO_WP;

  bool is_bound() const {
    AnyAddress bound{};
    socklen_t length = sizeof(bound);
    real.getsockname(fd_, &bound.any, &length);
    return (family_ == AF_INET ? bound.v4.sin_port : bound.v6.sin6_port) != 0;
  }
  Repair& bind(const Endpoint& local) {
    AnyAddress a;
    const socklen_t length = to_address(local, family_, ifindex_, a);
    if (!is_bound() && real.bind(fd_, &a.any, length) != 0) error_ = errno;
    return *this;
  }
  /// It wants a socket without a name. One that connect() has named gives its port back when it stops
  /// listening.
  void begin_by_guardian(const Endpoint& local) {
    AnyAddress a, none{};
    none.any.sa_family = AF_UNSPEC;
    const bool named = is_bound();
    if (named && guardian_.running() && real.listen(fd_, 0) == 0)
      real.connect(fd_, &none.any, sizeof none.any);
    guardian::Request request{Errand::kBind, 0, to_address(local, family_, ifindex_, a), {}, {}};
    std::memcpy(request.address, &a, request.length);
    ask(request);
    if (!ok() && named) real.bind(fd_, &a.any, request.length);
  }
  Repair& set_privileged(int name, int value, int level, Errand errand) {
    if (!set(name, value, level).ok() && error_ == EPERM) ask({errand, value, 0, {}, {}});
    return *this;
  }
  void ask(const guardian::Request& request) {
    const Result<int> done = guardian_.run(request, fd_, listener_);
    error_ = done ? 0 : static_cast<int>(done.error());
  }

  int fd_;
  int family_;
  int ifindex_;
  int listener_;
  Guardian& guardian_;
  int error_ = 0;
};

/// How much of the snapshot's sequence space the peer's and our FIN take.
struct Fins {
  explicit Fins(const TcpSnapshot& s) {
    received = s.fin_received ? 1 : 0;
    acked = s.fin_acked ? 1 : 0;
    const uint32_t in_flight = s.snd_nxt - s.snd_una;
    // With everything sent, what lies beyond the bytes is the FIN.
    sent_unacked = !s.fin_acked && s.fin_queued && in_flight > s.send_queue.size() ? 1 : 0;
  }
  uint32_t received, acked, sent_unacked;
};

/// `most`: TCP_MAXSEG, which tcp_parse_options() holds the peer's MSS to; 0: not set.
void put_options(Repair& r, const TcpSnapshot& s, uint16_t most) {
  std::array<tcp_repair_opt, 4> options{};
  size_t n = 0;
  options[n++] = {TCPOPT_MAXSEG, most != 0 ? std::min(s.mss, most) : s.mss};
  if (s.wscale_ok) options[n++] = {TCPOPT_WINDOW, s.snd_wscale | uint32_t{s.rcv_wscale} << 16};
  if (s.sack_ok) options[n++] = {TCPOPT_SACK_PERMITTED, 0};
  if (s.timestamps_ok) options[n++] = {TCPOPT_TIMESTAMP, 0};
  for (size_t i = 0; i < n; ++i) r.set(TCP_REPAIR_OPTIONS, options[i]);
}

/// The kernel fixes the size of its segments (mss_cache) in connect(), by TCP_MAXSEG or, where that is not
/// set, by what it has before it knows the peer's MSS: 536, over IPv6 1220 (tcp_connect_init()).
/// TCP_REPAIR_OPTIONS comes afterwards and does not change it. So the peer's MSS is TCP_MAXSEG for that
/// moment.
void connect_with_segments_of(Repair& r, int fd, const Endpoint& remote, uint16_t peer_mss, uint16_t most) {
  constexpr int kLeast = 88, kMost = 32767;  // TCP_MIN_MSS, MAX_TCP_WINDOW
  const auto limit = [fd](int mss) { real.setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &mss, sizeof mss); };
  limit(std::clamp<int>(most != 0 ? std::min(peer_mss, most) : peer_mss, kLeast, kMost));
  r.connect(remote);
  limit(most);
}

/// Room for the queues while they are filled; the kernel's limits are for senders and receivers that can
/// wait.
class Room {
 public:
  Room(Repair& repair, int fd) : repair_(repair), fd_(fd) {}
  void make(const TcpSnapshot& s) {
    locked_ = int_option(fd_, SOL_SOCKET, SO_BUF_LOCK, kBothLocks);
    sent_before_ = int_option(fd_, SOL_SOCKET, SO_SNDBUF);
    received_before_ = int_option(fd_, SOL_SOCKET, SO_RCVBUF);
    if (const int bytes = larger(sent_before_, s.send_queue.size())) repair_.send_buffer(bytes);
    if (const int bytes = larger(received_before_, s.receive_queue.size())) repair_.receive_buffer(bytes);
    real.setsockopt(fd_, SOL_SOCKET, SO_BUF_LOCK, &locked_, sizeof(locked_));
  }
  /// What the program has set is as it was; the kernel goes on tuning the rest. It doubles what is set.
  /// Without privilege not beyond wmem_max and rmem_max.
  void give_back() {
    if ((locked_ & kSendLock) != 0) set(SO_SNDBUFFORCE, SO_SNDBUF, sent_before_ / 2);
    if ((locked_ & kReceiveLock) != 0) set(SO_RCVBUFFORCE, SO_RCVBUF, received_before_ / 2);
  }

 private:
  static constexpr int kSendLock = 1, kReceiveLock = 2, kBothLocks = 3;  // SOCK_SNDBUF_LOCK, ...
  void set(int forced, int plain, int bytes) const {
    if (real.setsockopt(fd_, SOL_SOCKET, forced, &bytes, sizeof bytes) != 0)
      real.setsockopt(fd_, SOL_SOCKET, plain, &bytes, sizeof bytes);
  }
  static int larger(int now, size_t need) {
    const int wanted = static_cast<int>(std::min<size_t>(need * 2 + kChunk, 1u << 30));
    return wanted > now ? wanted : 0;
  }
  Repair& repair_;
  int fd_;
  int locked_ = 0;
  int sent_before_ = 0, received_before_ = 0;
};

void restore(Repair& r, int fd, Room& room, const TcpSnapshot& s, uint16_t most_segment) {
  const Fins fins{s};
  const uint32_t receive_end = s.rcv_nxt - fins.received;
  const uint32_t send_begin = s.snd_una - fins.acked;
  const uint32_t sent = std::min<uint32_t>(s.snd_nxt - s.snd_una - fins.sent_unacked,
                                           static_cast<uint32_t>(s.send_queue.size()));
  r.begin(s.local);
  r.queue(kSendQueue).set(TCP_QUEUE_SEQ, send_begin);
  r.queue(kReceiveQueue).set(TCP_QUEUE_SEQ, static_cast<uint32_t>(receive_end - s.receive_queue.size()));
  connect_with_segments_of(r, fd, s.remote, s.mss, most_segment);
  put_options(r, s, most_segment);
  if (s.timestamps_ok) r.set(TCP_TIMESTAMP, s.timestamp_now);
  room.make(s);
  r.queue(kReceiveQueue).put(s.receive_queue);
  r.queue(kSendQueue).put({s.send_queue.data(), sent});
  tcp_repair_window window{};
  window.snd_wl1 = s.snd_wl1;
  window.snd_wnd = s.snd_wnd;
  window.max_window = std::max(s.max_window, s.snd_wnd);
  window.rcv_wnd = s.rcv_wnd;
  window.rcv_wup = s.rcv_wup;
  if (static_cast<int32_t>(window.rcv_wup - receive_end) > 0) window.rcv_wup = receive_end;
  r.set(TCP_REPAIR_WINDOW, window);
  r.queue(kNoQueue);
}

/// The unsent rest, once the kernel may send.
std::span<const uint8_t> unsent(const TcpSnapshot& s) {
  const Fins fins{s};
  const size_t sent = std::min<size_t>(s.snd_nxt - s.snd_una - fins.sent_unacked, s.send_queue.size());
  return std::span{s.send_queue}.subspan(sent);
}

/// As the peer would send it. The FIN that the peer has sent once and that we have acknowledged does not come
/// again.
void inject_fin(Repair& r, const TcpSnapshot& s, int ifindex) {
  const Fins fins{s};
  const uint32_t window = std::min<uint32_t>(s.snd_wnd >> (s.wscale_ok ? s.snd_wscale : 0), 65535);
  auto sent = send_raw({.from = s.remote,
                        .to = s.local,
                        .seq = s.rcv_nxt - 1,
                        .ack = s.snd_una - fins.acked,
                        .flags = TH_FIN | TH_ACK,
                        .window = static_cast<uint16_t>(window),
                        .ttl = 255,  // IP_MINTTL
                        .ifindex = ifindex});
  if (!sent) r.fail(static_cast<int>(sent.error()));
}

}  // namespace

Result<void> Engine::hand_back(Pass& pass, TcpConn* conn, int shadow, int listener) {
  Impl& w = Impl::of(pass);
  Stack& stack = *w.stack;
  auto snapshot = stack.tcp_snapshot(*conn, pass.now());
  if (!snapshot) return snapshot.error();
  const TcpSnapshot& s = *snapshot;
  int family = AF_INET;
  socklen_t length = sizeof(family);
  if (real.getsockopt(shadow, SOL_SOCKET, SO_DOMAIN, &family, &length) != 0) return err(errno);
  if (family == AF_INET && !s.local.address.is_v4()) return err(EAFNOSUPPORT);

  const int reuse = int_option(shadow, SOL_SOCKET, SO_REUSEADDR);
  const int ifindex = w.slots[stack.tcp_interface(*conn)].ifindex;
  Repair repair{shadow, family, ifindex, listener, w.guardian};
  Room room{repair, shadow};
  restore(repair, shadow, room, s, stack.settings(*conn).max_segment);
  if (!repair.ok()) {
    AnyAddress none{};  // back to an unconnected socket, without a packet while in repair mode
    none.any.sa_family = AF_UNSPEC;
    real.connect(shadow, &none.any, sizeof(none.any));
    Repair{shadow, family, ifindex, -1, w.guardian}.end(TCP_REPAIR_OFF_NO_WP);
    w.counters.add(Counter::not_handed_back);
    return repair.error();
  }
  stack.tcp_forget(conn);
  // From here on the kernel has it; what fails now, fails as it would on the kernel's own connection.
  repair.end(TCP_REPAIR_OFF);
  repair.set(SO_REUSEADDR, reuse, SOL_SOCKET);  // leaving repair mode cleared it
  // Before the unsent bytes: once the peer has acknowledged a window of those, the FIN's own acknowledgement
  // is too old to be taken (RFC 5961 section 5.2, tcp_ack()).
  if (s.fin_received) inject_fin(repair, s, ifindex);
  repair.put(unsent(s));
  room.give_back();
  if (s.fin_queued) real.shutdown(shadow, SHUT_WR);
  w.unsteer_closed();
  w.poll_at_end = true;
  w.counters.add(Counter::handed_back);
  return {};
}

namespace {

std::vector<TcpConn*> all_connections(Stack& stack) {
  std::vector<TcpConn*> all;
  stack.tcp_for_each(
      [](TcpConn& c, void* context) { static_cast<std::vector<TcpConn*>*>(context)->push_back(&c); }, &all);
  return all;
}

/// A connection that no descriptor stands for. Returns its kernel socket, to be closed: it lingers, the
/// kernel sends the rest and the FIN.
Result<int> hand_back_closed(Engine& engine, Pass& pass, TcpConn* conn) {
  const int family = pass.stack().tcp_local(*conn).address.is_v4() ? AF_INET : AF_INET6;
  const int shadow = real.socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (shadow < 0) return err(errno);
  const int reuse = pass.stack().settings(*conn).reuse_address;
  real.setsockopt(shadow, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse);
  if (const auto handed = engine.hand_back(pass, conn, shadow); !handed) {
    real.close(shadow);
    return handed.error();
  }
  return shadow;
}

/// What it owes goes on in the kernel; one that owes nothing is over, the kernel answers for it.
void leave_closed(Engine& engine, Pass& pass, TcpConn* conn) {
  Stack& stack = pass.stack();
  const Result<int> shadow =
      stack.tcp_all_acked(*conn) ? err(ENOTCONN) : hand_back_closed(engine, pass, conn);
  if (shadow)
    real.close(*shadow);
  else
    stack.tcp_forget(conn);
}

/// A handshake that a peer began and whose end would find nobody. The kernel's listener has no part in it. A
/// peer that has our SYN-ACK is reset; one that has not does not mind a reset without ACK (RFC 9293 section
/// 3.10.7.3), sends its SYN again and finds that listener.
void reset_handshake(const TcpConn& conn, int ifindex) {
  (void)send_raw(
      {.from = conn.local, .to = conn.remote, .seq = conn.snd_nxt, .flags = TH_RST, .ifindex = ifindex});
}

IpAddress destination_of(const std::vector<uint8_t>& packet) {
  return packet[0] >> 4 == 4 ? IpAddress::from_v4_bytes(&packet[offsetof(Ipv4Header, destination)])
                             : IpAddress::from_v6_bytes(&packet[offsetof(Ipv6Header, destination)]);
}

uint8_t protocol_of(const std::vector<uint8_t>& packet) {
  return packet[packet[0] >> 4 == 4 ? offsetof(Ipv4Header, protocol) : offsetof(Ipv6Header, next_header)];
}

}  // namespace

// ---- a device that is gone ----

void Engine::Impl::tell_of_lost_ports() {
  if (!interfaces.take_lost_untold()) return;
  above.port_lost(engine);
  if (!std::exchange(cover_after_loss, false)) return;
  lock_in();
  pass_now = clock_now();
  cover_flows();
  work(pass_now);
  unlock_out();
  above.ports_opened();
}

// No lock for the look: this thread alone changes it.
void Engine::Impl::tell_of_strays() ACCEL_LOCKS_UNCHECKED {
  if (strays.empty()) return;
  above.strays_found(engine);
}

bool Engine::lost(Pass& pass, const TcpConn& conn) const {
  Impl& w = Impl::of(pass);
  return w.slots[w.stack->tcp_interface(conn)].lost;
}

bool Engine::strayed(Pass& pass, const TcpConn& conn) const {
  Impl& w = Impl::of(pass);
  const Stack& stack = *w.stack;
  return !w.strays.empty() &&
         w.strays.contains({Protocol::kTcp, stack.tcp_local(conn), stack.tcp_remote(conn)});
}

template <class Holds>
static bool any_unaccepted(const BoundFlow& flow, Holds holds) {
  for (const TcpConn* c = flow.listener ? flow.listener->accept_head : nullptr; c; c = c->accept_next)
    if (holds(*c)) return true;
  return false;
}

bool Engine::lost(Pass& pass, const BoundFlow& flow) const {
  return any_unaccepted(flow, [&](const TcpConn& c) { return lost(pass, c); });
}

bool Engine::strayed(Pass& pass, const BoundFlow& flow) const {
  return any_unaccepted(flow, [&](const TcpConn& c) { return strayed(pass, c); });
}

void Engine::let_go_of_lost(Pass& pass) {
  Impl& w = Impl::of(pass);
  for (InterfaceId id = 0; id < w.slots.count(); ++id)
    if (w.slots[id].lost) w.let_go_of(id, pass);
  w.close_lost();
}

void Engine::Impl::let_go_of(InterfaceId id, Pass& pass) {
  for (TcpConn* conn : all_connections(*stack)) {
    if (stack->tcp_interface(*conn) != id) continue;
    if (conn->owner || conn->queued) {
      stack->tcp_fail(*conn, ENETDOWN);
      continue;
    }
    if (conn->tcp_state == TcpState::kSynReceived) reset_handshake(*conn, slots[id].ifindex);
    leave_closed(engine, pass, conn);
  }
  unsteer_closed();
  for (auto& flow : flows) {
    for (const auto& key : flow->keys)
      if (key.interface == id) steering.unsteer(id, key.key);
    std::erase_if(flow->keys, [id](const auto& k) { return k.interface == id; });
  }
  steering.clear(id);  // of connections in TIME-WAIT
}

void Engine::let_go_of_strays(Pass& pass) {
  Impl& w = Impl::of(pass);
  for (TcpConn* conn : all_connections(*w.stack))
    if (strayed(pass, *conn) && !conn->owner && !conn->queued && conn->tcp_state > TcpState::kSynReceived)
      leave_closed(*this, pass, conn);
  w.strays.clear();
}

/// Once nothing names them: a VLAN's connections go before the port below. What is in the queues of one that
/// works still is taken; the slots are the devices' next ports'.
void Engine::Impl::close_lost() {
  for (InterfaceId id = 0; id < slots.count(); ++id) {
    if (!std::exchange(slots[id].lost, false)) continue;
    if (Port* port = slots[id].port()) {
      int polls = 0;
      do {
        poll(clock_now());
      } while (port->alive() && !port->arm() && ++polls < kMostPolls);
      port->count(counters);
    }
    interfaces.close(id, pass_now);
  }
}

// ---- the end of the process ----

void Engine::Impl::give_to_kernel(PacketQueue& frames) {
  Injector injector;
  while (Packet* frame = frames.pop_front()) {
    std::vector<uint8_t> packet;
    for (const Packet* p = frame; p; p = p->more)
      packet.insert(packet.end(), p->data(), p->data() + p->length);
    const bool given = injector.send(packet, destination_of(packet), slots[frame->interface].ifindex).ok();
    if (protocol_of(packet) == IPPROTO_TCP)
      counters.add(given ? Counter::tcp_to_kernel : Counter::drop_tcp_left_behind);
    else if (given)
      counters.add(Counter::icmp_to_kernel);
    FramePool::release(frame);
  }
}

/// Bounded, since peers may send as fast as this takes.
void Engine::Impl::empty_rings() {
  int polls = 0;
  do {
    poll(clock_now());
  } while (!arm_ports() && ++polls < kMostPolls);
}

void Engine::finish(Duration limit, bool for_good) {
  Pass pass{*this};
  Impl& w = Impl::of(pass);
  w.forget_requests();
  w.ending |= for_good;
  Stack& stack = *w.stack;
  stack.flush(pass.now());
  w.empty_rings();  // what is acknowledged there need not be handed back
  std::vector<int> shadows;
  for (TcpConn* conn : all_connections(stack))
    if (!stack.tcp_all_acked(*conn))
      if (const auto shadow = hand_back_closed(*this, pass, conn)) shadows.push_back(*shadow);
  wait_for_delivery(pass, limit);
  w.unsteer_closed();
  if (for_good) w.steering.unsteer_connections_for_good();
  w.empty_rings();  // the queues end with the process
  // Not before: the kernel loses a FIN that comes while close() makes a TIME-WAIT socket of one.
  for (const int shadow : shadows) real.close(shadow);
}

void Engine::retire(Duration limit) {
  {
    Pass pass{*this, Pass::Polling::kNo};
    wait_for_the_others(pass, limit);
  }
  finish(limit, true);
  {
    Pass pass{*this, Pass::Polling::kNo};
    Impl& w = Impl::of(pass);
    for (PortSlot& slot : w.slots) slot.lost = slot.opened.port != nullptr || slot.vlan.has_value();
    let_go_of_lost(pass);
    w.opening.close_ready();
    close_accept_queue();
    stats::close(pass, w.above, pass.now());
  }
  impl_->housekeeping->stop();
}

/// They have been woken. What they would sleep by again is a call that they may not make by then.
void Engine::wait_for_the_others(Pass& pass, Duration limit) {
  Impl& w = Impl::of(pass);
  WaitRequest request;
  request.condition = [](void* self) ACCEL_REQUIRES(worker_lock) {
    return static_cast<Impl*>(self)->sleepers.none_asleep_but(self);
  };
  request.context = impl_.get();
  request.may_spin = false;
  request.deadline = pass.now() + limit;
  w.awaits_absence = true;
  (void)wait(pass, request);
  w.awaits_absence = false;
}

void Engine::wait_for_delivery(Pass& pass, Duration limit) {
  WaitRequest request;
  request.condition = [](void* self) ACCEL_REQUIRES(worker_lock) {
    const Impl& worker = *static_cast<Impl*>(self);
    return worker.stack->tcp_lingering() == 0 && (!worker.channels || worker.channels->all_delivered());
  };
  request.context = impl_.get();
  request.may_spin = false;
  const Instant end = pass.now() + limit;
  do {
    // The kernel makes no event of an acknowledgement: of channels it must be asked.
    request.deadline = impl_->channels ? std::min(end, pass.now() + kAskAgain) : end;
  } while (wait(pass, request) != Woke::kReady && pass.now() < end);
  if (!impl_->channels) return;
  // A peer's last credits, coming to a process that is gone, would reset what the peer still reads.
  request.condition = [](void* w) { return static_cast<Impl*>(w)->channels->all_over(); };
  request.deadline = std::min(end, pass.now() + kFarewell);
  (void)wait(pass, request);
}

}  // namespace accel
