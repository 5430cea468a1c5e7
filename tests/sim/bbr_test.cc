// BBR (version 1): what it makes of paths that CUBIC cannot use, the queue that it leaves, and its phases as
// times on the wire.
#include <gtest/gtest.h>

#include "sim.h"

namespace accel::sim {
namespace {

/// A path, what crosses it, and how it should: data, so that a regression is a difference.
struct Path {
  const char* name;
  uint64_t bits_per_second;
  Duration round_trip;
  double queue;  ///< in bandwidth-delay products
  double loss;
  double reorder;
  double least_share;  ///< of the rate, from the third second on
  double most_lost;    ///< of the frames, by the queue
  double most_rtt;     ///< smoothed, in round trips of the path
};
void PrintTo(const Path& p, std::ostream* out) { *out << p.name; }

const Path kPaths[] = {
    {"50 Mb/s, 20 ms", 50'000'000, 20ms, 1, 0, 0, 0.9, 0.001, 1.6},
    {"20 Mb/s, 100 ms", 20'000'000, 100ms, 1, 0, 0, 0.85, 0.01, 1.6},
    {"100 Mb/s, 20 ms, long queue", 100'000'000, 20ms, 4, 0, 0, 0.9, 0, 1.6},
    {"100 Mb/s, 20 ms, short queue", 100'000'000, 20ms, 0.25, 0, 0, 0.85, 0.12, 1.3},
    {"100 Mb/s, 10 ms, a loss in a hundred", 100'000'000, 10ms, 1, 0.01, 0, 0.85, 0.01, 1.7},
    {"20 Mb/s, 50 ms, a loss in twenty", 20'000'000, 50ms, 1, 0.05, 0, 0.7, 0.02, 1.7},
    {"100 Mb/s, 20 ms, reordered", 100'000'000, 20ms, 1, 0, 0.02, 0.8, 0.01, 1.7},
    {"500 Mb/s, 5 ms, as long as five bursts", 500'000'000, 5ms, 1, 0, 0, 0.85, 0.01, 2.1},
};

HostOptions roomy() {
  HostOptions o;
  o.frames = 16384;
  o.buffer_size = 2048;
  o.config.receive_buffer = o.config.send_buffer = 8 << 20;
  return o;
}

struct Flow {
  Flow(Sim& sim_in, uint16_t port, Congestion congestion)
      : sim(sim_in), client(sim_in[0], 1, 2, 4'000'000'000) {
    TcpSettings settings;
    settings.congestion = congestion;
    client.attach(*sim[0].stack->tcp().connect({sim[0].v4(), port}, {sim[1].v4(), 80},
                                               sim[0].route_to(sim[1]), settings,
                                               static_cast<Actor*>(&client), sim.now));
  }
  TcpInfo info() { return sim[0].stack->tcp().info(*client.conn, sim.now); }
  Sim& sim;
  End client;
};

/// Flows of host 0 to host 1 by one link.
struct World {
  explicit World(const Path& path, uint64_t seed = 3) : sim(seed, 2, roomy()) {
    sim.links([&](Link& l) { l.delay = path.round_trip / 2; });
    const double product = static_cast<double>(path.bits_per_second) / 8 *
                           std::chrono::duration<double>(path.round_trip).count();
    sim[0].link.bits_per_second = path.bits_per_second;
    sim[0].link.queue_frames = static_cast<uint32_t>(path.queue * product / 1538);
    sim[0].link.loss = path.loss;
    sim[0].link.reorder = path.reorder;
    acceptor.accepted = [this](TcpConn* c) {
      servers.push_back(std::make_unique<End>(sim[1], 2, 1, 0));
      servers.back()->attach(c);
    };
  }
  Flow& open(Congestion congestion = Congestion::kBbr) {
    flows.push_back(std::make_unique<Flow>(sim, static_cast<uint16_t>(4000 + flows.size()), congestion));
    sim.run_for(sim[0].link.delay * 3);
    return *flows.back();
  }
  /// Bits/s of text that arrive of each.
  std::vector<double> rates_of(Duration d) {
    std::vector<uint64_t> before;
    for (const auto& s : servers) before.push_back(s->read);
    sim.run_for(d);
    std::vector<double> rates;
    for (size_t i = 0; i < servers.size(); ++i)
      rates.push_back(static_cast<double>(servers[i]->read - before[i]) * 8 /
                      std::chrono::duration<double>(d).count());
    return rates;
  }
  uint64_t text_in_flight(Duration d) {
    uint64_t least = ~0ull;
    const Instant end = sim.now + d;
    while (sim.now < end) {
      sim.run_for(1ms);
      least = std::min<uint64_t>(least, flows[0]->client.conn->pipe());
    }
    return least;
  }
  Sim sim;
  Acceptor acceptor{sim[1], {sim[1].v4(), 80}};
  std::vector<std::unique_ptr<Flow>> flows;
  std::vector<std::unique_ptr<End>> servers;
};

struct BbrPaths : testing::TestWithParam<Path> {};
INSTANTIATE_TEST_SUITE_P(Paths, BbrPaths, testing::ValuesIn(kPaths));

TEST_P(BbrPaths, AreFilledWithoutFillingTheirQueues) {
  const Path& path = GetParam();
  World world(path);
  Flow& flow = world.open();
  world.sim.run_for(3s);
  const uint64_t lost = world.sim[0].lost_frames, sent = flow.info().data_segments_out;
  const double rate = world.rates_of(6s)[0];
  EXPECT_GT(rate, path.least_share * static_cast<double>(path.bits_per_second) * 1448 / 1538);
  const auto frames = static_cast<double>(flow.info().data_segments_out - sent);
  EXPECT_LE(static_cast<double>(world.sim[0].lost_frames - lost),
            (path.most_lost + 1.3 * path.loss) * frames);
  EXPECT_LT(flow.info().rtt_us, path.most_rtt * static_cast<double>(path.round_trip / 1us));
  EXPECT_EQ(world.sim[0].counter(Counter::tcp_timeouts), 0u);
  EXPECT_LE(world.sim[0].counter(Counter::tcp_retransmits),
            world.sim[0].lost_frames + world.sim[0].lost_frames / 10 + 20);
}

/// Section 4.3.5: after ten seconds without a shorter round trip the flight is four segments for 200 ms.
TEST(Bbr, ProbesForTheShortestRoundTrip) {
  World world({"", 50'000'000, 20ms, 4, 0, 0, 0, 0, 0});
  world.open();
  world.sim.run_for(4s);
  EXPECT_GT(world.text_in_flight(5s), 60u * 1448) << "half of the product at least";
  EXPECT_LE(world.text_in_flight(3s), 4u * 1448);
  world.sim.run_for(500ms);
  EXPECT_GT(world.rates_of(4s)[0], 40e6);
}

/// Section 4.2.1: what leaves within a millisecond is what the rate allows.
TEST(Bbr, SendsNoBursts) {
  World world({"", 50'000'000, 20ms, 4, 0, 0, 0, 0, 0});
  world.open();
  world.sim.run_for(3s);
  world.sim.tracing = true;
  world.sim.clear_trace();
  world.sim.run_for(2s);
  const std::vector<Sent> sent = world.sim.sent_by(0);
  uint64_t most = 0, now = 0;
  for (size_t first = 0, last = 0; last < sent.size(); ++last) {
    now += sent[last].payload;
    while (sent[last].at - sent[first].at >= 1ns) now -= sent[first++].payload;
    most = std::max(most, now);
  }
  EXPECT_LE(most, 50'000'000 / 8 / 1000 * 5 / 4) << "of the phase that probes for more";
  EXPECT_GT(most, 2u * 1448);
}

/// A path that becomes wider, and narrower.
TEST(Bbr, FollowsThePath) {
  World world({"", 20'000'000, 20ms, 2, 0, 0, 0, 0, 0});
  Flow& flow = world.open();
  world.sim.run_for(4s);
  world.sim[0].link.bits_per_second = 80'000'000;
  world.sim.run_for(5s);
  EXPECT_GT(world.rates_of(3s)[0], 50e6);
  world.sim[0].link.bits_per_second = 20'000'000;
  world.sim.run_for(5s);
  EXPECT_GT(world.rates_of(3s)[0], 16e6);
  EXPECT_LT(flow.info().pacing_rate * 8, 30'000'000u);
}

TEST(Bbr, GoesOnAfterABlackout) {
  World world({"", 20'000'000, 20ms, 2, 0, 0, 0, 0, 0});
  world.open();
  world.sim.run_for(3s);
  world.sim.links([](Link& l) { l.cut = true; });
  world.sim.run_for(500ms);  // two timeouts: a third one would make segments smaller
  world.sim.links([](Link& l) { l.cut = false; });
  world.sim.run_for(4s);
  EXPECT_GT(world.sim[0].counter(Counter::tcp_timeouts), 0u);
  EXPECT_GT(world.rates_of(3s)[0], 16e6);
}

/// An application that pauses loses nothing of what is known of the path.
TEST(Bbr, KeepsItsRateOverPauses) {
  World world({"", 50'000'000, 20ms, 2, 0, 0, 0, 0, 0});
  Pairs pairs(world.sim, [] {
    PairOptions o;
    o.a.congestion = Congestion::kBbr;
    o.port_b = 81;
    return o;
  }());
  const Pair p = pairs.connect();
  auto send = [&](size_t bytes) {
    const std::string block(65536, 'x');
    size_t given = 0, got = 0;
    const Instant begun = world.sim.now;
    world.sim.run_until([&] {
      while (given < bytes) {
        auto n = write(world.sim[0], p.a,
                       std::string_view(block).substr(0, std::min(block.size(), bytes - given)));
        if (!n) break;
        given += *n;
      }
      while (auto r = read(world.sim[1], p.b)) {
        if (r->empty()) break;
        got += r->size();
      }
      return got == bytes;
    });
    return static_cast<double>(bytes) * 8 / std::chrono::duration<double>(world.sim.now - begun).count();
  };
  EXPECT_GT(send(20'000'000), 40e6);
  int slow = 0;  // one may come when the shortest round trip is due
  for (int i = 0; i < 6; ++i) {
    world.sim.run_for(3s);
    slow += send(2'000'000) < 40e6;
  }
  EXPECT_LE(slow, 1);
}

TEST(Bbr, SharesEvenlyWithItsOwn) {
  World world({"", 50'000'000, 20ms, 2, 0, 0, 0, 0, 0});
  world.open();
  world.sim.run_for(4s);
  world.open();
  world.sim.run_for(25s);
  const auto rates = world.rates_of(30s);
  const double sum = rates[0] + rates[1];
  EXPECT_GT(sum * sum / (2 * (rates[0] * rates[0] + rates[1] * rates[1])), 0.9);
  EXPECT_GT(sum, 42e6);
}

/// A policer: 10 Mb/s in the mean, 200 KB at once, and what exceeds it is gone. Its rate is found, so that
/// few frames are lost once it is known.
TEST(Bbr, FindsAPolicersRate) {
  World world({"", 100'000'000, 20ms, 1, 0, 0, 0, 0, 0});
  world.sim[0].link.queue_frames = 2000;
  double tokens = 200'000;
  Instant at = world.sim.now;
  uint64_t policed = 0;
  world.sim.filter = [&](int host, std::span<const uint8_t> f) {
    if (host != 0) return true;
    tokens =
        std::min(200'000.0, tokens + std::chrono::duration<double>(world.sim.now - at).count() * 10e6 / 8);
    at = world.sim.now;
    const auto size = static_cast<double>(f.size());
    if (tokens < size) return ++policed, false;
    tokens -= size;
    return true;
  };
  Flow& flow = world.open();
  world.sim.run_for(1s);
  const uint64_t before = policed, sent = flow.info().data_segments_out;
  const double rate = world.rates_of(10s)[0];
  EXPECT_GT(rate, 7e6);
  const auto lost = static_cast<double>(policed - before);
  EXPECT_LT(lost / static_cast<double>(flow.info().data_segments_out - sent), 0.07)
      << "0.09 where it is not looked for";
}

TEST(Bbr, MayBeChosenAndLeftWithinAConnection) {
  World world({"", 50'000'000, 20ms, 1, 0.01, 0, 0, 0, 0});
  Flow& flow = world.open(Congestion::kCubic);
  TcpLayer& tcp = world.sim[0].stack->tcp();
  world.sim.run_for(3s);
  const double cubic = world.rates_of(3s)[0];
  tcp.settings(*flow.client.conn).congestion = Congestion::kBbr;
  tcp.settings_changed(*flow.client.conn, world.sim.now);
  world.sim.run_for(3s);
  const double bbr = world.rates_of(3s)[0];
  EXPECT_LT(cubic, 25e6);
  EXPECT_GT(bbr, 38e6);
  tcp.settings(*flow.client.conn).congestion = Congestion::kCubic;
  tcp.settings_changed(*flow.client.conn, world.sim.now);
  world.sim.run_for(3s);
  EXPECT_LT(world.rates_of(3s)[0], 25e6);
}

TEST(Bbr, HeedsTheLimitOfSoMaxPacingRate) {
  World world({"", 50'000'000, 20ms, 1, 0, 0, 0, 0, 0});
  Flow& flow = world.open();
  TcpLayer& tcp = world.sim[0].stack->tcp();
  tcp.settings(*flow.client.conn).max_pacing_rate = 1'000'000;
  tcp.settings_changed(*flow.client.conn, world.sim.now);
  world.sim.run_for(2s);
  const double rate = world.rates_of(4s)[0];
  EXPECT_LT(rate, 8.2e6);
  EXPECT_GT(rate, 7e6);
}

}  // namespace
}  // namespace accel::sim
