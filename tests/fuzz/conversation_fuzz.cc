// Segments of one flow with sequence numbers near those expected, mixed with the application's calls and
// time: reaches every state. Each step is one byte of choice and its arguments.
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "stack/wire/eth.h"
#include "stack/wire/ipv4.h"
#include "stack/wire/tcp.h"
#include "world.h"

namespace accel::fuzz {
namespace {

TcpWrite write_of(uint8_t bits) { return {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0}; }

struct Conversation {
  World w;
  TcpConn* conn = nullptr;
  uint32_t peer_seq = 1000;  ///< the peer's next byte
  uint32_t stack_seq = 0;    ///< one past the last that the stack sent
  static constexpr uint16_t kPeerPort = 4000;

  /// Looks at what the stack sent, so that ACKs can be near the truth.
  void look() {
    PacketQueue& q = w.stack->tx_queue(0);
    while (Packet* p = q.pop_front()) {
      if (p->length >= 54 && p->data()[23] == 6) {
        const auto& tcp = wire_at<TcpHeader>(p->data() + 34);
        stack_seq = tcp.sequence + p->total() - 34 - (tcp.data_offset >> 4) * 4u;
        if (tcp.flags & 3) ++stack_seq;
      }
      FramePool::release(p);
    }
  }

  /// The peer's part of a handshake, without timestamps, so that segments need none.
  void shake_hands(uint16_t local_port, bool active) {
    uint8_t syn[] = {static_cast<uint8_t>(active ? 0x12 : 0x02),
                     0,
                     0,
                     0,
                     0,
                     0xff,
                     0xff,
                     3,
                     0,
                     0,
                     0,
                     2,
                     4,
                     5,
                     0xb4,
                     4,
                     2,
                     1,
                     3,
                     3,
                     7,
                     0,
                     0};  // MSS 1460, SACK permitted, scale 7
    Input first{syn, sizeof syn};
    segment(first, local_port);
    uint8_t ack[] = {0x10, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0};
    Input second{ack, sizeof ack};
    if (!active) segment(second, local_port);
  }

  void segment(Input& in, uint16_t local_port) {
    uint8_t f[1600] = {2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00, 0x45};
    auto& ip = wire_at<Ipv4Header>(f + 14);
    const uint8_t flags = in.byte();
    const auto seq_off = static_cast<int16_t>(in.word()), ack_off = static_cast<int16_t>(in.word());
    const uint16_t window = in.word();
    const uint8_t option_words = in.byte() % 11;
    const uint16_t payload = in.word() % 1400;
    ip.tos = in.byte() & 3;
    ip.total_length = static_cast<uint16_t>(20 + 20 + option_words * 4 + payload);
    ip.ttl = 64;
    ip.protocol = 6;
    ip.source = {10, 0, 0, 2};
    ip.destination = {10, 0, 0, 1};
    auto& tcp = wire_at<TcpHeader>(f + 34);
    tcp.source = kPeerPort;
    tcp.destination = local_port;
    const uint32_t seq = peer_seq + static_cast<uint32_t>(seq_off % 3000);
    tcp.sequence = seq;
    tcp.acknowledgment = stack_seq + static_cast<uint32_t>(ack_off % 3000);
    tcp.data_offset = static_cast<uint8_t>((5 + option_words) << 4);
    tcp.flags = flags;
    tcp.window = window;
    tcp.urgent = payload;
    for (int i = 0; i < option_words * 4; ++i) f[54 + i] = in.byte();
    w.receive(f, 54u + option_words * 4u + payload, true);
    if (seq_off == 0) peer_seq += payload + ((flags & 3) ? 1u : 0u);
    w.pass(1us);
    look();
  }

  void call(Input& in) {
    if (!conn) return;
    uint8_t buffer[4096] = {};
    const iovec v{buffer, in.word() % sizeof buffer};
    switch (in.byte() % 9) {
      case 0:
      case 1:
        (void)w.stack->tcp().send(*conn, {&v, 1}, write_of(in.byte()), w.now);
        break;
      case 2:
      case 3:
        (void)w.stack->tcp().receive(*conn, {&v, 1}, in.byte() & 1, in.byte() & 7, w.now);
        break;
      case 4:
        (void)w.stack->tcp().discard(*conn, v.iov_len, w.now);
        break;
      case 5:
        (void)w.stack->tcp().receive_urgent(*conn, buffer, in.byte() & 1);
        break;
      case 6:
        (void)w.stack->tcp().shutdown(*conn, in.byte() % 3, w.now);
        break;
      case 7:
        if (auto s = w.stack->tcp().snapshot(*conn, w.now)) {
          w.stack->tcp().forget(conn);
          auto again = w.stack->tcp().adopt(*s, route(), {}, &w.owner, w.now);
          conn = again ? *again : nullptr;
        }
        break;
      default:
        w.stack->tcp().close(conn, in.byte() & 1, w.now);
        conn = nullptr;
    }
  }

  static Route route() {
    Route r;
    r.source = IpAddress::v4(0x0a000001);
    r.next_hop = IpAddress::v4(0x0a000002);
    return r;
  }
};

}  // namespace
}  // namespace accel::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace accel;
  using namespace accel::fuzz;
  Conversation c;
  Input in{data, size};
  c.w.stack->set_neighbour(0, IpAddress::v4(0x0a000002), MacAddress{2, 0, 0, 0, 0, 2});
  uint16_t local_port = 80;
  TcpListener* listener =
      *c.w.stack->tcp().listen({IpAddress::v4(0x0a000001), 81}, false, false, 4, {}, &c.w.owner);
  const uint8_t mode = in.byte();
  if (mode & 1) {
    local_port = 5000;
    c.conn = *c.w.stack->tcp().connect({IpAddress::v4(0x0a000001), local_port},
                                       {IpAddress::v4(0x0a000002), c.kPeerPort}, Conversation::route(), {},
                                       &c.w.owner, c.w.now);
  } else {
    local_port = 81;
  }
  c.w.pass(1us);
  c.look();
  if (mode & 2) c.shake_hands(local_port, mode & 1);
  while (in.size > 1) {
    if (!c.conn && local_port == 81) c.conn = c.w.stack->tcp().accept(*listener);
    const uint8_t what = in.byte();
    if (what < 160)
      c.segment(in, local_port);
    else if (what < 220)
      c.call(in);
    else
      c.w.pass(Duration(in.word()) * 1'000'000);
    c.look();
  }
  for (int i = 0; i < 8; ++i) {
    c.w.pass(50s);
    c.look();
  }
  return 0;
}
