// When segments leave: Nagle, TCP_NODELAY, TCP_CORK, MSG_MORE, the low-water marks.
#include <gtest/gtest.h>

#include "sim.h"

namespace accel::sim {
namespace {

struct OutputTest : testing::Test, TracedPair {
  OutputTest() : TracedPair(3) {}
  std::vector<uint32_t> payloads() const {
    std::vector<uint32_t> out;
    for (const Sent& s : sim.sent_by(0))
      if (s.payload) out.push_back(s.payload);
    return out;
  }
  using Sizes = std::vector<uint32_t>;
};

TEST_F(OutputTest, NagleGathersWhileUnacknowledged) {
  Pair p = open();
  for (const char* text : {"a", "b", "c"}) {
    ASSERT_TRUE(write(sim[0], p.a, text));
    sim.settle();
  }
  sim.run_for(1s);
  EXPECT_EQ(payloads(), (Sizes{1, 2}));
}

TEST_F(OutputTest, NodelaySendsAtOnce) {
  PairOptions options;
  options.a.nodelay = true;
  Pair p = open(options);
  for (const char* text : {"a", "b", "c"}) {
    ASSERT_TRUE(write(sim[0], p.a, text));
    sim.settle();
  }
  EXPECT_EQ(payloads(), (Sizes{1, 1, 1}));
}

TEST_F(OutputTest, NodelayTurnedOnPushesOut) {
  Pair p = open();
  ASSERT_TRUE(write(sim[0], p.a, "a"));
  sim.settle();
  ASSERT_TRUE(write(sim[0], p.a, "b"));
  sim.settle();
  EXPECT_EQ(payloads(), (Sizes{1}));
  sim[0].stack->tcp().settings(*p.a).nodelay = true;
  sim[0].stack->tcp().settings_changed(*p.a, sim.now, true);
  sim.settle();
  EXPECT_EQ(payloads(), (Sizes{1, 1}));
}

TEST_F(OutputTest, CorkHoldsPartialSegments) {
  PairOptions options;
  options.a.cork = true;
  Pair p = open(options);
  ASSERT_TRUE(write(sim[0], p.a, std::string(1448 + 100, 'x')));
  sim.run_for(50ms);
  EXPECT_EQ(payloads(), (Sizes{1448}));
  sim[0].stack->tcp().settings(*p.a).cork = false;
  sim[0].stack->tcp().settings_changed(*p.a, sim.now, true);
  sim.settle();
  EXPECT_EQ(payloads(), (Sizes{1448, 100}));
}

TEST_F(OutputTest, CorkLetsGoAfter200ms) {
  PairOptions options;
  options.a.cork = true;
  Pair p = open(options);
  ASSERT_TRUE(write(sim[0], p.a, "x"));
  sim.run_for(150ms);
  EXPECT_EQ(payloads(), Sizes{});
  sim.run_for(100ms);
  EXPECT_EQ(payloads(), (Sizes{1}));
}

TEST_F(OutputTest, MoreHoldsUntilTheNextSend) {
  PairOptions options;
  options.a.nodelay = true;
  Pair p = open(options);
  ASSERT_TRUE(write(sim[0], p.a, "head", {.more = true}));
  sim.settle();
  EXPECT_EQ(payloads(), Sizes{});
  ASSERT_TRUE(write(sim[0], p.a, "body"));
  sim.settle();
  EXPECT_EQ(payloads(), (Sizes{8}));
}

/// Sends with MSG_MORE as soon as something comes, in the pass that brought it.
struct Answer : Actor {
  Answer(Host& at, TcpConn* by) : host(at), conn(by) { conn->owner = static_cast<Actor*>(this); }
  void on_ready(uint32_t edges) override {
    if ((edges & kReadable) == 0) return;
    EXPECT_TRUE(write(host, conn, "z", {.more = true}));
  }
  Host& host;
  TcpConn* conn;
};

TEST_F(OutputTest, MoreTakesNothingBackThatAnAckLetGo) {
  Pair p = open();
  Answer answer(sim[0], p.a);
  sim.filter = [](int host, std::span<const uint8_t> frame) { return host == 0 || frame.size() > 66; };
  ASSERT_TRUE(write(sim[0], p.a, std::string(1448 + 100, 'x'), {.more = true}));
  sim.run_for(10ms);
  EXPECT_EQ(payloads(), (Sizes{1448}));
  ASSERT_TRUE(write(sim[1], p.b, "data with an ACK"));
  sim.run_for(50ms);
  EXPECT_EQ(payloads(), (Sizes{1448, 100}));
}

TEST_F(OutputTest, WhatEndsASendWithoutMoreIsPushed) {  // tcp_push()
  PairOptions options;
  options.a.nodelay = true;
  Pair p = open(options);
  ASSERT_TRUE(write(sim[0], p.a, std::string(1448 + 100, 'x'), {.more = true}));
  sim.run_for(1s);
  ASSERT_TRUE(write(sim[0], p.a, std::string(1448 + 200, 'x')));
  sim.run_for(1s);
  std::vector<std::pair<uint32_t, bool>> sent;
  for (const Sent& s : sim.sent_by(0))
    if (s.payload) sent.emplace_back(s.payload, (s.flags & kPsh) != 0);
  EXPECT_EQ(sent, (decltype(sent){{1448, false}, {100, false}, {1448, false}, {200, true}}));
}

struct Pushed : OutputTest {
  /// The segments that host 0 has sent: payload, and whether they had PSH.
  using Segments = std::vector<std::pair<uint32_t, bool>>;
  Segments segments() const {
    Segments sent;
    for (const Sent& s : sim.sent_by(0))
      if (s.payload) sent.emplace_back(s.payload, (s.flags & kPsh) != 0);
    return sent;
  }
  Pair open_with_window(uint32_t window) {
    PairOptions options;
    options.a.nodelay = true;
    options.a.send_buffer = 1 << 20;
    options.b.receive_buffer = window;
    return open(options);
  }
};

TEST_F(Pushed, WritesThatShareABufferHaveOne) {
  Pair p = open_with_window(4000);  // one segment a buffer, two in flight
  for (uint32_t n : {1448, 1448, 1448, 700, 700, 40}) ASSERT_TRUE(write(sim[0], p.a, std::string(n, 'x')));
  while (segments().size() < 4) {
    (void)read(sim[1], p.b);
    sim.run_for(100ms);
  }
  EXPECT_EQ(segments(), (Segments{{1448, true}, {1448, true}, {1448, true}, {1440, true}}));
}

// tcp_sendmsg_locked() takes PSH from a buffer only where it adds to it.
TEST_F(Pushed, AFullBufferKeepsIts) {
  Pair p = open_with_window(4000);
  for (uint32_t n : {1448, 1448, 1448, 1448, 100}) ASSERT_TRUE(write(sim[0], p.a, std::string(n, 'x')));
  while (segments().size() < 5) {
    (void)read(sim[1], p.b);
    sim.run_for(100ms);
  }
  EXPECT_EQ(segments(), (Segments{{1448, true}, {1448, true}, {1448, true}, {1448, true}, {100, true}}));
}

// forced_push(): a peer that hands text over at PSH only does not wait for a whole window.
TEST_F(Pushed, HalfAWindowIsInOneWrite) {
  Pair p = open_with_window(20000);
  const uint32_t first = p.a->snd_nxt;
  ASSERT_TRUE(write(sim[0], p.a, std::string(100'000, 'x')));
  sim.run_until(
      [&] {
        (void)read(sim[1], p.b);
        return p.a->snd_una == first + 100'000;
      },
      20s);
  std::vector<uint32_t> ends;
  for (const Sent& s : sim.sent_by(0))
    if (s.payload && (s.flags & kPsh)) ends.push_back(s.seq + s.payload - first);
  const uint32_t buffer = p.a->max_window / 2 / 1448 * 1448;
  std::vector<uint32_t> expected;
  for (uint32_t at = 2 * buffer; at < 100'000; at += 2 * buffer) expected.push_back(at);
  expected.push_back(100'000);
  EXPECT_EQ(ends, expected);
}

TEST_F(Pushed, ARetransmissionIsAsItsFirst) {
  Pair p = open_with_window(4000);
  int lost = 0;
  sim.filter = [&](int host, std::span<const uint8_t> frame) {
    return host != 0 || frame.size() < 1000 || ++lost != 1;
  };
  ASSERT_TRUE(write(sim[0], p.a, std::string(1448, 'x')));
  sim.settle();
  ASSERT_TRUE(write(sim[0], p.a, std::string(1448, 'x'), {.more = true}));
  sim.run_for(5s);
  ASSERT_EQ(segments().size(), 3u);
  EXPECT_EQ(segments()[2], std::pair(1448u, true));
}

struct Records : Pushed {};

TEST_F(Records, NoSegmentHoldsTwo) {
  Pair p = open_with_window(65536);
  ASSERT_TRUE(write(sim[0], p.a, std::string(100, 'x'), {.more = true, .record_end = true}));
  sim.run_for(50ms);
  EXPECT_EQ(segments(), Segments{});  // the last one waits as MSG_MORE says
  ASSERT_TRUE(write(sim[0], p.a, std::string(200, 'x'), {.record_end = true}));
  sim.settle();
  EXPECT_EQ(segments(), (Segments{{100, false}, {200, true}}));
  sim.run_for(1s);
  EXPECT_EQ(*read(sim[1], p.b), std::string(300, 'x'));
}

TEST_F(Records, NagleHoldsTheLastOnly) {
  Pair p = open();
  ASSERT_TRUE(write(sim[0], p.a, "a"));
  sim.settle();
  ASSERT_TRUE(write(sim[0], p.a, "bb", {.record_end = true}));
  sim.settle();
  EXPECT_EQ(payloads(), (Sizes{1}));
  ASSERT_TRUE(write(sim[0], p.a, "ccc"));
  sim.settle();
  EXPECT_EQ(payloads(), (Sizes{1, 2}));
  sim.run_for(1s);
  EXPECT_EQ(payloads(), (Sizes{1, 2, 3}));
}

TEST_F(Records, LongOnesAreCutAtTheirEndsOnly) {
  Pair p = open();
  ASSERT_TRUE(write(sim[0], p.a, std::string(2 * 1448 + 7, 'x'), {.more = true, .record_end = true}));
  ASSERT_TRUE(write(sim[0], p.a, std::string(1448 + 5, 'x'), {.record_end = true}));
  sim.run_for(1s);
  EXPECT_EQ(segments(), (Segments{{1448, false}, {1448, false}, {7, false}, {1448, false}, {5, true}}));
}

TEST_F(OutputTest, SendBufferBoundsAndWritableReturns) {
  PairOptions options;
  options.a.send_buffer = 50000;
  options.b.receive_buffer = 20000;
  Pair p = open(options);
  const std::string text(30000, 'x');
  size_t accepted = 0;
  for (;;) {
    auto r = write(sim[0], p.a, text);
    if (!r) {
      EXPECT_TRUE(r.is(EAGAIN));
      break;
    }
    accepted += *r;
    sim.settle();
    ASSERT_LT(accepted, 1000000u);
  }
  sim.run_for(1s);
  while (auto r = write(sim[0], p.a, text)) accepted += *r;
  EXPECT_LE(accepted, 50000u + 40000u);
  EXPECT_FALSE(sim[0].stack->tcp().readiness(*p.a) & kWritable);
  pairs->recorder(p.a).edges = 0;
  EXPECT_TRUE(sim.run_until(
      [&] {
        (void)read(sim[1], p.b);
        return (pairs->recorder(p.a).edges & kWritable) != 0;
      },
      10s));
  EXPECT_TRUE(sim[0].stack->tcp().readiness(*p.a) & kWritable);
}

// Linux forgets it when it makes the receive buffer grow, or learns how much of a frame is payload.
TEST_F(OutputTest, AWindowClampHoldsForTheConnectionsLife) {
  PairOptions options;
  options.b.receive_buffer = 1 << 20;
  Pair p = open(options);
  size_t got = 0;
  /// Of two million bytes that are read as they come.
  auto largest_window = [&] {
    sim.clear_trace();
    const std::string text(65536, 'x');
    const size_t wanted = got + 2'000'000;
    EXPECT_TRUE(sim.run_until(
        [&] {
          (void)write(sim[0], p.a, text);
          if (auto r = read(sim[1], p.b)) got += r->size();
          return got >= wanted;
        },
        60s));
    uint32_t largest = 0;
    for (const Sent& s : sim.sent_by(1)) largest = std::max(largest, s.window << p.b->rcv_wscale);
    return largest;
  };
  EXPECT_GT(largest_window(), 60000u);
  sim[1].stack->tcp().settings(*p.b).window_clamp = 30000;
  sim[1].stack->tcp().settings_changed(*p.b, sim.now);
  (void)largest_window();  // what has been offered already is not taken back
  EXPECT_LE(largest_window(), 30000u);
}

TEST_F(OutputTest, ReceiveLowWaterMarkHoldsReadiness) {
  PairOptions options;
  options.b.receive_low_water = 10;
  Pair p = open(options);
  ASSERT_TRUE(write(sim[0], p.a, "12345"));
  sim.run_for(500ms);
  EXPECT_FALSE(sim[1].stack->tcp().readiness(*p.b) & kReadable);
  ASSERT_TRUE(write(sim[0], p.a, "67890"));
  sim.run_for(500ms);
  EXPECT_TRUE(sim[1].stack->tcp().readiness(*p.b) & kReadable);
}

TEST_F(OutputTest, PeekLeavesAndDiscardTakes) {
  Pair p = open();
  ASSERT_TRUE(write(sim[0], p.a, "abcdef"));
  sim.run_for(500ms);
  char b[4];
  const iovec v{b, 4};
  EXPECT_EQ(*sim[1].stack->tcp().receive(*p.b, {&v, 1}, true, 0, sim.now), 4u);
  EXPECT_EQ(std::string(b, 4), "abcd");
  EXPECT_EQ(*sim[1].stack->tcp().receive(*p.b, {&v, 1}, true, 3, sim.now), 3u);
  EXPECT_EQ(std::string(b, 3), "def");
  EXPECT_EQ(*sim[1].stack->tcp().discard(*p.b, 2, sim.now), 2u);
  EXPECT_EQ(sim[1].stack->tcp().readable_bytes(*p.b), 4u);
  EXPECT_EQ(*read(sim[1], p.b), "cdef");
  EXPECT_TRUE(read(sim[1], p.b).is(EAGAIN));
}

TEST_F(OutputTest, ATakenUrgentByteIsGoneWhenAnotherComes) {
  Pair p = open();
  char text[] = "!b?";
  const iovec first{text, 1}, second{text + 1, 2};
  ASSERT_TRUE(sim[0].stack->tcp().send(*p.a, {&first, 1}, {.urgent = true}, sim.now));
  sim.run_for(1s);
  uint8_t byte = 0;
  ASSERT_TRUE(sim[1].stack->tcp().receive_urgent(*p.b, &byte, false));
  EXPECT_EQ(byte, '!');
  ASSERT_TRUE(sim[0].stack->tcp().send(*p.a, {&second, 1}, {.urgent = true}, sim.now));
  sim.run_for(1s);
  EXPECT_EQ(*read(sim[1], p.b), "b");
}

TEST_F(OutputTest, UrgentDataStopsAtTheLowWaterMark) {
  Pair p = open();
  sim[0].stack->tcp().settings(*p.a).notsent_low_water = 100;
  std::string text(5000, 'x');
  const iovec v{text.data(), text.size()};
  const uint32_t mss = sim[0].stack->tcp().info(*p.a, sim.now).snd_mss;
  EXPECT_EQ(*sim[0].stack->tcp().send(*p.a, {&v, 1}, {.urgent = true}, sim.now), mss);
  sim.run_for(1s);
  EXPECT_EQ(read(sim[1], p.b)->size(), mss - 1);  // the last byte is the urgent one
}

// tcp_sendmsg_locked() asks for room before each buffer that it begins.
TEST_F(OutputTest, TheLowWaterMarkBoundsOneWrite) {
  Pair p = open();
  sim[0].stack->tcp().settings(*p.a).notsent_low_water = 5000;
  sim.links([](Link& l) { l.cut = true; });
  const std::string text(1'000'000, 'x');
  size_t taken = 0;
  while (auto r = write(sim[0], p.a, text)) taken += *r;
  const size_t waiting = sim[0].stack->tcp().unsent_bytes(*p.a);
  EXPECT_GE(waiting, 5000u);
  EXPECT_LT(waiting, 5000u + 65536);
  EXPECT_EQ(taken, waiting + 10 * 1448);
  EXPECT_FALSE(sim[0].stack->tcp().readiness(*p.a) & kWritable);
  sim.links([](Link& l) { l.cut = false; });
  sim.run_for(2s);
  EXPECT_TRUE(sim[0].stack->tcp().readiness(*p.a) & kWritable);
}

TEST_F(OutputTest, UrgentByteIsOutOfLine) {
  Pair p = open();
  const char text[] = "ab!";
  const iovec v{const_cast<char*>(text), 3};
  ASSERT_TRUE(sim[0].stack->tcp().send(*p.a, {&v, 1}, {.urgent = true}, sim.now));
  sim.settle();
  ASSERT_TRUE(write(sim[0], p.a, "cd"));
  sim.run_for(1s);
  EXPECT_TRUE(pairs->recorder(p.b).edges & kUrgent);
  EXPECT_EQ(*read(sim[1], p.b), "ab");  // stops at the mark
  EXPECT_TRUE(sim[1].stack->tcp().at_mark(*p.b));
  uint8_t byte = 0;
  EXPECT_EQ(*sim[1].stack->tcp().receive_urgent(*p.b, &byte, false), 1u);
  EXPECT_EQ(byte, '!');
  EXPECT_EQ(*read(sim[1], p.b), "cd");
}

}  // namespace
}  // namespace accel::sim
