// Two whole stacks and a wire that loses, doubles, holds back and damages frames. Each direction carries a
// known stream: a byte that is wrong, missing or doubled is a trap, and so is a connection that stands still
// on a wire that has become good. Connections leave their stack by a snapshot and come back in the midst of
// it. Each step is one byte of choice and its arguments.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <vector>

#include "world.h"

namespace accel::fuzz {
namespace {

void require(bool holds) {
  if (!holds) __builtin_trap();
}

using Frame = std::vector<uint8_t>;

/// One end of the connection, in a stack of its own.
struct Side {
  Side(uint8_t number, uint8_t peer)
      : host(number),
        w(number, peer),
        address(IpAddress::v4(0x0a000000u + number)),
        other(IpAddress::v4(0x0a000000u + peer)) {}

  Route route() const {
    Route r;
    r.source = address;
    r.next_hop = other;
    return r;
  }
  static uint8_t expected(uint8_t host, size_t at) { return static_cast<uint8_t>(at * 7 + (at >> 8) + host); }

  /// Offers up to `n` bytes of the stream.
  void send(size_t n, TcpWrite how) {
    if (!conn || shut) return;
    uint8_t text[8192];
    n = std::min(n, sizeof text);
    for (size_t i = 0; i < n; ++i) text[i] = expected(host, sent + i);
    const iovec v{text, n};
    const auto took = w.stack->tcp().send(*conn, {&v, 1}, how, w.now);
    if (took)
      sent += *took;
    else
      note(took.error());
  }
  /// Takes note of a failure that no call has been told of.
  void ask() {
    if (const int error = conn ? w.stack->tcp().peek_error(*conn) : 0) note(static_cast<Errno>(error));
  }
  /// Reads up to `n` bytes and compares them with what the peer sends. After the end only SO_ERROR tells of a
  /// failure: what this end had to send was not acknowledged.
  void receive(size_t n, const Side& peer) {
    if (!conn) return;
    if (ended) return ask();
    uint8_t text[8192];
    const iovec v{text, std::min(n, sizeof text)};
    if (v.iov_len == 0) return;
    const auto got = w.stack->tcp().receive(*conn, {&v, 1}, false, 0, w.now);
    if (!got) return note(got.error());
    if (*got == 0) {
      ended = true;
      require(failed || peer.gone || (peer.shut && received == peer.sent));
      return;
    }
    require(received + *got <= peer.sent);
    for (size_t i = 0; i < *got; ++i) require(text[i] == expected(peer.host, received + i));
    received += *got;
  }
  /// Takes all that there is, and what has become of the connection.
  void drain(const Side& peer) {
    for (size_t before = SIZE_MAX; before != received;) {
      before = received;
      receive(8192, peer);
    }
    ask();
  }
  /// A connection that opens is left alone: shutdown() would end it.
  void shut_down() {
    if (conn && !shut && w.stack->tcp().state(*conn) != TcpState::kSynSent &&
        w.stack->tcp().shutdown(*conn, SHUT_WR, w.now))
      shut = true;
  }
  void close(bool abort) {
    if (!conn) return;
    w.stack->tcp().close(conn, abort, w.now);
    conn = nullptr;
    gone = true;
  }
  /// The connection leaves the stack and comes back, as in a hand-over to another process.
  void move() {
    if (!conn) return;
    const auto snapshot = w.stack->tcp().snapshot(*conn, w.now);
    if (!snapshot) return;
    const TcpSettings settings = w.stack->tcp().settings(*conn);
    w.stack->tcp().forget(conn);
    auto again = w.stack->tcp().adopt(*snapshot, route(), settings, &w.owner, w.now);
    require(static_cast<bool>(again));
    conn = *again;
  }
  /// The first failure is the cause; EPIPE comes of it.
  void note(Errno e) {
    const int error = static_cast<int>(e);
    if (error != EAGAIN && error != ENOTCONN && failed == 0) failed = error;
  }

  const uint8_t host;  ///< the last byte of its addresses
  World w;
  const IpAddress address, other;
  TcpConn* conn = nullptr;
  size_t sent = 0, received = 0;
  bool shut = false, ended = false, gone = false;
  int failed = 0;
};

struct Pair {
  Side a{1, 2}, b{2, 1};
  TcpListener* listener = nullptr;
  std::vector<std::pair<Side*, Frame>> held;  ///< frames that the wire keeps, with their receivers

  Pair(uint8_t mode) {
    TcpSettings settings;
    if (mode & 1) settings.receive_buffer = 4096;
    if (mode & 2) settings.nodelay = true;
    if (mode & 4) settings.congestion = Congestion::kReno;
    if (mode & 8) settings.send_buffer = 4096;
    if (mode & 16) settings.congestion = Congestion::kBbr;
    if (mode & 32) settings.max_pacing_rate = 1'000'000;
    if (mode & 64) {
      StackConfig asking;
      asking.ecn_ask = true;
      a.w.stack->follow_host(asking);
    }
    listener = *b.w.stack->tcp().listen({b.address, 81}, false, false, 4, settings, &b.w.owner);
    a.conn = *a.w.stack->tcp().connect({a.address, 5000}, {b.address, 81}, a.route(), settings, &a.w.owner,
                                       a.w.now);
  }

