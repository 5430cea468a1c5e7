// Which ACKs a receiver sends, as its peer sees them.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "sim.h"
#include "stack/wire/tcp.h"

namespace accel::sim {
namespace {

struct AckPolicy : testing::Test {
  /// A connection past its quick ACKs: a has sent, b has read.
  Pair open(const HostOptions& options = {}) {
    sim = std::make_unique<Sim>(1, 2, options);
    sim->tracing = true;
    PairOptions pair_options;
    pair_options.a.send_buffer = pair_options.b.receive_buffer = 1 << 20;
    pairs = std::make_unique<Pairs>(*sim, pair_options);
    const Pair p = pairs->connect();
    for (int i = 0; i < 60; ++i) {
      (void)write((*sim)[0], p.a, std::string(10 * 1448, 'x'));
      sim->run_for(30ms);
      while (auto r = read((*sim)[1], p.b))
        if (r->empty()) break;
    }
    sim->run_for(150ms);
    sim->clear_trace();
    return p;
  }
  /// Segments of text from a that `passes` says no to are lost, by their number from 0 on.
  void lose(std::function<bool(int)> lost) {
    sim->filter = [lost = std::move(lost), n = 0](int host, std::span<const uint8_t> f) mutable {
      return host != 0 || f.size() < 1000 || !lost(n++);
    };
  }
  /// A byte from a is acknowledged as it arrives, by one segment.
  void expect_ack_at_once(const Pair& p) {
    sim->clear_trace();
    ASSERT_TRUE(write((*sim)[0], p.a, "x"));
    sim->run_for(100ms);
    const auto sent = sim->sent_by(1);
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ((sent[0].at - sim->trace_start) / 1ms, 5);
  }
  std::unique_ptr<Sim> sim;
  std::unique_ptr<Pairs> pairs;
};

TEST_F(AckPolicy, APeerWithoutSackSeesThreeDuplicatesOfABurst) {
  HostOptions options;
  options.config.sack = false;
  const Pair p = open(options);
  lose([](int n) { return n == 0; });
  const uint32_t missing = p.a->snd_nxt;
  ASSERT_TRUE(write((*sim)[0], p.a, std::string(8 * 1448, 'x')));
  sim->run_for(19ms);  // there and back, before the retransmission is acknowledged
  const auto sent = sim->sent_by(1);
  EXPECT_EQ(std::count_if(sent.begin(), sent.end(), [&](const Sent& s) { return s.ack == missing; }), 7);
  sim->run_for(1s);
  EXPECT_EQ((*sim)[0].counter(Counter::tcp_timeouts), 0u);
  EXPECT_EQ((*sim)[0].counter(Counter::tcp_retransmits), 1u);
}

TEST_F(AckPolicy, EachRunBehindAGapIsTold) {
  const Pair p = open();
  std::set<uint32_t> arrived, told;
  p.a->cwnd = 40 * 1448;
  sim->filter = [&, n = 0](int host, std::span<const uint8_t> f) mutable {
    const TcpHeader tcp = tcp_of(f.subspan(14));
    if (host == 1) {
      const auto options = parse_options(f.subspan(54, 4 * (tcp.data_offset >> 4) - 20));
      for (int i = 0; options && i < options->sack_count; ++i) told.insert(options->sack[i].begin);
      return true;
    }
    if (f.size() < 1000) return true;
    if (n++ % 2 == 0) return false;
    arrived.insert(tcp.sequence);
    return true;
  };
  ASSERT_TRUE(write((*sim)[0], p.a, std::string(30 * 1448, 'x')));
  sim->run_for(9ms);  // all of it has arrived in one pass
  EXPECT_EQ(arrived.size(), 15u);
  EXPECT_EQ(told, arrived);
  sim->filter = nullptr;
  sim->run_for(5s);
}

TEST_F(AckPolicy, ALongRunBehindAGapIsToldTogether) {
  const Pair p = open();
  p.a->cwnd = 70 * 1448;
  lose([](int n) { return n == 0; });
  const uint32_t missing = p.a->snd_nxt;
  ASSERT_TRUE(write((*sim)[0], p.a, std::string(60 * 1448, 'x')));
  sim->run_for(9ms);
  const auto sent = sim->sent_by(1);
  const auto duplicates =
      std::count_if(sent.begin(), sent.end(), [&](const Sent& s) { return s.ack == missing; });
  EXPECT_GE(duplicates, 4);  // three, and what the 56 others make
  EXPECT_LE(duplicates, 6);
}

TEST_F(AckPolicy, ABurstInOrderIsToldAsOneOfTheKernelsBuffers) {
  const Pair p = open();
  p.a->cwnd = 250 * 1448;
  ASSERT_TRUE(write((*sim)[0], p.a, std::string(200 * 1448, 'x')));
  sim->run_for(9ms);
  const auto sent = sim->sent_by(1);
  ASSERT_GE(sent.size(), 200u * 1448 / 65535);
  EXPECT_LE(sent.size(), 6u);
  uint32_t last = p.a->snd_una;
  for (const Sent& s : sent) {
    EXPECT_LE(s.ack - last, 65535u + 1448);
    last = s.ack;
  }
}

TEST_F(AckPolicy, EveryDuplicateIsTold) {
  const Pair p = open();
  std::vector<std::vector<uint8_t>> seen;
  std::set<uint32_t> told;
  sim->filter = [&](int host, std::span<const uint8_t> f) {
    const TcpHeader tcp = tcp_of(f.subspan(14));
    if (host == 0 && f.size() > 1000) seen.emplace_back(f.begin(), f.end());
    if (host == 1) {
      const auto options = parse_options(f.subspan(54, 4 * (tcp.data_offset >> 4) - 20));
      if (options && options->sack_count > 0 && seq_lt(options->sack[0].begin, tcp.acknowledgment))
        told.insert(options->sack[0].begin);
    }
    return true;
  };
  ASSERT_TRUE(write((*sim)[0], p.a, std::string(6 * 1448, 'x')));
  sim->run_for(100ms);
  ASSERT_EQ(seen.size(), 6u);
  const auto again = std::exchange(seen, {});
  for (const auto& f : again) sim->inject(1, f);
  sim->run_for(1ms);
  EXPECT_EQ(told.size(), 6u);
}

TEST_F(AckPolicy, TheWaitAdaptsToASlowSender) {
  const Pair p = open();
  // Small segments, each 90 ms after the other: the ACK of each waits its least time, as no reply comes.
  std::vector<Duration> waits;
  for (int i = 0; i < 30; ++i) {
    sim->clear_trace();
    ASSERT_TRUE(write((*sim)[0], p.a, "x"));
    sim->run_for(90ms);
    ASSERT_TRUE(read((*sim)[1], p.b));
    const auto sent = sim->sent_by(1);
    if (!sent.empty()) waits.push_back(sent[0].at - sim->trace_start - 5ms);
  }
  ASSERT_GE(waits.size(), 20u);
  EXPECT_GE(waits.back(), 39ms);
  EXPECT_LE(waits.back(), 85ms);
}

TEST_F(AckPolicy, AfterALongPauseTheSenderIsHelpedToGrow) {
  const Pair p = open();
  sim->run_for(5s);
  expect_ack_at_once(p);
}

TEST_F(AckPolicy, ARouteAsksForTheAckOfEachSegment) {
  const Pair p = open();
  Stack& stack = *(*sim)[1].stack;
  RouteEntry row;
  row.prefix = (*sim)[0].v4();
  row.prefix_length = 128;
  row.metrics = *stack.metrics_id({.quickack = true});
  stack.set_routes({row});
  ASSERT_EQ(stack.tcp().follow_route(*p.b), Followed::kStays);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(write((*sim)[1], p.b, "answer"));  // which makes the connection one that waits for answers
    sim->run_for(200ms);
    while (auto r = read((*sim)[0], p.a))
      if (r->empty()) break;
    expect_ack_at_once(p);
  }
}

// A server that has nothing to say ends its direction as soon as it is asked: what the client goes on to send
// is acknowledged at once nonetheless, down to an odd last segment.
TEST(AckPolicyOfAHalfClosed, AFinIsNoAnswer) {
  TracedPair traced(1);
  Sim& sim = traced.sim;
  const Pair p = traced.open();
  ASSERT_TRUE(p.b);
  ASSERT_TRUE(write(sim[0], p.a, std::string(1448, 'x')));
  sim.run_for(5ms);  // it is there
  ASSERT_TRUE(sim[1].stack->tcp().shutdown(*p.b, SHUT_WR, sim.now));
  sim.run_for(100ms);
  sim.clear_trace();
  ASSERT_TRUE(write(sim[0], p.a, std::string(1448, 'x')));
  sim.run_for(100ms);
  const auto sent = sim.sent_by(1);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ((sent[0].at - sim.trace_start) / 1ms, 5);
}

}  // namespace
}  // namespace accel::sim
