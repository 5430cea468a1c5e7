// Pacing, as times on the wire, and the delivery rates that TCP_INFO tells.
#include <gtest/gtest.h>

#include "sim.h"

namespace accel::sim {
namespace {

constexpr uint32_t kSegment = 1448;
constexpr size_t kUnpaced = 10;  // segments that leave as they are

struct Text {
  Duration at;
  uint32_t bytes;
};

std::vector<Text> text_of(const Sim& sim, int host) {
  std::vector<Text> out;
  for (const Sent& s : sim.sent_by(host))
    if (s.payload > 0) out.push_back({s.at - sim.trace_start, s.payload});
  return out;
}

/// Writes so much as the buffer takes, until all is given.
void give(Sim& sim, TcpConn* c, size_t bytes, Duration limit = 60s) {
  size_t given = 0;
  const std::string block(65536, 'x');
  sim.run_until(
      [&] {
        while (given < bytes) {
          auto n = write(sim[0], c, std::string_view(block).substr(0, std::min(block.size(), bytes - given)));
          if (!n) break;
          given += *n;
        }
        return given == bytes && sim[0].stack->tcp().all_acked(*c);
      },
      limit);
}

/// The other end reads all.
struct Reader : Actor {
  explicit Reader(Host& host_in) : host(host_in) {}
  void on_ready(uint32_t) override {
    while (auto r = read(host, conn))
      if (r->empty()) break;
  }
  Host& host;
  TcpConn* conn = nullptr;
};

struct Paced : testing::Test {
  Pair open(uint64_t rate, HostOptions options = {}) {
    options.frames = 16384;
    pairs.reset();
    sim = std::make_unique<Sim>(3, 2, options);
    sim->tracing = true;
    PairOptions pair_options;
    pair_options.a.max_pacing_rate = rate;
    pair_options.a.nodelay = true;
    pairs = std::make_unique<Pairs>(*sim, pair_options);
    const Pair p = pairs->connect();
    reader = std::make_unique<Reader>((*sim)[1]);
    reader->conn = p.b;
    p.b->owner = static_cast<Actor*>(reader.get());
    sim->clear_trace();
    return p;
  }
  /// The most bytes that left within any time of `d`, from the `from`th segment on.
  uint64_t most_within(Duration d, size_t from) {
    const std::vector<Text> text = text_of(*sim, 0);
    uint64_t most = 0, now = 0;
    for (size_t first = from, last = from; last < text.size(); ++last) {
      now += text[last].bytes;
      while (text[last].at - text[first].at >= d) now -= text[first++].bytes;
      most = std::max(most, now);
    }
    return most;
  }
  double rate_from(size_t from) {
    const std::vector<Text> text = text_of(*sim, 0);
    uint64_t bytes = 0;
    for (size_t i = from; i + 1 < text.size(); ++i) bytes += text[i].bytes;
    return static_cast<double>(bytes) / std::chrono::duration<double>(text.back().at - text[from].at).count();
  }
  std::unique_ptr<Sim> sim;
  std::unique_ptr<Pairs> pairs;
  std::unique_ptr<Reader> reader;
};

TEST_F(Paced, LeavesAtTheRateInBurstsOfAMillisecond) {
  for (const uint64_t rate : {200'000u, 1'000'000u, 10'000'000u, 50'000'000u})
    for (const bool tso : {false, true}) {
      SCOPED_TRACE(std::to_string(rate) + (tso ? " with TSO" : ""));
      HostOptions options;
      options.tso = options.tx_checksum = tso;
      const Pair p = open(rate, options);
      give(*sim, p.a, rate * 2);
      EXPECT_EQ((*sim)[0].counter(Counter::tcp_retransmits), 0u);
      // Behind slow start, which paces by twice its window where that is less. A tick of the timers is 262
      // us.
      const size_t from = text_of(*sim, 0).size() / 4;
      EXPECT_NEAR(rate_from(from), static_cast<double>(rate), static_cast<double>(rate) * 0.02);
      // What is late is made good by another burst.
      EXPECT_LE(most_within(1ns, kUnpaced), std::max<uint64_t>(rate / 1000, kSegment));
      EXPECT_LE(most_within(350us, kUnpaced), std::max<uint64_t>(rate / 1000 * 19 / 10, kSegment));
      EXPECT_LE(most_within(10ms, kUnpaced), std::max<uint64_t>(rate / 1000 * 12, 3 * kSegment));
    }
}

TEST_F(Paced, IsNotByItself) {
  const Pair p = open(kNoPacing);
  give(*sim, p.a, 2'000'000);
  EXPECT_GT(most_within(1ms, kUnpaced), 100u * kSegment);
  EXPECT_EQ((*sim)[0].stack->tcp().info(*p.a, sim->now).max_pacing_rate, kNoPacing);
}

TEST_F(Paced, MayBeginAndEndWithinAConnection) {
  const Pair p = open(kNoPacing);
  TcpLayer& tcp = (*sim)[0].stack->tcp();
  give(*sim, p.a, 500'000);
  tcp.settings(*p.a).max_pacing_rate = 1'000'000;
  tcp.settings_changed(*p.a, sim->now);
  sim->clear_trace();
  give(*sim, p.a, 500'000);
  EXPECT_NEAR(rate_from(0), 1e6, 3e4);
  TcpInfo info = tcp.info(*p.a, sim->now);
  EXPECT_EQ(info.pacing_rate, 1'000'000u);
  EXPECT_EQ(info.max_pacing_rate, 1'000'000u);
  tcp.settings(*p.a).max_pacing_rate = kNoPacing;
  tcp.settings_changed(*p.a, sim->now);
  sim->clear_trace();
  give(*sim, p.a, 5'000'000);
  EXPECT_GT(rate_from(0), 5e6) << "by the window alone";
}

TEST_F(Paced, SendsAgainAtTheRateToo) {
  const Pair p = open(1'000'000);
  sim->filter = [n = 0](int host, std::span<const uint8_t> f) mutable {
    return host != 0 || f.size() < 1000 || ++n % 20 != 0;
  };
  give(*sim, p.a, 2'000'000);
  EXPECT_GT((*sim)[0].counter(Counter::tcp_retransmits), 50u);
  EXPECT_LE(most_within(10ms, kUnpaced), 12'000u + kSegment);
}

TEST_F(Paced, WritesSoonAfterOneAnotherDoNotWaitLong) {
  const Pair p = open(10'000'000);
  give(*sim, p.a, 100'000);
  sim->run_for(100ms);
  sim->clear_trace();
  ASSERT_TRUE(write((*sim)[0], p.a, "request"));
  sim->settle();
  const auto text = text_of(*sim, 0);
  ASSERT_EQ(text.size(), 1u);
  EXPECT_EQ(text[0].at, Duration{0});
  // What is small compared with the rate does not wait for what was small before it.
  for (int i = 0; i < 20; ++i) {
    sim->run_for(20us);
    sim->clear_trace();
    ASSERT_TRUE(write((*sim)[0], p.a, "x"));
    sim->settle();
    EXPECT_EQ(text_of(*sim, 0).size(), 1u);
  }
}

struct DeliveryRate : Paced {};

TEST_F(DeliveryRate, IsThatOfTheNarrowestLink) {
  const Pair p = open(kNoPacing);
  (*sim)[0].link.bits_per_second = 20'000'000;
  give(*sim, p.a, 4'000'000);
  const TcpInfo info = (*sim)[0].stack->tcp().info(*p.a, sim->now);
  constexpr double kShare = 1448.0 / 1538;  // of what the wire carries
  EXPECT_NEAR(static_cast<double>(info.delivery_rate), 20e6 / 8 * kShare, 0.03 * 20e6 / 8);
  EXPECT_FALSE(info.delivery_rate_app_limited);
}

TEST_F(DeliveryRate, OfAPacedFlowIsThePace) {
  const Pair p = open(1'000'000);
  (*sim)[0].link.bits_per_second = 100'000'000;
  give(*sim, p.a, 4'000'000);
  const TcpInfo info = (*sim)[0].stack->tcp().info(*p.a, sim->now);
  EXPECT_NEAR(static_cast<double>(info.delivery_rate), 1e6, 1e5);
}

/// What an application gives in small pieces says nothing of the path: such a sample counts only where it is
/// the greatest.
TEST_F(DeliveryRate, OfALimitedApplicationIsNoLess) {
  const Pair p = open(kNoPacing);
  (*sim)[0].link.bits_per_second = 20'000'000;
  give(*sim, p.a, 4'000'000);
  const uint64_t before = (*sim)[0].stack->tcp().info(*p.a, sim->now).delivery_rate;
  for (int i = 0; i < 20; ++i) give(*sim, p.a, 8 * kSegment);
  EXPECT_GE((*sim)[0].stack->tcp().info(*p.a, sim->now).delivery_rate, before);
}

TEST_F(DeliveryRate, HoldsUnderLossAndReordering) {
  const Pair p = open(kNoPacing);
  (*sim)[0].link.bits_per_second = 20'000'000;
  sim->links([](Link& l) {
    l.loss = 0.005;
    l.reorder = 0.01;
  });
  give(*sim, p.a, 6'000'000);
  const TcpInfo info = (*sim)[0].stack->tcp().info(*p.a, sim->now);
  EXPECT_LT(static_cast<double>(info.delivery_rate), 1.1 * 20e6 / 8);
  EXPECT_GT(static_cast<double>(info.delivery_rate), 0.1 * 20e6 / 8);
}

}  // namespace
}  // namespace accel::sim
