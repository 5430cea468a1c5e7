// Segments of a burst that are taken as one: what a program and a peer see is what they see without.
#include <gtest/gtest.h>

#include <map>

#include "seeds.h"
#include "sim.h"

namespace accel::sim {
namespace {

/// A stream from host 0 to host 1, whose device gathers frames for a while and tells of them as one burst.
struct World {
  World(uint64_t seed, Duration gathers_in, uint64_t bytes, HostOptions options = {})
      : sim(seed, 2, options),
        rng(seed),
        gathers(gathers_in),
        client(sim[0], 1, 2, bytes),
        server(sim[1], 2, 1, 0),
        acceptor(sim[1], {sim[1].v4(), 80}) {
    acceptor.accepted = [this](TcpConn* c) { server.attach(c); };
    sim.filter = [this](int host, std::span<const uint8_t> frame) {
      if (host != 0) return true;
      if (dropped(frame)) return false;
      gather(frame);
      if (rng.chance(duplicate)) gather(frame);
      return false;
    };
  }
  ~World() {
    for (Packet* p : gathered) FramePool::release(p);
  }

  bool dropped(std::span<const uint8_t> frame) {
    if (frame.size() < 1000) return false;
    ++texts;
    return texts == lost_text || rng.chance(loss);
  }

  void gather(std::span<const uint8_t> frame) {
    Packet* p = sim[1].pool.take();
    ASSERT_NE(p, nullptr);
    std::copy(frame.begin(), frame.end(), p->data());
    p->length = static_cast<uint32_t>(frame.size());
    gathered.push_back(p);
    const size_t n = gathered.size();
    if (n > 1 && rng.chance(reorder)) std::swap(gathered[n - 1], gathered[n - 2]);
    if (n > 1) return;
    sim.after(gathers, [this] {
      const auto burst = std::exchange(gathered, {});
      largest = std::max(largest, burst.size());
      sim[1].stack->on_packets(burst, 0, sim.now);
    });
  }

  void begin(TcpSettings settings = {}) {
    client.attach(*sim[0].stack->tcp().connect({sim[0].v4(), 4000}, {sim[1].v4(), 80},
                                               sim[0].route_to(sim[1]), settings,
                                               static_cast<Actor*>(&client), sim.now));
  }
  bool run(TcpSettings settings = {}) {
    begin(settings);
    return sim.run_until([&] { return client.finished() && server.finished(); }) && !server.wrong &&
           server.read == client.to_write;
  }

  Sim sim;
  Rng rng;
  const Duration gathers;
  double loss = 0, reorder = 0, duplicate = 0;
  int lost_text = 0;  ///< which of the large frames is lost, beside those of `loss`
  int texts = 0;
  size_t largest = 0;  ///< frames of a burst
  std::vector<Packet*> gathered;
  End client, server;
  Acceptor acceptor;
};

TEST(Runs, EverySegmentIsCounted) {
  World w(2, 1ms, 500'000);
  w.sim.tracing = true;
  w.server.close_when_done = false;
  w.begin();
  ASSERT_TRUE(w.sim.run_until([&] { return w.server.read == 500'000; }));
  const TcpInfo seen = w.sim[1].stack->tcp().info(*w.server.conn, w.sim.now);
  uint32_t texts = 0;
  for (const Sent& s : w.sim.sent_by(0)) texts += s.payload > 0;
  EXPECT_GT(w.largest, 40u);
  EXPECT_EQ(seen.data_segments_in, texts);
  EXPECT_EQ(seen.rcv_mss, 1448u);  // not the run's length
  EXPECT_EQ(w.sim[0].counter(Counter::tcp_retransmits), 0u);
}

/// Each segment that comes behind a gap has an ACK of its own, as without bursts: the first three at least.
TEST(Runs, NothingBehindAGapIsJoined) {
  World w(3, 1ms, 300'000);
  w.sim.tracing = true;
  w.lost_text = 40;
  ASSERT_TRUE(w.run());
  std::map<uint32_t, int> told;  // how often each number was acknowledged
  for (const Sent& s : w.sim.sent_by(1))
    if (s.payload == 0 && (s.flags & kSyn) == 0) ++told[s.ack];
  int most = 0;
  for (const auto& [ack, times] : told) most = std::max(most, times);
  EXPECT_GE(most, 4);
}

TEST(Runs, NothingIsLostOrChanged) {
  size_t largest = 0;
  for (uint64_t seed = first_seed(); seed < first_seed() + seeds(300); ++seed) {
    SCOPED_TRACE("ACCEL_SIM_SEEDS=1 ACCEL_SIM_FIRST=" + std::to_string(seed));
    Rng rng(seed);
    HostOptions options;
    options.config.timestamps = rng.chance(0.7);
    options.config.sack = rng.chance(0.8);
    World w(seed, Duration(1 + rng.below(2'000'000)), 200'000, options);
    if (rng.chance(0.5)) w.loss = static_cast<double>(rng.below(50)) / 1000;
    if (rng.chance(0.3)) w.reorder = static_cast<double>(rng.below(100)) / 1000;
    if (rng.chance(0.3)) w.duplicate = static_cast<double>(rng.below(50)) / 1000;
    if (rng.chance(0.3)) w.client.write_chunk = 3000;
    if (rng.chance(0.3)) w.server.read_pause = 3ms;
    TcpSettings settings;
    settings.nodelay = rng.chance(0.5);
    EXPECT_TRUE(w.run(settings));
    largest = std::max(largest, w.largest);
  }
  EXPECT_GT(largest, 30u);
}

}  // namespace
}  // namespace accel::sim
