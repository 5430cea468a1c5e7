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
#include "engine/hand_back.h"

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
#include "engine/inject.h"
#include "engine/process.h"
#include "engine/raw_segment.h"
#include "stack/wire/ipv4.h"
#include "stack/wire/ipv6.h"

#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72
#endif

namespace accel {
namespace {

constexpr int kNoQueue = 0, kReceiveQueue = 1, kSendQueue = 2;
constexpr size_t kChunk = 64 << 10;

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
/// helper's work.
class Repair {
 public:
  /// `ifindex`: the connection's device. `listener`: a socket that listens at its local end, or -1.
  Repair(int fd, int family, int ifindex, int listener, HelperClient& helper)
      : fd_(fd), family_(family), ifindex_(ifindex), listener_(listener), helper_(helper) {}

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
    if (error_ == EPERM || error_ == EACCES) begin_by_helper(local);
    return *this;
  }
  /// `mode`: TCP_REPAIR_OFF, TCP_REPAIR_OFF_NO_WP.
  Repair& end(int mode) { return set_privileged(TCP_REPAIR, mode, IPPROTO_TCP, RequestType::kRepair); }
  /// In repair mode.
  Repair& send_buffer(int bytes) {
    return set_privileged(SO_SNDBUFFORCE, bytes, SOL_SOCKET, RequestType::kSendBuffer);
  }
  Repair& receive_buffer(int bytes) {
    return set_privileged(SO_RCVBUFFORCE, bytes, SOL_SOCKET, RequestType::kReceiveBuffer);
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
  using RequestType = helper::RequestType;
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
  void begin_by_helper(const Endpoint& local) {
    AnyAddress a, none{};
    none.any.sa_family = AF_UNSPEC;
    const bool named = is_bound();
    if (named && helper_.running() && real.listen(fd_, 0) == 0) real.connect(fd_, &none.any, sizeof none.any);
    helper::PrivilegedRequest request{RequestType::kBind, 0, to_address(local, family_, ifindex_, a), {}, {}};
    std::memcpy(request.address, &a, request.length);
    ask(request);
    if (!ok() && named) real.bind(fd_, &a.any, request.length);
  }
  Repair& set_privileged(int name, int value, int level, RequestType type) {
    if (!set(name, value, level).ok() && error_ == EPERM) ask({type, value, 0, {}, {}});
    return *this;
  }
  void ask(const helper::PrivilegedRequest& request) {
    const Result<int> done = helper_.run(request, fd_, listener_);
    error_ = done ? 0 : static_cast<int>(done.error());
  }

  int fd_;
  int family_;
  int ifindex_;
  int listener_;
  HelperClient& helper_;
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
  Process& p = Process::of(pass);
  Stack& stack = *p.worker.stack;
  auto snapshot = stack.tcp().snapshot(*conn, pass.now());
  if (!snapshot) return snapshot.error();
  const TcpSnapshot& s = *snapshot;
  int family = AF_INET;
  socklen_t length = sizeof(family);
  if (real.getsockopt(shadow, SOL_SOCKET, SO_DOMAIN, &family, &length) != 0) return err(errno);
  if (family == AF_INET && !s.local.address.is_v4()) return err(EAFNOSUPPORT);

  const int reuse = int_option(shadow, SOL_SOCKET, SO_REUSEADDR);
  const int ifindex = p.slots[stack.tcp().interface(*conn)].ifindex;
  Repair repair{shadow, family, ifindex, listener, p.helper};
  Room room{repair, shadow};
  restore(repair, shadow, room, s, stack.tcp().settings(*conn).max_segment);
  if (!repair.ok()) {
    AnyAddress none{};  // back to an unconnected socket, without a packet while in repair mode
    none.any.sa_family = AF_UNSPEC;
    real.connect(shadow, &none.any, sizeof(none.any));
    Repair{shadow, family, ifindex, -1, p.helper}.end(TCP_REPAIR_OFF_NO_WP);
    p.counters.add(Counter::not_handed_back);
    return repair.error();
  }
  stack.tcp().forget(conn);
  // From here on the kernel has it; what fails now, fails as it would on the kernel's own connection.
  repair.end(TCP_REPAIR_OFF);
  repair.set(SO_REUSEADDR, reuse, SOL_SOCKET);  // leaving repair mode cleared it
  // Before the unsent bytes: once the peer has acknowledged a window of those, the FIN's own acknowledgement
  // is too old to be taken (RFC 5961 section 5.2, tcp_ack()).
  if (s.fin_received) inject_fin(repair, s, ifindex);
  repair.put(unsent(s));
  room.give_back();
  if (s.fin_queued) real.shutdown(shadow, SHUT_WR);
  p.unsteer_closed();
  p.worker.poll_at_end = true;
  p.counters.add(Counter::handed_back);
  return {};
}

std::vector<TcpConn*> all_connections(Stack& stack) {
  std::vector<TcpConn*> all;
  stack.tcp().for_each(
      [](TcpConn& c, void* context) { static_cast<std::vector<TcpConn*>*>(context)->push_back(&c); }, &all);
  return all;
}

Result<int> hand_back_closed(Pass& pass, TcpConn* conn) {
  const int family = pass.stack().tcp().local(*conn).address.is_v4() ? AF_INET : AF_INET6;
  const int shadow = real.socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (shadow < 0) return err(errno);
  const int reuse = pass.stack().tcp().settings(*conn).reuse_address;
  real.setsockopt(shadow, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse);
  if (const auto handed = pass.engine().hand_back(pass, conn, shadow); !handed) {
    real.close(shadow);
    return handed.error();
  }
  return shadow;
}

void hand_back_or_forget(Pass& pass, TcpConn* conn) {
  Stack& stack = pass.stack();
  const Result<int> shadow = stack.tcp().all_acked(*conn) ? err(ENOTCONN) : hand_back_closed(pass, conn);
  if (shadow)
    real.close(*shadow);
  else
    stack.tcp().forget(conn);
}

namespace {

IpAddress destination_of(const std::vector<uint8_t>& packet) {
  return packet[0] >> 4 == 4 ? IpAddress::from_v4_bytes(&packet[offsetof(Ipv4Header, destination)])
                             : IpAddress::from_v6_bytes(&packet[offsetof(Ipv6Header, destination)]);
}

uint8_t protocol_of(const std::vector<uint8_t>& packet) {
  return packet[packet[0] >> 4 == 4 ? offsetof(Ipv4Header, protocol) : offsetof(Ipv6Header, next_header)];
}

}  // namespace

void Process::give_to_kernel(PacketQueue& frames) {
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

}  // namespace accel
