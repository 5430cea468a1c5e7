// ECN (RFC 3168) over paths that mark: what a queue that marks saves, and what may not be ECN-capable.
#include <gtest/gtest.h>

#include "sim.h"
#include "stack/tcp/segment.h"

namespace accel::sim {
namespace {

constexpr uint8_t kEct0 = 2;

HostOptions asking(bool ask) {
  HostOptions o;
  o.frames = 16384;
  o.config.ecn_ask = ask;
  return o;
}

/// A flow over 50 Mb/s and 20 ms, whose queue of two bandwidth-delay products marks from a half on.
struct Marking {
  explicit Marking(bool ask, TcpSettings settings = {}) : sim(6, 2, asking(ask)) {
    sim.tracing = true;
    sim.links([](Link& l) { l.delay = 10ms; });
    sim[0].link.bits_per_second = 50'000'000;
    sim[0].link.queue_frames = 160;
    sim[0].link.mark_frames = 40;
    acceptor.accepted = [this](TcpConn* c) { server.attach(c); };
    client.attach(*sim[0].stack->tcp().connect({sim[0].v4(), 4000}, {sim[1].v4(), 80},
                                               sim[0].route_to(sim[1]), settings,
                                               static_cast<Actor*>(&client), sim.now));
  }
  double rate_of(Duration d) {
    const uint64_t before = server.read;
    sim.run_for(d);
    return static_cast<double>(server.read - before) * 8 / std::chrono::duration<double>(d).count();
  }
  TcpInfo info(int host) {
    const End& end = host == 0 ? client : server;
    return sim[host].stack->tcp().info(*end.conn, sim.now);
  }
  Sim sim;
  End client{sim[0], 1, 2, 1'000'000'000}, server{sim[1], 2, 1, 0};
  Acceptor acceptor{sim[1], {sim[1].v4(), 80}};
};

TEST(Ecn, AMarkingQueueLosesNothing) {
  for (const Congestion congestion : {Congestion::kCubic, Congestion::kReno}) {
    TcpSettings settings;
    settings.congestion = congestion;
    Marking flow(true, settings);
    EXPECT_GT(flow.rate_of(20s), 35e6);  // Reno halves a window that half a product of queue is in
    EXPECT_GT(flow.sim[0].marked_frames, 0u);
    EXPECT_EQ(flow.sim[0].lost_frames, 0u);
    EXPECT_EQ(flow.sim[0].counter(Counter::tcp_retransmits), 0u);
    EXPECT_GT(flow.sim[0].counter(Counter::tcp_ecn_reductions), 1u);
    EXPECT_EQ(flow.sim[1].counter(Counter::tcp_ce_marks), flow.sim[0].marked_frames);
    EXPECT_TRUE(flow.info(0).ecn && flow.info(1).ecn && flow.info(1).ecn_seen);
    EXPECT_FALSE(flow.info(0).ecn_seen);
    EXPECT_GT(flow.info(0).delivered_ce, 0u);
    EXPECT_LT(flow.info(0).delivered_ce, flow.info(0).delivered);
  }
}

TEST(Ecn, IsNotAskedForByDefault) {
  Marking flow(false);
  flow.rate_of(5s);
  EXPECT_EQ(flow.sim[0].marked_frames, 0u);
  EXPECT_GT(flow.sim[0].lost_frames, 0u);
  for (const Sent& s : flow.sim.trace) {
    ASSERT_EQ(s.ecn, 0);
    ASSERT_EQ(s.flags & (kEce | kCwr), 0);
  }
}

/// RFC 3168 section 6.1.2: the window is reduced once for a window of text, and CWR tells of each reduction.
TEST(Ecn, EachReductionIsToldOnce) {
  Marking flow(true);
  flow.rate_of(10s);
  uint64_t told = 0;
  bool syn = true;
  for (const Sent& s : flow.sim.sent_by(0)) {
    if (!std::exchange(syn, false) && (s.flags & kCwr)) {
      ++told;
      EXPECT_GT(s.payload, 0u);
      EXPECT_EQ(s.ecn, kEct0);
    }
  }
  EXPECT_EQ(told, flow.sim[0].counter(Counter::tcp_ecn_reductions));
}

/// RFC 3168 section 6.1.3: from a mark's arrival on each ACK has ECE, until CWR has come.
TEST(Ecn, AMarkIsEchoedUntilCwr) {
  Marking flow(true);
  flow.rate_of(10s);
  // A mark within a reduction is heeded when that is through: two round trips and their queues.
  Instant since{};
  bool told = false;
  int echoes = 0;
  for (const Sent& s : flow.sim.trace) {
    if (s.flags & kSyn) continue;
    if (s.host == 0) {
      told = told || (s.flags & kCwr);
    } else if ((s.flags & kEce) && since == Instant{}) {
      since = s.at;
      told = false;
      ++echoes;
    } else if (!(s.flags & kEce) && since != Instant{}) {
      ASSERT_TRUE(told);
      since = {};
    }
    if (since != Instant{}) {
      ASSERT_LT(s.at - since, 200ms);
    }
  }
  EXPECT_GT(echoes, 3);
}

/// RFC 3168 section 6.1.5: over paths that lose, mark and reorder nothing that is sent again is ECN-capable,
/// nor what has no text.
TEST(Ecn, OnlyNewTextIsCapable) {
  uint64_t marked = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    HostOptions options = asking(true);
    options.config.ecn_fallback = false;  // the first SYN may get lost
    options.tso = options.tx_checksum = seed % 2 == 0;
    Sim sim(seed, 2, options);
    sim.tracing = true;
    sim.links([&](Link& l) {
      l.loss = 0.02;
      l.mark = 0.02;
      l.reorder = 0.01;
    });
    PairOptions pair;
    pair.v6 = seed % 4 < 2;
    Pairs pairs(sim, pair);
    const Pair p = pairs.connect();
    ASSERT_TRUE(p.a && p.b);
    std::string got;
    const std::string text(200'000, 'x');
    size_t given = 0;
    ASSERT_TRUE(sim.run_until(
        [&] {
          while (given < text.size()) {
            auto n = write(sim[0], p.a, std::string_view(text).substr(given));
            if (!n) break;
            given += *n;
          }
          while (auto r = read(sim[1], p.b)) {
            if (r->empty()) break;
            got += *r;
          }
          return got.size() == text.size();
        },
        100s));
    for (int host : {0, 1}) {
      uint32_t sent_to = 0;
      for (const Sent& s : sim.sent_by(host)) {
        const bool fresh = s.payload > 0 && (sent_to == 0 || seq_ge(s.seq, sent_to));
        EXPECT_EQ(s.ecn, fresh ? kEct0 : 0) << "seed " << seed << ", " << s.seq << ", " << s.payload;
        if (s.payload > 0) sent_to = sent_to == 0 ? s.seq + s.payload : seq_max(sent_to, s.seq + s.payload);
      }
    }
    marked += sim[0].marked_frames;
  }
  EXPECT_GT(marked, 40u);
}

/// tcp_init_cwnd_reduction() queues CWR, tcp_undo_cwnd_reduction() takes it back.
TEST(Ecn, ALossIsToldByCwr) {
  TracedPair traced(1, asking(true));
  const Pair p = traced.open();
  Sim& sim = traced.sim;
  sim.filter = [n = 0](int host, std::span<const uint8_t> f) mutable {
    return host != 0 || f.size() < 1000 || ++n != 2;
  };
  ASSERT_TRUE(write(sim[0], p.a, std::string(8 * 1448, 'x')));
  sim.run_for(500ms);
  ASSERT_TRUE(write(sim[0], p.a, "x"));
  ASSERT_TRUE(write(sim[0], p.a, "x"));
  sim.run_for(500ms);
  std::vector<Sent> text;
  for (const Sent& s : sim.sent_by(0))
    if (s.payload > 0) text.push_back(s);
  ASSERT_GE(text.size(), 10u);
  EXPECT_EQ(text[8].ecn, 0) << "the retransmission";
  EXPECT_EQ(text[8].flags & kCwr, 0);
  EXPECT_EQ(text[9].flags & kCwr, kCwr);
  EXPECT_EQ(sim[0].counter(Counter::tcp_ecn_reductions), 0u);
}

}  // namespace
}  // namespace accel::sim
