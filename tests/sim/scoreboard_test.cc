// The SACK scoreboard before a hostile peer: an ACK costs no more where much is in flight.
#include <gtest/gtest.h>

#include <chrono>

#include "sim.h"
#include "stack/wire/tcp.h"

namespace accel::sim {
namespace {

using Blocks = std::vector<std::pair<uint32_t, uint32_t>>;

/// An ACK of nothing new from the peer of `c`, as a NIC that verifies checksums gives it.
Packet* sack_frame(Host& host, Host& peer, const TcpConn& c, const Blocks& blocks) {
  Packet* p = host.pool.take();
  uint8_t* d = p->data();
  const auto options = static_cast<uint32_t>(12 + 4 + 8 * blocks.size());
  std::fill_n(d, 54 + options, uint8_t{0});
  std::copy_n(host.mac().begin(), 6, d);
  std::copy_n(peer.mac().begin(), 6, d + 6);
  d[12] = 8;
  uint8_t* ip = d + 14;
  ip[0] = 0x45;
  ip[3] = static_cast<uint8_t>(40 + options);
  ip[8] = 64;
  ip[9] = 6;
  std::copy_n(c.remote.address.v4_bytes(), 4, ip + 12);
  std::copy_n(c.local.address.v4_bytes(), 4, ip + 16);
  auto& tcp = wire_at<TcpHeader>(ip + 20);
  tcp.source = c.remote.port;
  tcp.destination = c.local.port;
  tcp.sequence = c.rcv_nxt;
  tcp.acknowledgment = c.snd_una;
  tcp.data_offset = static_cast<uint8_t>((20 + options) / 4 << 4);
  tcp.flags = kAck;
  tcp.window = 65535;
  uint8_t* o = ip + 40;
  store_be32(o, 0x0101080a);
  store_be32(o + 4, c.ts_recent);
  o[12] = o[13] = 1;
  o[14] = 5;
  o[15] = static_cast<uint8_t>(2 + 8 * blocks.size());
  o += 16;
  for (auto [begin, end] : blocks) {
    store_be32(o, begin);
    store_be32(o + 4, end);
    o += 8;
  }
  p->length = 54 + options;
  p->checksum_good = true;
  return p;
}

/// A connection with so many segments of 76 bytes in flight, and what its ACKs cost in real time.
struct InFlight {
  explicit InFlight(uint32_t segments) : pairs(sim, small_segments()), pair(pairs.connect()) {
    sim.run_for(1s);
    TcpConn& c = *pair.a;
    c.cwnd = c.snd_wnd = 1 << 30;
    sim[0].link.cut = true;
    const std::string text(76 * segments, 'x');
    EXPECT_TRUE(write(sim[0], &c, text));
    EXPECT_TRUE(sim.run_until([&] { return c.sent.size() == segments; }, 100ms));
  }
  static HostOptions no_restart() {
    HostOptions o;
    o.config.slow_start_after_idle = false;
    o.config.receive_buffer = o.config.send_buffer = 2 << 20;
    return o;
  }
  static PairOptions small_segments() {
    PairOptions o;
    o.a.max_segment = 88;
    return o;
  }
  uint32_t at(uint32_t segment) const { return pair.a->snd_una + 76 * segment; }
  void give(const Blocks& blocks) {
    Packet* p = sack_frame(sim[0], sim[1], *pair.a, blocks);
    sim[0].stack->on_packets({&p, 1}, 0, sim.now);
  }
  template <class F>
  double cost(F blocks_of) {
    double least = 1e9;
    uint32_t number = 0;
    for (int trial = 0; trial < 5; ++trial) {
      const auto began = std::chrono::steady_clock::now();
      for (int i = 0; i < 20; ++i) {
        sim.now += 10us;
        give(blocks_of(number++));
      }
      const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - began;
      least = std::min(least, took.count() / 20);
    }
    return least;
  }

  Sim sim{1, 2, no_restart()};
  Pairs pairs;
  Pair pair;
};

TEST(Scoreboard, AnAckCostsTheSameHoweverMuchIsInFlight) {
  double cost_of_few[2] = {};
  for (const uint32_t n : {200u, 12000u}) {
    InFlight f(n);
    const double whole = f.cost([&](uint32_t) {
      return Blocks{{f.at(n - 2), f.at(n - 1)}, {f.at(4), f.at(n - 4)}, {f.at(1), f.at(2)}};
    });
    EXPECT_EQ(f.pair.a->sacked_segments, n - 8 + 2);
    InFlight g(n);
    const double one = g.cost([&](uint32_t i) { return Blocks{{g.at(n - 150 + i), g.at(n - 149 + i)}}; });
    EXPECT_EQ(g.pair.a->sacked_segments, 100u);
    if (n == 200) {
      cost_of_few[0] = whole;
      cost_of_few[1] = one;
      continue;
    }
    EXPECT_LT(whole, 8 * cost_of_few[0] + 2);  // µs; a walk is 60 times as long
    EXPECT_LT(one, 8 * cost_of_few[1] + 2);
  }
}

}  // namespace
}  // namespace accel::sim
