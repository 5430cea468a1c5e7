// Loss recovery, path MTU and throughput: what a lossy path must not cost.
#include <gtest/gtest.h>

#include "sim.h"
#include "stack/wire/ipv4.h"
#include "stack/wire/tcp.h"

namespace accel::sim {
namespace {

struct Outcome {
  Duration took{0};
  uint64_t timeouts = 0, recoveries = 0, retransmits = 0;
  bool good = false;
};

Outcome transfer(Sim& sim, uint64_t bytes, TcpSettings settings = {}, Duration limit = 600s) {
  End client(sim[0], 1, 2, bytes), server(sim[1], 2, 1, 0);
  Acceptor acceptor(sim[1], {sim[1].v4(), 80});
  acceptor.accepted = [&](TcpConn* c) { server.attach(c); };
  const Instant start = sim.now;
  client.attach(*sim[0].stack->tcp().connect({sim[0].v4(), 4000}, {sim[1].v4(), 80}, sim[0].route_to(sim[1]),
                                             settings, static_cast<Actor*>(&client), sim.now));
  Outcome r;
  r.good = sim.run_until([&] { return client.finished() && server.finished(); }, limit) && !server.wrong &&
           server.read == bytes && !client.error;
  r.took = sim.now - start;
  r.timeouts = sim[0].counter(Counter::tcp_timeouts);
  r.recoveries = sim[0].counter(Counter::tcp_fast_recoveries);
  r.retransmits = sim[0].counter(Counter::tcp_retransmits);
  return r;
}

/// Drops the data segments of host 0 whose number (from 1) is given, first transmissions only.
void drop_segments(Sim& sim, std::set<int> numbers) {
  auto seen = std::make_shared<std::set<uint32_t>>();
  sim.filter = [numbers, seen](int host, std::span<const uint8_t> f) {
    if (host != 0 || f.size() < 54) return true;
    const auto& tcp = wire_at<TcpHeader>(&f[34]);
    if (f.size() <= 34u + (tcp.data_offset >> 4) * 4u) return true;
    if (!seen->insert(tcp.sequence).second) return true;
    return !numbers.contains(static_cast<int>(seen->size()));
  };
}

TEST(Loss, OneLostSegmentCostsNoTimeout) {
  Sim sim;
  drop_segments(sim, {20});
  Outcome r = transfer(sim, 300000);
  EXPECT_TRUE(r.good);
  EXPECT_EQ(r.timeouts, 0u);
  EXPECT_EQ(r.recoveries, 1u);
  EXPECT_EQ(r.retransmits, 1u);
}

TEST(Loss, ManyLostSegmentsOfAWindowCostNoTimeout) {
  Sim sim;
  drop_segments(sim, {40, 42, 44, 46, 50, 51, 52, 53, 60});
  Outcome r = transfer(sim, 500000);
  EXPECT_TRUE(r.good);
  EXPECT_EQ(r.timeouts, 0u);
  EXPECT_LE(r.retransmits, 12u);
}

TEST(Loss, ALostTailIsProbedFor) {
  Sim sim;
  drop_segments(sim, {33, 34, 35});  // the last of 35 segments: nobody acknowledges behind them
  Outcome r = transfer(sim, 34 * 1448 + 100);
  EXPECT_TRUE(r.good);
  EXPECT_EQ(r.timeouts, 0u);  // RFC 8985 section 7
}

TEST(Loss, NewRenoRecoversToo) {
  Sim sim;
  drop_segments(sim, {20, 30});
  TcpSettings s;
  s.congestion = Congestion::kReno;
  Outcome r = transfer(sim, 300000, s);
  EXPECT_TRUE(r.good);
  EXPECT_EQ(r.timeouts, 0u);
}

TEST(Loss, ReorderingAloneCausesNoTimeoutAndFewRetransmissions) {
  Sim sim(11);
  sim.links([](Link& l) {
    l.reorder = 0.05;
    l.reorder_by = 2ms;
  });
  Outcome r = transfer(sim, 3'000'000);
  EXPECT_TRUE(r.good);
  EXPECT_EQ(r.timeouts, 0u);
  EXPECT_LT(r.retransmits, 100u);  // of 2072
}

/// Ten segments at once, of which the second to the fourth get lost: their ACK advances and brings the first
/// SACK. That is no reordering, so the retransmission does not wait for a part of the round trip.
TEST(Loss, AnAckThatAdvancesAndBringsTheFirstSackIsNoReordering) {
  TracedPair traced(1);
  Sim& sim = traced.sim;
  Pair p = traced.open();
  ASSERT_TRUE(p.b);
  const size_t mss = sim[0].stack->tcp().info(*p.a, sim.now).snd_mss;
  drop_segments(sim, {2, 3, 4});
  ASSERT_TRUE(write(sim[0], p.a, std::string(10 * mss, 'x')));
  sim.run_for(1s);
  const std::vector<Duration> times = sim.data_times(0);
  ASSERT_EQ(times.size(), 13u);
  EXPECT_EQ(times[9], Duration{0});
  EXPECT_EQ(times[10], 10ms) << "as soon as the SACK is here";
  EXPECT_EQ(sim[0].stack->tcp().info(*p.a, sim.now).reorderings, 0u);
}

struct Kept {
  int kept = 0, undone = 0;
};

/// A steady flow that loses what `lose` says once, in worlds whose clocks differ by a millisecond: is the
/// window smaller `later`?
Kept kept_responses(int worlds, Duration later, const std::function<void(Sim&)>& lose) {
  Kept r;
  for (int k = 0; k < worlds; ++k) {
    Sim sim(1);
    sim.now += 1ms * k;
    sim.links([](Link& l) {
      l.delay = 10ms;
      l.bits_per_second = 100'000'000;
      l.queue_frames = 2000;
    });
    End client(sim[0], 1, 2, 40'000'000), server(sim[1], 2, 1, 0);
    Acceptor acceptor(sim[1], {sim[1].v4(), 80});
    acceptor.accepted = [&](TcpConn* c) { server.attach(c); };
    client.attach(*sim[0].stack->tcp().connect({sim[0].v4(), 4000}, {sim[1].v4(), 80},
                                               sim[0].route_to(sim[1]), {}, static_cast<Actor*>(&client),
                                               sim.now));
    sim.run_for(700ms);
    auto window = [&] { return sim[0].stack->tcp().info(*client.conn, sim.now).snd_cwnd_segments; };
    const uint32_t before = window();
    const uint64_t resent = sim[0].counter(Counter::tcp_retransmits);
    lose(sim);
    sim.run_for(later);
    EXPECT_GT(sim[0].counter(Counter::tcp_retransmits), resent);
    ++(window() < before ? r.kept : r.undone);
  }
  return r;
}

// The echoed timestamp of a retransmission is not older than itself (RFC 3522 section 3.2).
TEST(Undo, LeavesTheResponseToALoss) {
  const Kept r = kept_responses(20, 150ms, [](Sim& sim) { drop_segments(sim, {1}); });
  EXPECT_EQ(r.undone, 0);
}

// Of a recovery that begins while the retransmissions of the one before are in flight.
TEST(Undo, LeavesTheResponseToLossesOfLossesInARow) {
  const Kept r = kept_responses(20, 150ms, [](Sim& sim) {
    drop_segments(sim, {1, 100, 180, 181, 260, 330});
  });
  EXPECT_EQ(r.undone, 0);
}

TEST(Undo, LeavesTheResponseToATimeout) {
  const Kept r = kept_responses(20, 400ms, [](Sim& sim) {
    sim[0].link.cut = true;
    sim.run_for(450ms);
    sim[0].link.cut = false;
  });
  EXPECT_EQ(r.undone, 0);
}

/// A transfer whose ACKs are late by 600 ms for a while, which is longer than the timeout.
Outcome transfer_with_late_acks(const HostOptions& options, uint64_t& spurious) {
  Sim sim(6, 2, options);
  sim.links([](Link& l) { l.bits_per_second = 50'000'000; });
  const Instant from = sim.now + 300ms, to = from + 600ms;
  sim.filter = [&](int host, std::span<const uint8_t> frame) {
    if (host == 0 || sim.now < from || sim.now >= to) return true;
    const std::vector<uint8_t> copy(frame.begin(), frame.end());
    sim.after(to - from, [&sim, copy] { sim.inject(0, copy); });
    return false;
  };
  const Outcome r = transfer(sim, 5'000'000);
  spurious = sim[0].counter(Counter::tcp_spurious_timeouts);
  return r;
}

// RFC 5682: without timestamps it is F-RTO that finds out.
TEST(Undo, TakesASpuriousTimeoutBack) {
  HostOptions options;
  options.config.timestamps = false;
  for (const bool sack : {true, false}) {
    options.config.sack = sack;
    uint64_t spurious = 0;
    const Outcome r = transfer_with_late_acks(options, spurious);
    EXPECT_TRUE(r.good);
    EXPECT_GE(r.timeouts, 1u);
    EXPECT_EQ(spurious, 1u) << sack;
    EXPECT_LE(r.retransmits, r.timeouts + 1) << sack;  // and a tail probe
  }
}

TEST(Undo, OfTimeoutsMayBeOff) {
  HostOptions options;
  options.config.timestamps = options.config.frto = false;
  uint64_t spurious = 0;
  const Outcome r = transfer_with_late_acks(options, spurious);
  EXPECT_TRUE(r.good);
  EXPECT_EQ(spurious, 0u);
  EXPECT_GT(r.retransmits, r.timeouts + 1);
}

/// A path, what crosses it, and how it should: data, so that a regression is a difference.
struct Path {
  const char* name;
  uint64_t bits_per_second;
  Duration round_trip;
  double queue;  ///< in bandwidth-delay products
  double loss;
  uint64_t bytes;
  double least_goodput;  ///< bit/s
  double most_lost;      ///< frames that the path drops, of those that the bytes need
};
void PrintTo(const Path& p, std::ostream* out) { *out << p.name; }

// Reno has 1.22 MSS / (RTT sqrt(p)) bit/s of a path that loses at random (Mathis); CUBIC has no less.
const Path kPaths[] = {
    {"50 Mb/s, 20 ms", 50'000'000, 20ms, 1, 0, 3'000'000, 35e6, 0.03},
    {"20 Mb/s, 50 ms", 20'000'000, 50ms, 1, 0, 3'000'000, 14e6, 0.03},
    {"100 Mb/s, 20 ms, short queue", 100'000'000, 20ms, 0.5, 0, 3'000'000, 60e6, 0.03},
    {"100 Mb/s, 20 ms, long queue", 100'000'000, 20ms, 2, 0, 10'000'000, 80e6, 0.03},
    {"1 Gb/s, 10 ms", 1'000'000'000, 10ms, 1, 0, 60'000'000, 700e6, 0.03},
    {"20 Mb/s, 100 ms, very short queue", 20'000'000, 100ms, 0.25, 0, 5'000'000, 13e6, 0.04},
    {"100 Mb/s, 10 ms, a loss in a thousand", 100'000'000, 10ms, 1, 0.001, 20'000'000, 40e6, 0.01},
    {"100 Mb/s, 10 ms, a loss in a hundred", 100'000'000, 10ms, 1, 0.01, 10'000'000, 14e6, 0.015},
};

struct Goodput : testing::TestWithParam<Path> {};
INSTANTIATE_TEST_SUITE_P(Paths, Goodput, testing::ValuesIn(kPaths));

TEST_P(Goodput, SendsAgainWhatThePathDroppedAndNoMore) {
  const Path& path = GetParam();
  for (const uint32_t buffer_size : {2048u, 4096u}) {
    HostOptions options;
    options.frames = 16384;
    options.buffer_size = buffer_size;
    options.config.receive_buffer = options.config.send_buffer = 8 << 20;
    Sim sim(3, 2, options);
    sim.links([&](Link& l) { l.delay = path.round_trip / 2; });
    const double product = static_cast<double>(path.bits_per_second) / 8 *
                           std::chrono::duration<double>(path.round_trip).count();
    sim[0].link.bits_per_second = path.bits_per_second;
    sim[0].link.queue_frames = static_cast<uint32_t>(path.queue * product / 1538);
    sim[0].link.loss = path.loss;
    Outcome r = transfer(sim, path.bytes);
    EXPECT_TRUE(r.good);
    const double rate = static_cast<double>(path.bytes) * 8 / std::chrono::duration<double>(r.took).count();
    EXPECT_GT(rate, path.least_goodput);
    EXPECT_EQ(r.timeouts, 0u);
    EXPECT_LE(r.retransmits, sim[0].lost_frames + sim[0].lost_frames / 10 + 2);
    EXPECT_LE(static_cast<double>(sim[0].lost_frames),
              path.most_lost * static_cast<double>(path.bytes) / 1448);
  }
}

// Two flows of one host share its link; the second comes when the first has the whole of it.
TEST(Goodput, IsSharedFairly) {
  HostOptions options;
  options.frames = 16384;
  Sim sim(5, 2, options);
  sim.links([](Link& l) { l.delay = 10ms; });
  sim[0].link.bits_per_second = 50'000'000;
  sim[0].link.queue_frames = 80;  // a bandwidth-delay product
  Acceptor acceptor(sim[1], {sim[1].v4(), 80});
  std::vector<std::unique_ptr<End>> clients, servers;
  acceptor.accepted = [&](TcpConn* c) {
    servers.push_back(std::make_unique<End>(sim[1], 2, 1, 0));
    servers.back()->attach(c);
  };
  for (uint16_t port : {4000, 4001}) {
    clients.push_back(std::make_unique<End>(sim[0], 1, 2, 1'000'000'000));
    clients.back()->attach(*sim[0].stack->tcp().connect({sim[0].v4(), port}, {sim[1].v4(), 80},
                                                        sim[0].route_to(sim[1]), {},
                                                        static_cast<Actor*>(clients.back().get()), sim.now));
    sim.run_for(5s);
  }
  sim.run_for(15s);
  const uint64_t before[] = {servers[0]->read, servers[1]->read};
  sim.run_for(60s);
  double sum = 0, squares = 0;
  for (int i = 0; i < 2; ++i) {
    const auto rate = static_cast<double>(servers[i]->read - before[i]);
    sum += rate;
    squares += rate * rate;
  }
  // Jain's index. Without any noise two flows may fall into step, so that each second loss hits one of them
  // only: 0.88.
  EXPECT_GT(sum * sum / (2 * squares), 0.85);
  EXPECT_GT(sum * 8 / 60, 40e6);
}

/// The beginning of a transfer over 100 Mb/s and 20 ms with a queue of one bandwidth-delay product. Slow
/// start that ends where the path is full, within eight round trips, loses nothing there.
struct SlowStart : testing::Test {
  SlowStart() {
    sim.tracing = true;
    sim.links([](Link& l) { l.delay = 10ms; });
    sim[0].link.bits_per_second = 100'000'000;
    sim[0].link.queue_frames = 165;
    acceptor.accepted = [&](TcpConn* c) { server.attach(c); };
  }
  static HostOptions options() {
    HostOptions o;
    o.frames = 16384;
    return o;
  }
  void run(Duration d = 200ms) {
    client.attach(*sim[0].stack->tcp().connect({sim[0].v4(), 4000}, {sim[1].v4(), 80},
                                               sim[0].route_to(sim[1]), {}, static_cast<Actor*>(&client),
                                               sim.now));
    sim.run_for(d);
    EXPECT_GT(server.read * 8e-6 / std::chrono::duration<double>(d).count(), 40);
  }
  Sim sim{4, 2, options()};
  End client{sim[0], 1, 2, 1'000'000'000}, server{sim[1], 2, 1, 0};
  Acceptor acceptor{sim[1], {sim[1].v4(), 80}};
};

TEST_F(SlowStart, EndsBeforeTheQueueIsFull) {
  run();
  EXPECT_EQ(sim[0].lost_frames, 0u);
}

// Until the first loss nobody knows how much the path holds. A plateau of CUBIC's where slow start ended
// would leave it to others for seconds; Linux' flows grow by a twentieth each round trip.
TEST_F(SlowStart, IsFollowedByQuickGrowthUntilTheFirstLoss) {
  run(300ms);
  EXPECT_EQ(sim[0].lost_frames, 0u);
  sim.run_for(200ms);
  EXPECT_GT(sim[0].lost_frames, 0u);
  EXPECT_LT(sim[0].lost_frames, 30u);
}

// A host that is busy takes ACKs in, or sends them, some milliseconds late and many at once.
TEST_F(SlowStart, EndsInTimeWhereAcksPause) {
  sim.filter = [&](int host, std::span<const uint8_t>) {
    return host == 0 || (sim.now - Instant{}) % Duration{7ms} > Duration{2500us};
  };
  run();
  EXPECT_EQ(sim[0].lost_frames, 0u);
}

// A process that shares its CPU looks every two milliseconds, now sooner, now later. All ACKs that have come
// meanwhile are one look's; they tell of a full path nevertheless.
TEST_F(SlowStart, EndsInTimeWhereLooksAreSeldom) {
  Rng rng(3);
  Instant look = sim.now + 30ms;  // the handshake is over
  sim.filter = [&](int host, std::span<const uint8_t> frame) {
    if (host == 0 || sim.now < look - 5ms) return true;
    while (look <= sim.now) look += Duration(static_cast<int64_t>(rng.below(4'000'000)) + 1000);
    const std::vector<uint8_t> copy(frame.begin(), frame.end());
    sim.after(look + 10ms - sim.now, [this, copy] { sim.inject(0, copy); });
    return false;
  };
  run();
  EXPECT_LT(sim[0].lost_frames, 60u);  // 250 and more where slow start goes on until the queue is full
}

// One late look at the ACKs of a whole flight is no queue.
TEST_F(SlowStart, DoesNotEndByOneDelayOfManyAcks) {
  const Instant from = sim.now + 45ms, to = from + 10ms;  // the second flight's, of 20 segments
  sim.filter = [&](int host, std::span<const uint8_t> frame) {
    if (host == 0 || sim.now < from || sim.now > to) return true;
    const std::vector<uint8_t> copy(frame.begin(), frame.end());
    sim.after(to + 18ms - sim.now, [this, copy] { sim.inject(0, copy); });
    return false;
  };
  run();
  uint32_t third = 0;
  for (const Sent& s : sim.sent_by(0)) third += s.payload > 0 && s.at > to + 15ms && s.at < to + 25ms;
  EXPECT_GE(third, 38u);
}

// While a gap waits for what comes late, only SACKs tell that the path is full.
TEST_F(SlowStart, EndsInTimeWhereSegmentsAreReordered) {
  sim[0].link.reorder = 0.01;
  run();
  EXPECT_LT(sim[0].lost_frames, 20u);
}

TEST(Loss, ACleanPathIsFilled) {
  Sim sim(3);
  sim.links([](Link& l) {
    l.bits_per_second = 100'000'000;
    l.queue_frames = 200;
  });
  const uint64_t bytes = 50'000'000;
  Outcome r = transfer(sim, bytes);
  EXPECT_TRUE(r.good);
  const double rate = static_cast<double>(bytes) * 8 / std::chrono::duration<double>(r.took).count();
  EXPECT_GT(rate, 80e6);
}

TEST(Loss, ALongFatPathIsFilled) {
  HostOptions options;
  options.frames = 16384;
  options.config.receive_buffer = options.config.send_buffer = 8 << 20;
  Sim sim(3, 2, options);
  sim.links([](Link& l) {
    l.bits_per_second = 1'000'000'000;
    l.delay = 10ms;
    l.queue_frames = 3000;
  });
  const uint64_t bytes = 200'000'000;
  Outcome r = transfer(sim, bytes);
  EXPECT_TRUE(r.good);
  const double rate = static_cast<double>(bytes) * 8 / std::chrono::duration<double>(r.took).count();
  EXPECT_GT(rate, 600e6);
}

/// One of ten segments in flight is lost: what TCP_INFO says on the way.
TEST(Loss, IsToldByTheInformation) {
  Sim sim;
  Pairs pairs(sim);
  Pair p = pairs.connect();
  ASSERT_TRUE(p.b);
  auto info = [&](int host) { return sim[host].stack->tcp().info(host == 0 ? *p.a : *p.b, sim.now); };
  const size_t mss = info(0).snd_mss;
  drop_segments(sim, {4});
  ASSERT_TRUE(write(sim[0], p.a, std::string(10 * mss, 'x')));
  ASSERT_TRUE(sim.run_until([&] { return info(0).resent_segments > 0; }, 1s));
  const TcpInfo in = info(0);
  EXPECT_EQ(in.congestion_state, 3);  // TCP_CA_Recovery
  EXPECT_EQ(in.lost_segments, 1u);
  EXPECT_EQ(in.resent_segments, 1u);
  EXPECT_GE(in.sacked_segments, 3u);
  EXPECT_EQ(in.unacked_segments, 7u);
  EXPECT_EQ(in.delivered, 1 + 3 + in.sacked_segments);
  sim.run_for(1s);
  EXPECT_EQ(info(1).out_of_order_segments, 6u);
  EXPECT_EQ(info(0).delivered, 11u);
  EXPECT_EQ(info(0).bytes_acked, 10 * mss + 1);
  EXPECT_EQ(info(0).duplicates_reported, 0u);
  EXPECT_EQ(info(0).congestion_state, 0);
  sim.links([](Link& l) { l.cut = true; });
  ASSERT_TRUE(write(sim[0], p.a, "x"));
  ASSERT_TRUE(sim.run_until([&] { return info(0).retransmits == 2; }, 10s));
  EXPECT_EQ(info(0).congestion_state, 4);  // TCP_CA_Loss
  EXPECT_EQ(info(0).rehashes, 2u);
  EXPECT_GT(info(0).busy_us, 300'000u);
  EXPECT_EQ(info(0).window_limited_us, 0u);
}

/// Segments that overtake others: how far, and that it is a state of its own.
TEST(Loss, ReorderingIsToldByTheInformation) {
  Sim sim(4);
  sim[0].link.reorder = 0.3;
  sim[0].link.reorder_by = 4ms;
  sim[0].link.bits_per_second = 100'000'000;
  Pairs pairs(sim);
  Pair p = pairs.connect();
  ASSERT_TRUE(p.b);
  auto info = [&] { return sim[0].stack->tcp().info(*p.a, sim.now); };
  EXPECT_EQ(info().reordering, 3u);
  ASSERT_TRUE(write(sim[0], p.a, std::string(300'000, 'x')));
  bool disorder = false;
  EXPECT_TRUE(sim.run_until(
      [&] {
        disorder |= info().congestion_state == 1;  // TCP_CA_Disorder
        return info().unacked_segments == 0;
      },
      10s));
  EXPECT_TRUE(disorder);
  EXPECT_GT(info().reorderings, 0u);
  EXPECT_GT(info().reordering, 3u);
  EXPECT_LE(info().reordering, 40u);  // 4 ms of 12 segments each
}

TEST(PathMtu, IcmpTellsTheWay) {
  for (bool v6 : {false, true}) {
    Sim sim;
    sim.links([](Link& l) { l.mtu = 1300; });
    Pairs pairs(sim, {.v6 = v6});
    Pair p = pairs.connect();
    ASSERT_TRUE(p.b);
    auto sent = write(sim[0], p.a, std::string(100000, 'x'));
    size_t got = 0;
    EXPECT_TRUE(sim.run_until(
        [&] {
          if (auto r = read(sim[1], p.b)) got += r->size();
          return got == *sent;
        },
        20s));
    const TcpInfo info = sim[0].stack->tcp().info(*p.a, sim.now);
    EXPECT_EQ(info.pmtu, 1300u);
    EXPECT_LE(info.snd_mss, 1300u - 40);
    EXPECT_GT(sim[0].counter(Counter::icmp_errors), 0u);
    EXPECT_EQ(sim[0].counter(Counter::tcp_timeouts), 0u);
  }
}

// IP_PMTUDISC_DONT: routers may cut what is too long, by its ID; what they say of the path's MTU is not for
// it.
TEST(PathMtu, MayBeLeftToRouters) {
  Sim sim;
  TcpSettings settings;
  settings.dont_fragment = false;
  Pairs pairs(sim, {.a = settings});
  std::set<uint16_t> ids;
  int frames = 0, whole = 0;
  sim.filter = [&](int host, std::span<const uint8_t> f) {
    if (host != 0) return true;
    const auto& ip = wire_at<Ipv4Header>(&f[14]);
    if (f.size() < 100) return true;
    ids.insert(ip.id);
    ++frames;
    whole += (ip.fragment & kIpDontFragment) != 0;
    return true;
  };
  Pair p = pairs.connect();
  ASSERT_TRUE(p.b);
  ASSERT_TRUE(write(sim[0], p.a, std::string(10'000, 'x')));
  sim.run_for(1s);
  EXPECT_GE(frames, 7);
  EXPECT_EQ(whole, 0);
  EXPECT_EQ(ids.size(), static_cast<size_t>(frames));
}

// net.ipv4.tcp_slow_start_after_idle.
TEST(Idleness, MayKeepTheWindow) {
  for (const bool slow_start : {true, false}) {
    HostOptions options;
    options.config.slow_start_after_idle = slow_start;
    options.config.send_buffer = options.config.receive_buffer = 1 << 20;
    Sim sim(1, 2, options);
    Pairs pairs(sim);
    Pair p = pairs.connect();
    ASSERT_TRUE(p.b);
    ASSERT_TRUE(write(sim[0], p.a, std::string(200'000, 'x')));
    sim.run_for(2s);
    const uint32_t before = sim[0].stack->tcp().info(*p.a, sim.now).snd_cwnd_segments;
    EXPECT_GT(before, 10u);
    ASSERT_TRUE(write(sim[0], p.a, "x"));
    const uint32_t after = sim[0].stack->tcp().info(*p.a, sim.now).snd_cwnd_segments;
    EXPECT_EQ(after, slow_start ? 10 : before);
  }
}

// tcp_cwnd_restart(): a half for each timeout of silence, and slow start back to three quarters.
TEST(Idleness, HalvesTheWindowForEachTimeout) {
  Sim sim;
  Pairs pairs(sim);
  Pair p = pairs.connect();
  ASSERT_TRUE(p.b);
  auto info = [&] { return sim[0].stack->tcp().info(*p.a, sim.now); };
  ASSERT_TRUE(write(sim[0], p.a, std::string(200'000, 'x')));
  ASSERT_TRUE(sim.run_until([&] { return info().unacked_segments == 0; }, 1s));
  const uint32_t before = info().snd_cwnd_segments;
  ASSERT_GE(before, 40u);
  sim.run_for(1us * (info().rto_us * 3 / 2));
  ASSERT_TRUE(write(sim[0], p.a, "x"));
  EXPECT_EQ(info().snd_cwnd_segments, before / 2);
}

// RFC 9438 section 5.8: the curve does not go on while nothing is sent.
TEST(Idleness, IsNoTimeOfCubics) {
  HostOptions options;
  options.frames = 16384;
  options.config.slow_start_after_idle = false;
  options.config.receive_buffer = options.config.send_buffer = 16 << 20;
  Sim sim(1, 2, options);
  sim.links([](Link& l) { l.delay = 25ms; });
  Pairs pairs(sim);
  Pair p = pairs.connect();
  ASSERT_TRUE(p.b);
  auto window = [&] { return sim[0].stack->tcp().info(*p.a, sim.now).snd_cwnd_segments; };
  /// Sends for so long without a pause.
  auto busy = [&](Duration d) {
    for (const Instant end = sim.now + d; sim.now < end; sim.run_for(5ms)) {
      while (write(sim[0], p.a, std::string(65536, 'x'))) sim.settle();
      while (read(sim[1], p.b)) {
      }
    }
  };
  busy(300ms);
  drop_segments(sim, {50});
  busy(500ms);
  sim.filter = nullptr;
  while (sim[0].stack->tcp().unacked_bytes(*p.a) > 0) {
    sim.run_for(50ms);
    while (read(sim[1], p.b)) {
    }
  }
  sim.run_for(30s);
  const uint32_t before = window();
  ASSERT_GT(before, 100u);
  busy(400ms);  // eight round trips
  EXPECT_LT(window(), before + before / 5);
}

// RFC 4821: a path that drops large packets in silence.
TEST(PathMtu, ABlackHoleIsFoundByProbing) {
  Sim sim;
  sim.links([](Link& l) {
    l.mtu = 1300;
    l.icmp = false;
  });
  Outcome r = transfer(sim, 100000, {}, 120s);
  EXPECT_TRUE(r.good);
}

TEST(PathMtu, JumboFramesInChains) {
  HostOptions options;
  options.mtu = 9000;
  Sim sim(1, 2, options);
  sim.tracing = true;
  Outcome r = transfer(sim, 1'000'000);
  EXPECT_TRUE(r.good);
  uint32_t largest = 0;
  for (const Sent& s : sim.trace) largest = std::max(largest, s.payload);
  EXPECT_EQ(largest, 9000u - 40 - 12);
}

// TCP_INIT_CWND: ten segments, whatever their size.
TEST(PathMtu, JumboFramesBeginWithTenToo) {
  HostOptions options;
  options.mtu = 9000;
  options.config.receive_buffer = 1 << 20;
  TracedPair traced(1, options);
  Pair p = traced.open();
  ASSERT_TRUE(write(traced.sim[0], p.a, "x"));  // its ACK offers more than a SYN's window can
  traced.sim.run_for(1s);
  traced.sim.clear_trace();
  ASSERT_TRUE(write(traced.sim[0], p.a, std::string(200'000, 'x')));
  traced.sim.run_for(8ms);
  EXPECT_EQ(traced.sim.data_times(0).size(), 10u);
}

TEST(PathMtu, DevicesThatSegmentAndSum) {
  HostOptions options;
  options.tx_checksum = options.tso = true;
  Sim sim(1, 2, options);
  sim.tracing = true;
  drop_segments(sim, {50, 51, 90});
  Outcome r = transfer(sim, 1'000'000);
  EXPECT_TRUE(r.good);
  EXPECT_EQ(r.timeouts, 0u);
  for (const Sent& s : sim.trace) EXPECT_LE(s.payload, 1448u);
}

}  // namespace
}  // namespace accel::sim
