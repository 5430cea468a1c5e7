// Segmentation by the device: what is on the wire is what the stack would have cut itself, byte for byte.
#include <gtest/gtest.h>

#include "seeds.h"
#include "sim.h"

namespace accel::sim {
namespace {

struct OnWire {
  Instant at;
  int host;
  std::vector<uint8_t> bytes;
  bool operator==(const OnWire&) const = default;
};

struct Outcome {
  std::vector<OnWire> frames;
  uint64_t cut_frames = 0, retransmits = 0;
  bool good = false;
};

/// A stream from host 0 to host 1 in a world that the seed makes; in the same world with and without `tso`.
Outcome run(uint64_t seed, bool tso) {
  Rng rng(seed);
  HostOptions options;
  options.mtu = rng.chance(0.2) ? 9000 : 1500;
  options.tx_checksum = rng.chance(0.5);
  options.tso = tso;
  if (rng.chance(0.5)) options.tso_max = 128 << 10;
  options.config.receive_buffer = rng.chance(0.3) ? 20000 : 262144;
  Sim sim(seed, 2, options);
  const bool v6 = rng.chance(0.5);
  TcpSettings settings;
  settings.nodelay = rng.chance(0.5);
  settings.congestion = Congestion(rng.below(2));  // bursts of BBR end where frames do
  if (rng.chance(0.2)) settings.max_segment = 300;
  Link& link = sim[0].link;
  link.delay = Duration(rng.below(5'000'000));
  if (rng.chance(0.5)) link.loss = static_cast<double>(rng.below(50)) / 1000;
  if (rng.chance(0.3)) link.reorder = static_cast<double>(rng.below(100)) / 1000;
  if (rng.chance(0.3)) link.bits_per_second = 100'000'000;
  sim[1].link.delay = link.delay;

  Outcome result;
  sim.filter = [&](int host, std::span<const uint8_t> frame) {
    result.frames.push_back({sim.now, host, {frame.begin(), frame.end()}});
    return true;
  };
  End client(sim[0], 1, 2, 300'000), server(sim[1], 2, 1, 0);
  if (rng.chance(0.3)) client.write_chunk = 2000;
  Acceptor acceptor(sim[1], {v6 ? sim[1].v6() : sim[1].v4(), 80});
  acceptor.accepted = [&](TcpConn* c) { server.attach(c); };
  client.attach(*sim[0].stack->tcp().connect(
      {v6 ? sim[0].v6() : sim[0].v4(), 4000}, {v6 ? sim[1].v6() : sim[1].v4(), 80},
      sim[0].route_to(sim[1], v6), settings, static_cast<Actor*>(&client), sim.now));
  result.good = sim.run_until([&] { return client.finished() && server.finished(); }) && !server.wrong &&
                server.read == client.to_write;
  result.cut_frames = sim[0].cut_frames;
  result.retransmits = sim[0].counter(Counter::tcp_retransmits);
  return result;
}

TEST(Segmentation, TheWireCannotTell) {
  uint64_t cut_frames = 0, retransmits = 0;
  for (uint64_t seed = first_seed(); seed < first_seed() + seeds(200); ++seed) {
    SCOPED_TRACE("ACCEL_SIM_SEEDS=1 ACCEL_SIM_FIRST=" + std::to_string(seed));
    const Outcome plain = run(seed, false), offloaded = run(seed, true);
    EXPECT_TRUE(plain.good);
    EXPECT_TRUE(offloaded.good);
    EXPECT_EQ(plain.cut_frames, 0u);
    cut_frames += offloaded.cut_frames;
    retransmits += offloaded.retransmits;
    ASSERT_EQ(plain.frames.size(), offloaded.frames.size());
    for (size_t i = 0; i < plain.frames.size(); ++i)
      ASSERT_EQ(plain.frames[i], offloaded.frames[i]) << "frame " << i;
  }
  EXPECT_GT(cut_frames, 0u);
  EXPECT_GT(retransmits, 0u);
}

struct Gathering : testing::Test {
  /// Sizes of the TCP payloads in the frames that the stack of host 0 hands to its device after `call`.
  std::vector<uint32_t> handed(const std::function<void()>& call) {
    call();
    sim[0].stack->flush(sim.now);
    std::vector<uint32_t> sizes;
    for (const Packet* p = sim[0].stack->tx_queue(0).front(); p; p = p->next)
      sizes.push_back(p->total() - 14 - 20 - 32);
    sim.run_for(1s);
    return sizes;
  }
  static HostOptions options(uint32_t frames = 4096) {
    HostOptions o;
    o.tso = true;
    o.frames = frames;
    o.config.receive_buffer = o.config.send_buffer = 1 << 20;
    return o;
  }
  Pair open(PairOptions o = {}) {
    pairs = std::make_unique<Pairs>(sim, o);
    Pair p = pairs->connect();
    p.a->cwnd = p.a->snd_wnd = p.a->max_window = 1u << 20;
    return p;
  }
  using Sizes = std::vector<uint32_t>;
  Sim sim{1, 2, options()};
  std::unique_ptr<Pairs> pairs;
};

TEST_F(Gathering, WholeSegmentsAndWhatWouldLeaveAnyway) {
  Pair p = open();
  const std::string text(200'000, 'x');
  // 45 segments are what IP's length holds; the last partial one goes with the rest, since it may go at all.
  EXPECT_EQ(handed([&] { (void)write(sim[0], p.a, text); }), (Sizes{45 * 1448, 45 * 1448, 45 * 1448, 4520}));
  EXPECT_EQ(handed([&] { (void)write(sim[0], p.a, "one"); }), (Sizes{3}));
}

TEST_F(Gathering, LeavesBackWhatCorkHolds) {
  PairOptions o;
  o.a.cork = true;
  Pair p = open(o);
  EXPECT_EQ(handed([&] { (void)write(sim[0], p.a, std::string(3 * 1448 + 100, 'x')); }), (Sizes{3 * 1448}));
}

TEST_F(Gathering, StopsAtTheCongestionWindow) {
  Pair p = open();
  p.a->cwnd = 10 * 1448;
  EXPECT_EQ(handed([&] { (void)write(sim[0], p.a, std::string(100'000, 'x')); }), (Sizes{10 * 1448}));
}

TEST_F(Gathering, StopsBehindPshAndAtARecordsEnd) {
  Pair p = open();
  p.a->max_window = 8 * 1448;  // buffers of 4 segments, and PSH on every second one
  EXPECT_EQ(handed([&] { (void)write(sim[0], p.a, std::string(20 * 1448, 'x')); }),
            (Sizes{8 * 1448, 8 * 1448, 4 * 1448}));
  EXPECT_EQ(handed([&] {
              (void)write(sim[0], p.a, std::string(2 * 1448 + 9, 'x'), {.more = true, .record_end = true});
              (void)write(sim[0], p.a, std::string(1448, 'x'));
            }),
            (Sizes{2 * 1448, 9, 1448}));
}

TEST_F(Gathering, SmallSegmentsMakeNoEndlessBurst) {
  PairOptions o;
  o.a.max_segment = 112;
  Pair p = open(o);
  EXPECT_EQ(handed([&] { (void)write(sim[0], p.a, std::string(10'000, 'x')); }), (Sizes{9600, 400}));
}

TEST_F(Gathering, UrgentDataGoesSegmentBySegment) {
  Pair p = open();
  const std::string text(3000, 'x');
  const iovec v{const_cast<char*>(text.data()), text.size()};
  EXPECT_EQ(handed([&] {
              (void)sim[0].stack->tcp().send(*p.a, {&v, 1}, {.urgent = true}, sim.now);
            }),
            (Sizes{1448, 1448, 104}));
}

TEST_F(Gathering, APoolThatRunsShortGivesSingleSegments) {
  Pair p = open();
  std::vector<Packet*> taken;
  while (sim[0].pool.available() > 2048) taken.push_back(sim[0].pool.take());
  EXPECT_EQ(handed([&] { (void)write(sim[0], p.a, std::string(2 * 1448, 'x')); }), (Sizes{1448, 1448}));
  for (Packet* packet : taken) FramePool::release(packet);
}

}  // namespace
}  // namespace accel::sim
