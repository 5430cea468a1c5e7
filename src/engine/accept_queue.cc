// An unaccepted connection moves into the accept queue of its listener's kernel socket, where any process
// that has the listener finds it (xdp/accept_queue.h). TCP_REPAIR makes connections only for a descriptor.
//
// Order: the peer's ACK once more, which makes the kernel's connection; then, in place of the peer, what it
// has sent; then our copy is forgotten and the frames are the kernel's. The kernel acknowledges again what we
// have acknowledged already, which the peer takes for duplicates. Connections with more than fits the
// kernel's first window or on a link-local address stay ours.
#include "engine/accept_queue.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/kernel_tcp.h"
#include "base/proc.h"
#include "base/real.h"
#include "base/socket_option.h"
#include "engine/inject.h"
#include "engine/process.h"
#include "engine/raw_segment.h"
#include "xdp/accept_queue.h"

namespace accel {
namespace {

/// The kernel's first receive window is 64240 bytes or more (tcp_select_initial_window()).
constexpr size_t kMostUnread = 32 << 10;

/// The peer's segments, as it sent them.
class PeersWords {
 public:
  explicit PeersWords(const TcpSnapshot& s)
      : s_(s),
        window_(
            static_cast<uint16_t>(std::min<uint32_t>(s.snd_wnd >> (s.wscale_ok ? s.snd_wscale : 0), 65535))) {
  }

  /// Sequence number of the first byte that waits to be read.
  uint32_t first() const { return static_cast<uint32_t>(end() - s_.receive_queue.size()); }

  Result<void> send(uint32_t seq, uint8_t flags, std::span<const uint8_t> payload) {
    return send_raw(injector_, {.from = s_.remote,
                                .to = s_.local,
                                .seq = seq,
                                .ack = s_.snd_una,
                                .flags = flags,
                                .window = window_,
                                .ttl = 255,
                                .payload = payload});
  }

  /// All that has come, and a FIN where there was one.
  void send_received() {
    uint32_t seq = first();
    for (std::span<const uint8_t> left(s_.receive_queue); !left.empty();) {
      const size_t size = std::min(left.size(), RawSegment::kMostPayload);
      (void)send(seq, TH_ACK | TH_PUSH, left.first(size));
      seq += static_cast<uint32_t>(size);
      left = left.subspan(size);
    }
    if (s_.fin_received) (void)send(end(), TH_FIN | TH_ACK, {});
  }

 private:
  uint32_t end() const { return s_.rcv_nxt - (s_.fin_received ? 1 : 0); }

  const TcpSnapshot& s_;
  const uint16_t window_;
  Injector injector_;
};

accel_tcp_attributes attributes_of(const TcpSnapshot& s) {
  accel_tcp_attributes a{};
  a.mss = s.mss != 0 ? s.mss : 536;
  a.wscale_ok = s.wscale_ok;
  a.snd_wscale = s.wscale_ok ? s.snd_wscale : 0;
  a.rcv_wscale = s.wscale_ok ? s.rcv_wscale : 0;
  a.sack_ok = s.sack_ok;
  a.tstamp_ok = s.timestamps_ok;
  a.rcv_tsval = s.timestamp_recent;
  a.rcv_tsecr = s.timestamp_now;
  return a;
}

/// Nothing has been sent, and what has been received goes into the first window.
bool can_be_queued(const TcpSnapshot& s) {
  return s.send_queue.empty() && !s.fin_queued && s.snd_una == s.snd_nxt &&
         !s.local.address.is_link_local() && s.receive_queue.size() <= kMostUnread;
}

/// A group of one: whatever chooses among its members finds it.
bool is_alone_at_its_port(int listener) {
  sockaddr_in6 name{};
  socklen_t length = sizeof name;
  if (real.getsockname(listener, reinterpret_cast<sockaddr*>(&name), &length) != 0) return false;
  const Result<size_t> all = tcp_listeners_at(ntohs(name.sin6_port));  // where sockaddr_in has it
  return all && *all == 1;
}

/// The kernel's look-up by the tuple has to find this listener, and no other of a group.
bool found_by_tuple(int listener) {
  return (int_option(listener, SOL_SOCKET, SO_REUSEPORT) == 0 || is_alone_at_its_port(listener)) &&
         int_option(listener, SOL_SOCKET, SO_BINDTOIFINDEX) == 0 &&
         sysctl("/proc/sys/net/ipv4/tcp_syncookies", 0) != 0;
}

/// The kernel would drop what comes to a full queue (sk_acceptq_is_full(), tcp_get_info()).
bool has_room(int listener) {
  tcp_info info{};
  socklen_t length = sizeof info;
  return real.getsockopt(listener, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 &&
         info.tcpi_unacked <= info.tcpi_sacked;
}

/// Under the lock. Kept from its first use on: nobody who waits for the lock is to wait twice for libbpf.
AcceptQueue* loaded = nullptr;
/// The kernel lacks it, or forbids it: one attempt has shown that.
bool impossible = false;

AcceptQueue* loaded_queue() {
  if (loaded != nullptr || impossible) return loaded;
  auto queue = AcceptQueue::open(nullptr);
  if (queue) loaded = queue->release();
  impossible = !queue && !queue.is(EMFILE) && !queue.is(ENFILE) && !queue.is(ENOMEM);
  return loaded;
}

class Attached {
 public:
  explicit Attached(AcceptQueue& queue) : queue_(queue), done_(queue.attach()) {}
  ~Attached() {
    if (done_) queue_.detach();
  }
  Attached(const Attached&) = delete;
  Attached& operator=(const Attached&) = delete;
  bool ok() const { return done_.ok(); }

 private:
  AcceptQueue& queue_;
  const Result<void> done_;
};

Result<void> move_one(AcceptQueue& queue, const TcpSnapshot& s) {
  PeersWords peer(s);
  Result<void> done = queue.expect(s.local, s.remote, attributes_of(s));
  if (done) done = peer.send(peer.first(), TH_ACK, {});
  if (done) done = queue.taken();
  if (done) peer.send_received();
  return done;
}

}  // namespace

void abandon_accept_queue_in_child() {
  if (loaded != nullptr) std::exchange(loaded, nullptr)->abandon_in_child();
  impossible = false;
}

void close_accept_queue() { delete std::exchange(loaded, nullptr); }

Result<size_t> queue_in_kernel(Pass& pass, BoundFlow& flow, int shadow) {
  Process& p = Process::of(pass);
  Stack& stack = *p.worker.stack;
  TcpListener& listener = *flow.listener;
  if (stack.tcp().first_unaccepted(listener) != nullptr && !found_by_tuple(shadow)) return err(EOPNOTSUPP);
  std::optional<Attached> attached;
  size_t moved = 0;
  while (TcpConn* conn = stack.tcp().first_unaccepted(listener)) {
    const auto snapshot = stack.tcp().snapshot(*conn, pass.now());
    if (!snapshot || !can_be_queued(*snapshot) || !has_room(shadow)) break;
    AcceptQueue* queue = loaded_queue();
    if (queue == nullptr) break;
    if (!attached) attached.emplace(*queue);
    if (!attached->ok() || !move_one(*queue, *snapshot)) break;
    (void)stack.tcp().accept(listener);
    stack.tcp().forget(conn);
    p.unsteer_closed();
    p.worker.poll_at_end = true;
    p.counters.add(Counter::handed_back);
    ++moved;
  }
  return moved != 0 || stack.tcp().accept_queue_length(listener) == 0 ? Result<size_t>(moved)
                                                                      : err(EOPNOTSUPP);
}

}  // namespace accel
