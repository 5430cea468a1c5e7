// What a hostile peer may try on TCP, and what it gets: RFC 5961, RFC 4987, and the limits that Linux has.
#include <gtest/gtest.h>

#include "sim.h"
#include "stack/wire/checksum.h"
#include "stack/wire/tcp.h"

namespace accel::sim {
namespace {

/// A segment to host 1's port 80, with timestamps where `stamp` is given.
struct Forged {
  IpAddress source;
  uint16_t port = 0;
  uint8_t flags = kAck;
  uint32_t seq = 0, ack = 0;
  std::optional<uint32_t> stamp{};
};

std::vector<uint8_t> frame_of(Sim& sim, const Forged& g) {
  const uint32_t options = g.stamp ? option::kTimestampsLength : 0, length = 20 + options;
  std::vector<uint8_t> f(34 + length);
  std::copy_n(sim[1].mac().begin(), 6, f.begin());
  f[6] = 2;
  f[11] = 77;
  f[12] = 0x08;
  f[14] = 0x45;
  f[17] = static_cast<uint8_t>(20 + length);
  f[22] = 64;
  f[23] = 6;
  std::memcpy(&f[26], g.source.v4_bytes(), 4);
  std::memcpy(&f[30], sim[1].v4().v4_bytes(), 4);
  store_checksum(&f[24], finish_sum(sum_bytes(&f[14], 20)));
  auto& tcp = wire_at<TcpHeader>(&f[34]);
  tcp.source = g.port;
  tcp.destination = 80;
  tcp.sequence = g.seq;
  tcp.acknowledgment = g.ack;
  tcp.data_offset = static_cast<uint8_t>(length / 4 << 4);
  tcp.flags = g.flags;
  tcp.window = 65535;
  if (g.stamp) put_timestamps(&f[54], *g.stamp, 0);
  store_checksum(&tcp.checksum,
                 finish_sum(sum_bytes(&f[26], 8) + sum_of(6) + sum_of(static_cast<uint16_t>(length)) +
                            sum_bytes(&f[34], length)));
  return f;
}

/// SYNs of made-up peers.
void flood(Sim& sim, int segments) {
  for (int i = 0; i < segments; ++i)
    sim.inject(
        1, frame_of(sim, {.source = IpAddress::v4(0x0a010000u + static_cast<uint32_t>(sim.rng.below(60000))),
                          .port = static_cast<uint16_t>(1024 + sim.rng.below(60000)),
                          .flags = kSyn,
                          .seq = static_cast<uint32_t>(sim.rng.next())}));
}

size_t connections(Host& host) {
  size_t n = 0;
  host.stack->tcp().for_each([](TcpConn&, void* count) { ++*static_cast<size_t*>(count); }, &n);
  return n;
}

/// A host whose port 80 is flooded with SYNs, 20 000 a second.
struct Flooded {
  explicit Flooded(const HostOptions& options = {}, Duration delay = 100ms) : sim(5, 2, options) {
    sim.links([&](Link& l) { l.delay = delay; });
  }
  /// True when `done` came true within `limit`.
  bool run_until(const std::function<bool()>& done, Duration limit) {
    for (const Instant end = sim.now + limit; sim.now < end && !done();) {
      flood(sim, 20);
      sim.run_for(1ms);
    }
    return done();
  }
  Sim sim;
};

TEST(Hostile, UnderASynFloodAPeerFarAwayGetsInByItsFirstSyn) {
  for (const bool stamps : {true, false}) {
    SCOPED_TRACE(stamps);
    HostOptions options;
    options.config.timestamps = stamps;
    Flooded world(options);
    Sim& sim = world.sim;
    End server(sim[1], 1, 2, 100'000), client(sim[0], 2, 1, 100'000);
    Acceptor acceptor(sim[1], {sim[1].v4(), 80});
    acceptor.accepted = [&](TcpConn* c) { server.attach(c); };
    world.run_until([] { return false; }, 500ms);
    EXPECT_LE(connections(sim[1]), 130u);  // the backlog, and no more
    TcpConn* c = *sim[0].stack->tcp().connect({sim[0].v4(), 4000}, {sim[1].v4(), 80}, sim[0].route_to(sim[1]),
                                              {}, static_cast<Actor*>(&client), sim.now);
    client.attach(c);
    const Instant dialled = sim.now;
    ASSERT_TRUE(world.run_until([&] { return server.conn != nullptr; }, 5s));
    EXPECT_LE(sim.now - dialled, 320ms);  // one and a half round trips of 200 ms
    EXPECT_EQ(sim[1].counter(Counter::tcp_cookies_accepted), 1u);
    const TcpInfo info = sim[1].stack->tcp().info(*server.conn, sim.now);
    EXPECT_EQ(info.sack, stamps);  // options come back in the time stamp only
    EXPECT_EQ(info.timestamps, stamps);
    EXPECT_EQ(info.window_scaling, stamps);
    EXPECT_TRUE(world.run_until([&] { return client.finished() && server.finished(); }, 60s));
    EXPECT_EQ(client.read, 100'000u);
    EXPECT_EQ(server.read, 100'000u);
    EXPECT_FALSE(client.wrong || server.wrong);
  }
}

TEST(Hostile, WithoutCookiesASynBeyondTheBacklogIsDropped) {
  HostOptions options;
  options.config.syn_cookies = false;
  Flooded world(options);
  Acceptor acceptor(world.sim[1], {world.sim[1].v4(), 80});
  world.run_until([] { return false; }, 300ms);
  EXPECT_EQ(world.sim[1].counter(Counter::tcp_cookies_sent), 0u);
  EXPECT_LE(connections(world.sim[1]), 130u);
  EXPECT_GT(world.sim[1].counter(Counter::drop_tcp_backlog), 1000u);
}

TEST(Hostile, AnAckWithoutACookieIsTheKernels) {
  Flooded world;
  Sim& sim = world.sim;
  Acceptor acceptor(sim[1], {sim[1].v4(), 80});
  world.run_until([] { return false; }, 100ms);
  ASSERT_GT(sim[1].counter(Counter::tcp_cookies_sent), 0u);
  const size_t before = connections(sim[1]);
  for (int i = 0; i < 10'000; ++i)
    sim.inject(1, frame_of(sim, {.source = sim[0].v4(),
                                 .port = static_cast<uint16_t>(2000 + i),
                                 .seq = static_cast<uint32_t>(sim.rng.next()),
                                 .ack = static_cast<uint32_t>(sim.rng.next())}));
  sim.run_for(10ms);
  EXPECT_EQ(connections(sim[1]), before);
  EXPECT_EQ(sim[1].counter(Counter::tcp_cookies_bad), 10'000u);
  EXPECT_EQ(sim[1].to_kernel.size(), 10'000u);
}

TEST(Hostile, ACookieIsGoodForTwoMinutes) {
  for (const auto& [wait, good] : {std::pair{50s, true}, std::pair{130s, false}}) {
    SCOPED_TRACE(wait.count());
    Flooded world;
    Sim& sim = world.sim;
    Acceptor acceptor(sim[1], {sim[1].v4(), 80});
    world.run_until([] { return false; }, 100ms);
    // A client that keeps its ACK back.
    std::vector<uint8_t> ack;
    sim.filter = [&](int host, std::span<const uint8_t> f) {
      if (host != 0 || (f[47] & kSyn) != 0) return true;
      if (ack.empty()) ack.assign(f.begin(), f.end());
      return false;
    };
    Recorder owner;
    TcpConn* c = *sim[0].stack->tcp().connect({sim[0].v4(), 4000}, {sim[1].v4(), 80}, sim[0].route_to(sim[1]),
                                              {}, static_cast<Actor*>(&owner), sim.now);
    ASSERT_TRUE(world.run_until([&] { return !ack.empty(); }, 5s));
    sim.run_for(wait);
    flood(sim, 300);  // the listener goes on with cookies
    sim.run_for(10ms);
    sim.inject(1, ack);
    sim.run_for(10ms);
    EXPECT_EQ(sim[1].counter(Counter::tcp_cookies_accepted), good ? 1u : 0u);
    sim[0].stack->tcp().close(c, true, sim.now);
  }
}

/// A pair, and what a blind attacker knows of its second end: the tuple.
class Blind : public testing::Test {
 protected:
  Blind() : traced(9) { p = traced.open(); }
  void send(uint8_t flags, uint32_t seq, uint32_t ack, std::optional<uint32_t> stamp = {}) {
    sim.inject(1, frame_of(sim, {sim[0].v4(), sim[0].stack->tcp().local(*p.a).port, flags, seq, ack, stamp}));
    sim.run_for(1ms);
  }
  bool talks() {
    if (!write(sim[0], p.a, "question")) return false;
    sim.run_for(2s);
    const auto got = read(sim[1], p.b);
    if (!got || *got != "question" || !write(sim[1], p.b, "answer")) return false;
    sim.run_for(2s);
    const auto back = read(sim[0], p.a);
    return back && *back == "answer";
  }
  TracedPair traced;
  Sim& sim = traced.sim;
  Pair p;
};

TEST_F(Blind, AStampFromTheFutureWithoutAGoodAckHarmsNobody) {
  const uint32_t next = p.b->rcv_nxt, future = p.b->ts_recent + 0x60000000;
  for (const uint32_t ack : {p.b->snd_nxt + 100'000u, p.b->snd_una - 0x40000000u, p.b->snd_una - 1u})
    send(kAck, next, ack, future);
  EXPECT_TRUE(talks());
}

TEST_F(Blind, OldSegmentsAreAnsweredTwiceASecond) {
  sim.clear_trace();
  for (int i = 0; i < 5000; ++i) send(kAck, p.b->rcv_nxt - 1000, p.b->snd_una);
  const size_t answers = sim.sent_by(1).size();
  EXPECT_GE(answers, 9u);  // in 5 s
  EXPECT_LE(answers, 11u);
  EXPECT_TRUE(talks());
}

TEST_F(Blind, AcksOfBytesNeverSentAreAnsweredTwiceASecond) {
  sim.clear_trace();
  for (int i = 0; i < 1000; ++i) send(kAck, p.b->rcv_nxt, p.b->snd_nxt + 1000);
  EXPECT_GE(sim.sent_by(1).size(), 1u);
  EXPECT_LE(sim.sent_by(1).size(), 3u);
  EXPECT_TRUE(talks());
}

TEST_F(Blind, ChallengesOfOneConnectionTellNothingOfAnother) {
  const Pair other = traced.pairs->connect();
  ASSERT_TRUE(other.b);
  for (int i = 0; i < 2000; ++i) {
    sim.inject(1, frame_of(sim, {sim[0].v4(), sim[0].stack->tcp().local(*other.a).port, kSyn, 77, 0}));
    sim.run_for(100us);
  }
  sim.clear_trace();
  send(kSyn, p.b->rcv_nxt + 10, 0);
  EXPECT_EQ(sim.sent_by(1).size(), 1u);
}

TEST_F(Blind, TwoHostsDoNotAnswerEachOtherForEver) {
  sim.clear_trace();
  // Each end finds the other's ACK unacceptable once one has been made to believe in bytes never sent.
  send(kAck | kPsh, p.b->rcv_nxt + 500'000, p.b->snd_una);
  p.a->rcv_nxt += 100'000;  // as after a segment that an attacker in the path injected
  p.a->rcv_wup = p.a->copied_seq = p.a->rcv_edge = p.a->rcv_nxt;
  ASSERT_TRUE(write(sim[0], p.a, "x"));
  sim.run_for(5s);
  const size_t bare = static_cast<size_t>(std::count_if(
      sim.trace.begin(), sim.trace.end(), [](const Sent& s) { return s.payload == 0 && s.flags == kAck; }));
  EXPECT_LE(bare, 40u);
}

TEST_F(Blind, ASynAgainGetsItsSynAckTwiceASecond) {
  Acceptor& acceptor = traced.pairs->acceptor;
  ASSERT_TRUE(acceptor.listener);
  sim.clear_trace();
  for (int i = 0; i < 1000; ++i) {
    sim.inject(1, frame_of(sim, {IpAddress::v4(0x0a010001), 999, kSyn, 4711, 0}));
    sim.run_for(1ms);
  }
  EXPECT_LE(sim.sent_by(1).size(), 4u);
}

TEST(Hostile, AClosedConnectionWhosePeerShutsItsWindowEnds) {
  TracedPair traced(3);
  const Pair p = traced.open();
  Sim& sim = traced.sim;
  // The peer reads nothing, answers each probe and never opens its window.
  ASSERT_TRUE(write(sim[1], p.b, std::string(8u << 20, 'x')));
  sim.run_for(10s);
  sim[1].stack->tcp().close(p.b, false, sim.now);
  EXPECT_EQ(connections(sim[1]), 1u);
  EXPECT_TRUE(sim.run_until([&] { return connections(sim[1]) == 0; }, 600s));
}

TEST(Hostile, OrphansAreBounded) {
  HostOptions options;
  options.config.max_orphans = 3;
  Sim sim(1, 2, options);
  Pairs pairs(sim);
  std::vector<Pair> open;
  for (int i = 0; i < 5; ++i) open.push_back(pairs.connect());
  sim.links([](Link& l) { l.cut = true; });
  for (const Pair& p : open) sim[1].stack->tcp().close(p.b, false, sim.now);
  sim.settle();
  EXPECT_EQ(connections(sim[1]), 3u);
  EXPECT_EQ(sim[1].counter(Counter::tcp_orphans_limited), 2u);
  for (const Pair& p : open) sim[0].stack->tcp().close(p.a, true, sim.now);
  sim.run_for(600s);
  EXPECT_EQ(connections(sim[1]), 0u);
}

TEST(Hostile, TimeWaitsAreBounded) {
  HostOptions options;
  options.config.max_time_waits = 4;
  Sim sim(1, 2, options);
  Pairs pairs(sim);
  for (int i = 0; i < 10; ++i) {
    const Pair p = pairs.connect();
    sim[1].stack->tcp().close(p.b, false, sim.now);
    sim.run_for(100ms);
    sim[0].stack->tcp().close(p.a, false, sim.now);
    sim.run_for(100ms);
  }
  EXPECT_EQ(sim[1].steered.size(), 4u);
  sim.run_for(70s);
  EXPECT_TRUE(sim[1].steered.empty());
}

TEST(Hostile, ASynThatCameJustBeforeCloseIsAnswered) {
  Sim sim;
  sim.tracing = true;
  Acceptor acceptor(sim[1], {sim[1].v4(), 80});
  sim[1].stack->on_packets({}, 0, sim.now);
  Recorder owner;
  TcpConn* c = *sim[0].stack->tcp().connect({sim[0].v4(), 4000}, {sim[1].v4(), 80}, sim[0].route_to(sim[1]),
                                            {}, static_cast<Actor*>(&owner), sim.now);
  std::vector<uint8_t> syn;
  sim.filter = [&](int host, std::span<const uint8_t> f) {
    if (host == 0) syn.assign(f.begin(), f.end());
    return host != 0;
  };
  sim.settle();
  ASSERT_FALSE(syn.empty());
  sim.filter = nullptr;
  sim.clear_trace();
  Packet* frame = sim[1].pool.take();
  std::copy(syn.begin(), syn.end(), frame->data());
  frame->length = static_cast<uint32_t>(syn.size());
  sim[1].stack->on_packets({&frame, 1}, 0, sim.now);
  sim[1].stack->tcp().close_listener(std::exchange(acceptor.listener, nullptr));
  sim.settle();
  const auto sent = sim.sent_by(1);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].flags, kSyn | kAck);
  sim[0].stack->tcp().close(c, true, sim.now);
}

}  // namespace
}  // namespace accel::sim
