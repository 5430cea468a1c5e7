// IPv6 flow labels, as net.ipv6.auto_flowlabels and IPV6_AUTOFLOWLABEL want them.
#include <gtest/gtest.h>

#include <set>

#include "sim.h"
#include "stack/udp.h"
#include "stack/wire/ipv6.h"

namespace accel::sim {
namespace {

using Labels = std::vector<uint32_t>;

HostOptions mode(AutoFlowLabels m, bool ranges = false) {
  HostOptions o;
  o.config.auto_flow_labels = m;
  o.config.flow_label_ranges = ranges;
  o.config.secret = {0x0123456789abcdef, 0xfedcba9876543210};
  return o;
}

struct World {
  explicit World(HostOptions options = mode(AutoFlowLabels::kOptOut)) : sim(5, 2, options) {
    sim.filter = [this](int host, std::span<const uint8_t> frame) {
      Ipv6Header ip;
      if (frame.size() < 14 + sizeof ip || frame[14] >> 4 != 6) return true;
      std::memcpy(&ip, frame.data() + 14, sizeof ip);
      sent[host].push_back(ip.version_class_flow & 0xfffff);
      return !cut || host != 0;
    };
  }
  Pair connect(TcpSettings a = {}, TcpSettings b = {}) {
    PairOptions options{.v6 = true, .a = a, .b = b};
    options.port_b = next_port++;
    all.push_back(std::make_unique<Pairs>(sim, options));
    return all.back()->connect();
  }
  void forget() { sent[0].clear(), sent[1].clear(); }
  /// The one label of all that a host sent since then.
  uint32_t only(int host) {
    EXPECT_FALSE(sent[host].empty());
    const std::set<uint32_t> different(sent[host].begin(), sent[host].end());
    EXPECT_EQ(different.size(), 1u);
    return *different.begin();
  }
  void exchange(const Pair& p) {
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(write(sim[0], p.a, std::string(5000, 'a')));
      sim.run_for(100ms);
      ASSERT_EQ(read(sim[1], p.b)->size(), 5000u);
      ASSERT_TRUE(write(sim[1], p.b, "b"));
      sim.run_for(100ms);
      ASSERT_EQ(*read(sim[0], p.a), "b");
    }
  }
  Sim sim;
  Labels sent[2];
  bool cut = false;  ///< what host 0 sends gets lost
  uint16_t next_port = 80;
  std::vector<std::unique_ptr<Pairs>> all;
};

TEST(FlowLabel, OneForTheWholeOfAConnectionAndOthersForOthers) {
  World w;
  std::set<uint32_t> seen;
  for (int i = 0; i < 8; ++i) {
    w.forget();
    Pair p = w.connect();
    w.exchange(p);
    const uint32_t a = w.only(0), b = w.only(1);
    EXPECT_NE(a, 0u);
    EXPECT_NE(b, 0u);
    seen.insert({a, b});
    w.sim[0].stack->tcp().close(p.a, false, w.sim.now);
    w.sim.settle();
    w.sim.run_for(100ms);
    w.sim[1].stack->tcp().close(p.b, false, w.sim.now);
    w.sim.settle();
    w.sim.run_for(100ms);
    EXPECT_EQ(w.only(0), a);
    EXPECT_EQ(w.only(1), b);
  }
  EXPECT_EQ(seen.size(), 16u);
}

TEST(FlowLabel, AnotherOneWithEachTimeout) {
  World w;
  Pair p = w.connect();
  w.exchange(p);
  const uint32_t before = w.only(0);
  w.forget();
  w.cut = true;
  ASSERT_TRUE(write(w.sim[0], p.a, "x"));
  w.sim.run_for(4s);  // the segment, a tail probe, and the timeouts
  ASSERT_GE(w.sent[0].size(), 4u);
  EXPECT_EQ(w.sent[0][0], before);
  EXPECT_EQ(w.sent[0][1], before);
  const std::set<uint32_t> different(w.sent[0].begin() + 1, w.sent[0].end());
  EXPECT_EQ(different.size(), w.sent[0].size() - 1);
  w.cut = false;
  w.sim.run_for(4s);
  ASSERT_EQ(*read(w.sim[1], p.b), "x");
  w.forget();
  w.exchange(p);
  EXPECT_NE(w.only(0), before);
}

TEST(FlowLabel, AnotherOneWithEachSyn) {
  World w;
  w.cut = true;
  TcpConn* c = *w.sim[0].stack->tcp().connect({w.sim[0].v6(), 40000}, {w.sim[1].v6(), 80},
                                              w.sim[0].route_to(w.sim[1], true), {}, nullptr, w.sim.now);
  w.sim.settle();
  w.sim.run_for(8s);
  EXPECT_EQ(w.sent[0].size(), 4u);
  EXPECT_EQ(std::set<uint32_t>(w.sent[0].begin(), w.sent[0].end()).size(), 4u);
  w.sim[0].stack->tcp().close(c, true, w.sim.now);
}

// A peer that goes on repeating what is here does not get the ACKs.
TEST(FlowLabel, AnotherOneWhereAcknowledgmentsGetLost) {
  World w;
  Pair p = w.connect();
  w.exchange(p);
  const uint32_t before = w.only(0);
  w.forget();
  w.cut = true;
  ASSERT_TRUE(write(w.sim[1], p.b, "x"));
  w.sim.run_for(4s);
  ASSERT_GE(w.sent[0].size(), 4u);
  EXPECT_EQ(w.sent[0][0], before);
  EXPECT_EQ(w.sent[0][1], before);
  EXPECT_NE(w.sent[0][2], before);
  EXPECT_NE(w.sent[0][3], w.sent[0][2]);
}

TEST(FlowLabel, KeptWithoutTxRehash) {
  World w;
  TcpSettings settings;
  settings.rehash = false;
  Pair p = w.connect(settings);
  w.cut = true;
  ASSERT_TRUE(write(w.sim[0], p.a, "x"));
  w.sim.run_for(4s);
  EXPECT_NE(w.only(0), 0u);
}

TEST(FlowLabel, OffAndOnAgain) {
  World w;
  TcpSettings off;
  off.auto_flow_label = false;
  Pair p = w.connect(off, off);
  w.exchange(p);
  EXPECT_EQ(w.only(0), 0u);
  EXPECT_EQ(w.only(1), 0u);
  w.forget();
  w.sim[0].stack->tcp().settings(*p.a).auto_flow_label = true;
  w.sim[0].stack->tcp().settings_changed(*p.a, w.sim.now);
  w.exchange(p);
  EXPECT_NE(w.only(0), 0u);
  EXPECT_EQ(w.only(1), 0u);
}

TEST(FlowLabel, TheHostsModes) {
  TcpSettings off, on;
  off.auto_flow_label = false;
  for (auto m :
       {AutoFlowLabels::kOff, AutoFlowLabels::kOptOut, AutoFlowLabels::kOptIn, AutoFlowLabels::kForced}) {
    World w(mode(m));
    w.connect(on, off);
    EXPECT_EQ(w.only(0) != 0, m != AutoFlowLabels::kOff);
    EXPECT_EQ(w.only(1) != 0, m == AutoFlowLabels::kForced);
  }
}

TEST(FlowLabel, TheUpperHalfIsForAutomaticOnes) {
  World w(mode(AutoFlowLabels::kOptOut, true));
  for (int i = 0; i < 8; ++i) {
    w.forget();
    w.connect();
    EXPECT_GE(w.only(0), 0x80000u);
    EXPECT_GE(w.only(1), 0x80000u);
  }
}

TEST(FlowLabel, TheProgramsOwnStays) {
  World w;
  TcpSettings own;
  own.flow_label = 0x12345;
  own.auto_flow_label = false;
  Pair p = w.connect(own);
  w.exchange(p);
  w.cut = true;
  ASSERT_TRUE(write(w.sim[0], p.a, "x"));
  w.sim.run_for(4s);
  EXPECT_EQ(w.only(0), 0x12345u);
}

/// The labels of what the actively closed end answers to FINs that come again and again, after close() or
/// shutdown().
Labels answers_in_time_wait(const TcpSettings& settings, bool close = true) {
  World w;
  Pair p = w.connect(settings);
  if (close)
    w.sim[0].stack->tcp().close(p.a, false, w.sim.now);
  else
    EXPECT_TRUE(w.sim[0].stack->tcp().shutdown(*p.a, SHUT_WR, w.sim.now));
  w.sim.settle();
  w.sim.run_for(100ms);
  w.forget();
  w.cut = true;
  w.sim[1].stack->tcp().close(p.b, false, w.sim.now);
  w.sim.settle();
  w.sim.run_for(2s);
  EXPECT_GE(w.sent[0].size(), 3u);
  return w.sent[0];
}

TEST(FlowLabel, InTimeWait) {
  const Labels automatic = answers_in_time_wait({});
  EXPECT_EQ(std::set<uint32_t>(automatic.begin(), automatic.end()).size(), 1u);
  EXPECT_NE(automatic[0], 0u);
  TcpSettings own, off;
  own.flow_label = 0x12345;
  for (uint32_t label : answers_in_time_wait(own)) EXPECT_EQ(label, 0x12345u);
  // As in Linux: at most the first one is the socket's.
  off.auto_flow_label = false;
  const Labels after_close = answers_in_time_wait(off), after_shutdown = answers_in_time_wait(off, false);
  EXPECT_NE(after_close[0], 0u);
  EXPECT_EQ(after_close[0], after_close[1]);
  EXPECT_EQ(after_shutdown[0], 0u);
  EXPECT_EQ(after_shutdown[1], after_close[1]);
}

TEST(FlowLabel, OfAResetWithoutASocket) {
  World w;
  Pair p = w.connect();
  w.sim[1].link.cut = true;  // its reset is lost, and so are those that follow
  w.sim[1].stack->tcp().close(p.b, true, w.sim.now);
  w.sim.settle();
  w.forget();
  ASSERT_TRUE(write(w.sim[0], p.a, "a"));
  w.sim.run_for(1s);
  EXPECT_GE(w.sent[1].size(), 2u);
  w.sim[0].stack->tcp().close(p.a, true, w.sim.now);
  EXPECT_NE(w.only(1), 0u);
}

TEST(FlowLabel, OfDatagrams) {
  World w;
  Host& h = w.sim[0];
  const Route route = h.route_to(w.sim[1], true);
  const Endpoint from{h.v6(), 1000};
  UdpPcb* pcb = *h.stack->udp().open(from, {}, true, nullptr);
  auto send = [&](uint16_t port, uint32_t wanted = kAutoFlowLabel) {
    const iovec v{const_cast<char*>("x"), 1};
    w.forget();
    EXPECT_TRUE(
        h.stack->udp().send(*pcb, {&v, 1}, from, {w.sim[1].v6(), port}, route, {0, 64, wanted}, w.sim.now));
    w.sim.settle();
    return w.only(0);
  };
  const uint32_t one = send(1), two = send(2);
  EXPECT_NE(one, two);
  EXPECT_NE(one, 0u);
  EXPECT_EQ(send(1), one);
  EXPECT_EQ(send(2), two);
  EXPECT_EQ(send(1, kNoFlowLabel), 0u);
  EXPECT_EQ(send(1, 0x54321), 0x54321u);
  h.stack->udp().connect(*pcb, from, {w.sim[1].v6(), 1});
  const uint32_t connected = send(1);
  EXPECT_NE(connected, 0u);
  EXPECT_EQ(send(1), connected);
  EXPECT_EQ(send(2), connected);  // the socket's, wherever to
  h.stack->udp().close(pcb);
}

}  // namespace
}  // namespace accel::sim
