// Retransmission, probes, delayed ACKs, keepalive, user timeout, TIME-WAIT: times to the millisecond, in
// virtual time.
#include <gtest/gtest.h>

#include "sim.h"

namespace accel::sim {
namespace {

using Millis = std::vector<int64_t>;

Millis rounded(const std::vector<Duration>& times, Duration to = 10ms) {
  Millis out;
  for (Duration t : times) out.push_back((t + to / 2) / to * (to / 1ms));
  return out;
}

struct TimersTest : testing::Test, TracedPair {
  TimersTest() : TracedPair(7) {}
  void cut() {
    sim.links([](Link& l) { l.cut = true; });
  }
  int error_of(TcpConn* c) { return sim[0].stack->tcp().take_error(*c); }
};

TEST_F(TimersTest, RetransmissionDoubles) {
  Pair p = open();
  cut();
  ASSERT_TRUE(write(sim[0], p.a, "x"));
  sim.run_for(4s);
  // The first is a tail probe, behind which the timeout is not doubled (RFC 8985 section 7.3).
  EXPECT_EQ(rounded(sim.data_times(0)), (Millis{0, 210, 420, 840, 1680, 3360}));
  EXPECT_EQ(sim[0].counter(Counter::tcp_timeouts), 4u);
}

/// Of host 0's segments with payload those from `seq` on.
Millis times_of(const Sim& sim, uint32_t seq) {
  std::vector<Duration> out;
  for (const Sent& s : sim.trace)
    if (s.host == 0 && s.payload && s.seq == seq) out.push_back(s.at - sim.trace_start);
  return rounded(out);
}

/// Drops what host 0 sends with payload.
bool is_no_data_of_host_0(int host, std::span<const uint8_t> frame) {
  return host != 0 || frame.size() <= 66;
}

// RFC 6298 section 5: only an ACK of new data restarts the timer.
TEST_F(TimersTest, WhatThePeerSendsPutsNoRetransmissionOff) {
  Pair p = open();
  sim.filter = is_no_data_of_host_0;
  ASSERT_TRUE(write(sim[0], p.a, "request"));
  for (int i = 0; i < 400; ++i) {
    ASSERT_TRUE(write(sim[1], p.b, std::string(100, 'd')));
    sim.run_for(5ms);
    (void)read(sim[0], p.a);
  }
  EXPECT_EQ(rounded(sim.data_times(0)), (Millis{0, 210, 420, 840, 1680}));
}

TEST_F(TimersTest, FurtherSendsPutNoRetransmissionOff) {
  PairOptions options;
  options.a.nodelay = true;
  Pair p = open(options);
  cut();
  for (int i = 0; i < 9; ++i) {
    ASSERT_TRUE(write(sim[0], p.a, "x"));
    sim.run_for(100ms);
  }
  // Soon after the second the tail is probed, which is that; the timeout counts from there.
  EXPECT_EQ(times_of(sim, sim.trace.front().seq), (Millis{0, 330, 750}));
}

TEST_F(TimersTest, UserTimeoutCountsFromTheOldestUnacknowledged) {
  PairOptions options;
  options.a.nodelay = true;
  options.a.user_timeout = 3s;
  Pair p = open(options);
  cut();
  while ((pairs->recorder(p.a).edges & kError) == 0 && sim.now - sim.trace_start < 40s) {
    (void)write(sim[0], p.a, std::string(100, 'q'));
    sim.run_for(100ms);
  }
  EXPECT_EQ(error_of(p.a), ETIMEDOUT);
  EXPECT_NEAR((sim.now - sim.trace_start) / 100ms, 30, 1);
}

TEST_F(TimersTest, RetransmissionGivesUp) {
  Pair p = open();
  cut();
  ASSERT_TRUE(write(sim[0], p.a, "x"));
  ASSERT_TRUE(sim.run_until([&] { return (pairs->recorder(p.a).edges & kError) != 0; }, 3600s));
  EXPECT_EQ(error_of(p.a), ETIMEDOUT);
  EXPECT_NEAR((sim.now - sim.trace_start) / 1s, 924, 15);  // tcp_retries2 = 15 with an RTO of 200 ms
  EXPECT_TRUE(sim[0].stack->tcp().readiness(*p.a) & kHangUp);
  EXPECT_TRUE(write(sim[0], p.a, "y").is(EPIPE));
}

struct FewRetries : testing::Test, TracedPair {
  static HostOptions options() {
    HostOptions o;
    o.config.retries = 2;
    return o;
  }
  FewRetries() : TracedPair(7, options()) {}
};

TEST_F(FewRetries, GiveUpSoon) {
  Pair p = open();
  sim.links([](Link& l) { l.cut = true; });
  ASSERT_TRUE(write(sim[0], p.a, "x"));
  ASSERT_TRUE(sim.run_until([&] { return (pairs->recorder(p.a).edges & kError) != 0; }, 60s));
  EXPECT_NEAR((sim.now - sim.trace_start) / 100ms, 14, 2);  // 200 + 400 + 800 ms
}

struct FewOrphanRetries : testing::Test, TracedPair {
  static HostOptions options() {
    HostOptions o;
    o.config.orphan_retries = 2;
    return o;
  }
  FewOrphanRetries() : TracedPair(7, options()) {}
};

TEST_F(FewOrphanRetries, GiveUpSoon) {
  Pair p = open();
  sim.links([](Link& l) { l.cut = true; });
  ASSERT_TRUE(write(sim[0], p.a, "x"));
  const uint16_t port = sim[0].stack->tcp().local(*p.a).port;
  sim[0].stack->tcp().close(p.a, false, sim.now);
  ASSERT_TRUE(sim.run_until([&] { return !sim[0].stack->tcp().port_in_use(sim[0].v4(), port); }, 60s));
  EXPECT_LT(sim.now - sim.trace_start, 10s);
}

TEST_F(TimersTest, ALostSegmentIsRepairedOnceTheLinkIsBack) {
  Pair p = open();
  cut();
  ASSERT_TRUE(write(sim[0], p.a, "x"));
  sim.run_for(500ms);
  sim.links([](Link& l) { l.cut = false; });
  sim.run_for(500ms);
  EXPECT_EQ(*read(sim[1], p.b), "x");
  EXPECT_TRUE(sim[0].stack->tcp().all_acked(*p.a));
}

TEST_F(TimersTest, DelayedAck) {
  Pair p = open();
  for (int i = 0; i < 40; ++i) {  // past the quick ACKs of a beginning connection
    ASSERT_TRUE(write(sim[0], p.a, "q"));
    sim.run_for(90ms);
    ASSERT_TRUE(read(sim[1], p.b));
    ASSERT_TRUE(write(sim[1], p.b, "r"));
    sim.run_for(90ms);
    ASSERT_TRUE(read(sim[0], p.a));
  }
  sim.clear_trace();
  ASSERT_TRUE(write(sim[0], p.a, "x"));
  sim.run_for(1s);
  auto acks = sim.sent_by(1);
  ASSERT_EQ(acks.size(), 1u);
  EXPECT_NEAR((acks[0].at - sim.trace_start) / 1ms, 45, 1);  // 5 ms of way and 40 ms
}

TEST_F(TimersTest, EverySecondFullSegmentIsAcknowledgedAtOnce) {
  Pair p = open();
  const std::string text(2 * 1448, 'x');
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(write(sim[0], p.a, text));
    sim.run_for(200ms);
    ASSERT_TRUE(read(sim[1], p.b));
  }
  sim.clear_trace();
  ASSERT_TRUE(write(sim[0], p.a, text));
  sim.run_for(1s);
  auto acks = sim.sent_by(1);
  ASSERT_EQ(acks.size(), 1u);
  EXPECT_EQ((acks[0].at - sim.trace_start) / 1ms, 5);
}

TEST_F(TimersTest, ZeroWindowIsProbedAndReopens) {
  PairOptions options;
  options.b.receive_buffer = 20000;
  Pair p = open(options);
  const std::string text(200000, 'x');
  auto sent = write(sim[0], p.a, text);
  ASSERT_TRUE(sent);
  sim.run_for(1s);
  const size_t held = sim[1].stack->tcp().readable_bytes(*p.b);
  EXPECT_GT(held, 5000u);
  EXPECT_LE(held, 40000u);
  sim.run_for(60s);
  EXPECT_GE(sim[0].counter(Counter::tcp_zero_window_probes), 5u);
  EXPECT_EQ(sim[0].stack->tcp().peek_error(*p.a), 0);
  EXPECT_EQ(sim[1].stack->tcp().readable_bytes(*p.b), held);
  size_t got = 0;
  EXPECT_TRUE(sim.run_until(
      [&] {
        if (auto r = read(sim[1], p.b)) got += r->size();
        return got == *sent;
      },
      10s));
}

TEST_F(TimersTest, ALostWindowUpdateIsFoundByTheProbe) {
  PairOptions options;
  options.b.receive_buffer = 20000;
  Pair p = open(options);
  auto sent = write(sim[0], p.a, std::string(200000, 'x'));
  sim.run_for(2s);
  sim[1].link.cut = true;
  size_t got = 0;
  while (auto r = read(sim[1], p.b)) got += r->size();
  sim.settle();
  sim[1].link.cut = false;
  EXPECT_TRUE(sim.run_until(
      [&] {
        if (auto r = read(sim[1], p.b)) got += r->size();
        return got == *sent;
      },
      30s));
}

TEST_F(TimersTest, KeepaliveFindsADeadPeer) {
  PairOptions options;
  options.a.keepalive = true;
  options.a.keep_idle = 10s;
  options.a.keep_interval = 2s;
  options.a.keep_count = 3;
  Pair p = open(options);
  sim.run_for(100s);  // answered
  EXPECT_GE(sim[0].counter(Counter::tcp_keepalives), 8u);
  EXPECT_EQ(sim[0].stack->tcp().peek_error(*p.a), 0);
  const uint64_t before = sim[0].counter(Counter::tcp_keepalives);
  cut();
  ASSERT_TRUE(sim.run_until([&] { return (pairs->recorder(p.a).edges & kError) != 0; }, 60s));
  EXPECT_EQ(error_of(p.a), ETIMEDOUT);
  EXPECT_EQ(sim[0].counter(Counter::tcp_keepalives) - before, 3u);
}

TEST_F(TimersTest, KeepaliveMayBeTurnedOnLater) {
  Pair p = open();
  TcpSettings& s = sim[0].stack->tcp().settings(*p.a);
  s.keepalive = true;
  s.keep_idle = 5s;
  s.keep_interval = 1s;
  s.keep_count = 2;
  sim[0].stack->tcp().settings_changed(*p.a, sim.now);
  cut();
  ASSERT_TRUE(sim.run_until([&] { return (pairs->recorder(p.a).edges & kError) != 0; }, 60s));
  EXPECT_NEAR((sim.now - sim.trace_start) / 100ms, 60, 12);
}

TEST_F(TimersTest, UserTimeout) {
  PairOptions options;
  options.a.user_timeout = 5s;
  Pair p = open(options);
  cut();
  ASSERT_TRUE(write(sim[0], p.a, "x"));
  ASSERT_TRUE(sim.run_until([&] { return (pairs->recorder(p.a).edges & kError) != 0; }, 60s));
  EXPECT_EQ(error_of(p.a), ETIMEDOUT);
  EXPECT_GE(sim.now - sim.trace_start, 4900ms);
  EXPECT_LE(sim.now - sim.trace_start, 5100ms) << "not by the next retransmission, at 6.2 s";
}

TEST_F(TimersTest, UserTimeoutOfAHandshake) {
  cut();
  Recorder owner;
  TcpSettings settings;
  settings.user_timeout = 2s;
  const Instant began = sim.now;
  TcpConn* c = *sim[0].stack->tcp().connect({sim[0].v4(), 4000}, {sim[1].v4(), 80}, sim[0].route_to(sim[1]),
                                            settings, static_cast<Actor*>(&owner), sim.now);
  ASSERT_TRUE(sim.run_until([&] { return (owner.edges & kError) != 0; }, 60s));
  EXPECT_EQ(error_of(c), ETIMEDOUT);
  EXPECT_LE(sim.now - began, 2100ms) << "not by the next SYN, at 3 s";
  sim[0].stack->tcp().close(c, true, sim.now);
}

TEST_F(TimersTest, UserTimeoutEndsWhatAClosedWindowHolds) {
  PairOptions options;
  options.b.receive_buffer = 20000;
  Pair p = open(options);
  ASSERT_TRUE(write(sim[0], p.a, std::string(200000, 'x')));
  sim.run_for(60s);
  EXPECT_EQ(sim[0].stack->tcp().peek_error(*p.a), 0) << "its probes are answered";
  sim[0].stack->tcp().settings(*p.a).user_timeout = 65s;
  const Instant began = sim.now;
  ASSERT_TRUE(sim.run_until([&] { return (pairs->recorder(p.a).edges & kError) != 0; }, 200s));
  EXPECT_EQ(error_of(p.a), ETIMEDOUT);
  EXPECT_LE(sim.now - began, 60s) << "by the next probe";
}

TEST_F(TimersTest, AWindowThatOpensInTimeIsNoUserTimeout) {
  PairOptions options;
  options.a.user_timeout = 5s;
  options.b.receive_buffer = 20000;
  Pair p = open(options);
  ASSERT_TRUE(write(sim[0], p.a, std::string(200000, 'x')));
  for (int i = 0; i < 5; ++i) {
    sim.run_for(4s);
    ASSERT_TRUE(read(sim[1], p.b));
  }
  EXPECT_EQ(sim[0].stack->tcp().peek_error(*p.a), 0);
}

TEST_F(TimersTest, TimeWaitLastsAMinute) {
  Pair p = open();
  sim[0].stack->tcp().close(p.a, false, sim.now);
  sim.run_for(100ms);
  EXPECT_TRUE(pairs->recorder(p.b).edges & kReadClosed);
  sim[1].stack->tcp().close(p.b, false, sim.now);
  sim.run_for(1s);
  EXPECT_EQ(sim[1].stack->next_deadline(), kNever);
  EXPECT_TRUE(sim[0].stack->tcp().port_in_use(sim[0].v4(), 40000));
  sim.run_for(58s);
  EXPECT_TRUE(sim[0].stack->tcp().port_in_use(sim[0].v4(), 40000));
  sim.run_for(3s);
  EXPECT_FALSE(sim[0].stack->tcp().port_in_use(sim[0].v4(), 40000));
  EXPECT_TRUE(sim[0].steered.empty());
}

/// net.ipv4.tcp_tw_reuse: a connect() may have the tuple only where that is on, and after its delay.
TEST(TimeWait, GivesWayToConnectWhereTheHostSaysSo) {
  for (const bool allowed : {false, true}) {
    HostOptions options;
    if (allowed) options.config.time_wait_reuse = 1s;
    Sim sim(1, 2, options);
    Pairs pairs(sim);
    const Pair p = pairs.connect();
    sim[0].stack->tcp().close(p.a, false, sim.now);
    sim.run_for(100ms);
    sim[1].stack->tcp().close(p.b, false, sim.now);
    sim.run_for(100ms);
    Recorder owner;
    auto connect_again = [&] {
      return sim[0].stack->tcp().connect({sim[0].v4(), 40000}, {sim[1].v4(), 80}, sim[0].route_to(sim[1]), {},
                                         static_cast<Actor*>(&owner), sim.now);
    };
    EXPECT_TRUE(connect_again().is(EADDRINUSE));
    sim.run_for(2s);
    auto again = connect_again();
    ASSERT_EQ(again.ok(), allowed);
    if (!allowed) continue;
    sim.run_for(500ms);
    EXPECT_EQ(sim[0].stack->tcp().state(**again), TcpState::kEstablished);
    sim[0].stack->tcp().close(*again, true, sim.now);
  }
}

TEST_F(TimersTest, TimeWaitGivesWayToANewSyn) {
  Pair p = open();
  sim[1].stack->tcp().close(p.b, false, sim.now);  // the server closes first: TIME-WAIT is there
  sim.run_for(100ms);
  sim[0].stack->tcp().close(p.a, false, sim.now);
  sim.run_for(2s);
  Recorder owner;
  auto again = sim[0].stack->tcp().connect({sim[0].v4(), 40000}, {sim[1].v4(), 80}, sim[0].route_to(sim[1]),
                                           {}, static_cast<Actor*>(&owner), sim.now);
  ASSERT_TRUE(again);
  sim.run_for(500ms);
  EXPECT_EQ(sim[0].stack->tcp().state(**again), TcpState::kEstablished);
  ASSERT_TRUE(write(sim[0], *again, "anew"));
  sim.run_for(500ms);
  EXPECT_TRUE(sim[0].stack->tcp().all_acked(**again));
  sim[0].stack->tcp().close(*again, true, sim.now);
}

/// The newer SYN may be for another process's listener: the tuple is the kernel's then.
TEST_F(TimersTest, TimeWaitWithoutAListenerGivesANewSynToTheKernel) {
  Pair p = open();
  sim[1].stack->tcp().close(p.b, false, sim.now);
  sim.run_for(100ms);
  sim[0].stack->tcp().close(p.a, false, sim.now);
  sim.run_for(2s);
  sim[1].stack->tcp().close_listener(std::exchange(pairs->acceptor.listener, nullptr));
  ASSERT_TRUE(sim[1].stack->tcp().port_in_use(sim[1].v4(), 80));
  Recorder owner;
  auto again = sim[0].stack->tcp().connect({sim[0].v4(), 40000}, {sim[1].v4(), 80}, sim[0].route_to(sim[1]),
                                           {}, static_cast<Actor*>(&owner), sim.now);
  ASSERT_TRUE(again);
  sim.clear_trace();
  sim.run_for(500ms);
  ASSERT_EQ(sim[1].to_kernel.size(), 1u);
  EXPECT_EQ(tcp_of(sim[1].to_kernel[0]).flags & (kSyn | kAck), kSyn);
  EXPECT_TRUE(sim.sent_by(1).empty());
  EXPECT_FALSE(sim[1].stack->tcp().port_in_use(sim[1].v4(), 80));
  EXPECT_TRUE(sim[1].steered.empty());
  sim[0].stack->tcp().close(*again, true, sim.now);
}

struct NegativeLinger : TimersTest, testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(FinIsAcknowledgedFirst, NegativeLinger, testing::Bool());

TEST_P(NegativeLinger, ResetsInFinWait2) {
  PairOptions options;
  options.a.fin_wait2 = -1s;
  Pair p = open(options);
  if (GetParam()) {
    ASSERT_TRUE(sim[0].stack->tcp().shutdown(*p.a, SHUT_WR, sim.now));
    sim.run_for(1s);
  }
  sim[0].stack->tcp().close(p.a, false, sim.now);
  sim.run_for(1s);
  EXPECT_FALSE(sim[0].stack->tcp().port_in_use(sim[0].v4(), 40000));
  EXPECT_EQ(sim[1].stack->tcp().take_error(*p.b), EPIPE);  // a reset in CLOSE-WAIT
}

TEST_F(TimersTest, AnOrphanInFinWait2Ends) {
  Pair p = open();
  sim[0].stack->tcp().close(p.a, false, sim.now);
  sim.run_for(10s);  // the peer never closes
  EXPECT_TRUE(sim[0].stack->tcp().port_in_use(sim[0].v4(), 40000));
  sim.run_for(120s);
  EXPECT_FALSE(sim[0].stack->tcp().port_in_use(sim[0].v4(), 40000));
}

}  // namespace
}  // namespace accel::sim