  static void deliver(Side& to, const Frame& f) { to.w.receive(f.data(), f.size(), false); }

  /// What `from` has to send meets what the wire does to it: a byte of input for each frame; none: nothing.
  void carry(Side& from, Side& to, Input* in) {
    PacketQueue& q = from.w.stack->tx_queue(0);
    while (Packet* p = q.pop_front()) {
      Frame f;
      for (const Packet* part = p; part; part = part->more)
        f.insert(f.end(), part->data(), part->data() + part->length);
      FramePool::release(p);
      const uint8_t fate = in ? in->byte() : 0;
      switch (fate & 7) {
        case 7:
          if (fate & 8) break;  // lost
          deliver(to, f);
          deliver(to, f);
          break;
        case 6:
          if (held.size() < 32) held.emplace_back(&to, std::move(f));
          break;
        case 5:
          if (fate & 8) f[(fate >> 4) * 5u % f.size()] ^= 0x41;
          deliver(to, f);
          break;
        default:
          deliver(to, f);
      }
    }
  }
  void let_go(bool newest_first) {
    if (newest_first) std::reverse(held.begin(), held.end());
    for (auto& [to, f] : held) deliver(*to, f);
    held.clear();
  }
  void pass(Duration later, Input* in) {
    for (Side* s : {&a, &b}) s->w.pass(later);
    carry(a, b, in);
    carry(b, a, in);
    for (Side* s : {&a, &b}) s->w.pass(Duration{});
    if (!b.conn && !b.gone) b.conn = b.w.stack->tcp().accept(*listener);
  }

  void call(Side& s, Side& other, Input& in) {
    const uint8_t what = in.byte();
    switch (what % 16) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
        return s.send(in.word() % 8192, {(what & 16) != 0, false, (what & 32) != 0});
      case 5:
      case 6:
      case 7:
      case 8:
      case 9:
        return s.receive(in.word() % 8192, other);
      case 10:
      case 11:
      case 12:
        return s.move();
      case 13:
        if (what & 16) s.shut_down();
        return;
      case 14:
        if (what >= 0xf0) s.close(what & 1);
        return;
      default:
        return let_go(what & 16);
    }
  }

  /// A failure has a cause: somebody closed before all was read, or the wire lost all that was sent for so
  /// long. A listener's side that lost the handshake's last ACK as long has no connection, and resets; a side
  /// in TIME-WAIT that lost the peer's FINs as long has none either, but has all that was sent.
  void require_cause(const Side& s) const {
    const bool timed_out = a.failed == ETIMEDOUT || b.failed == ETIMEDOUT;
    if (s.failed == 0 || timed_out || a.gone || b.gone || b.conn == nullptr) return;
    const auto has_all = [](const Side& to, const Side& from) {
      return to.ended && from.shut && to.received == from.sent;
    };
    if (s.failed == ECONNRESET && has_all(a, b) && has_all(b, a)) return;
    fprintf(stderr, "host %d: error %d\n", s.host, s.failed);
    for (const Side* x : {&a, &b})
      fprintf(stderr, "host %d: sent %zu, received %zu, shut down %d, end seen %d, has a connection %d\n",
              x->host, x->sent, x->received, x->shut, x->ended, x->conn != nullptr);
    __builtin_trap();
  }
  bool done() const { return a.gone || b.gone || a.failed || b.failed || (a.ended && b.ended); }
  /// The wire is good from now on, and both ends read: all that was sent arrives, and then the end.
  void settle() {
    let_go(false);
    for (int i = 0; i < 4000 && !done(); ++i) {
      pass(i % 8 == 7 ? until_next() : Duration{1'000'000}, nullptr);
      for (Side* s : {&a, &b}) {
        s->receive(8192, s == &a ? b : a);
        s->shut_down();
      }
    }
    require(done());
    for (Side* s : {&a, &b}) s->drain(s == &a ? b : a);
    require_cause(a);
    require_cause(b);
    for (Side* s : {&a, &b}) s->close(false);
    for (int i = 0; i < 8; ++i) pass(Duration{i * 20'000'000'000}, nullptr);
  }
  Duration until_next() const {
    const Instant next = std::min(a.w.stack->next_deadline(), b.w.stack->next_deadline());
    return std::clamp<Duration>(next - a.w.now, Duration{1'000}, 130s);
  }
};

}  // namespace
}  // namespace accel::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace accel::fuzz;
  Input in{data, size};
  Pair pair(in.byte());
  while (in.size > 1) {
    const uint8_t what = in.byte();
    if (what < 96)
      pair.call(pair.a, pair.b, in);
    else if (what < 192)
      pair.call(pair.b, pair.a, in);
    pair.pass(accel::Duration(what < 250 ? 50'000 : in.word() * int64_t{100'000}), &in);
  }
  pair.settle();
  return 0;
}
