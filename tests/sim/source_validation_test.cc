// Whose packets come in at all, and by what way they are answered: ip_route_input_slow(),
// fib_validate_source().
#include <gtest/gtest.h>

#include "frames.h"
#include "sim.h"
#include "stack/udp.h"

namespace accel::sim {
namespace {

IpAddress v4(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
  return IpAddress::v4(uint32_t{a} << 24 | uint32_t{b} << 16 | uint32_t{c} << 8 | d);
}
IpAddress v6(std::initializer_list<uint8_t> first, uint8_t last) {
  IpAddress a;
  std::copy(first.begin(), first.end(), a.bytes.begin());
  a.bytes[15] = last;
  return a;
}
RouteEntry row(const IpAddress& prefix, uint8_t length, InterfaceId id,
               RouteKind kind = RouteKind::kUnicast) {
  return {prefix, length, id, {}, 1500, kind};
}

/// Host 1 is 10.0.0.2/24 and fd00::2/64 on interface 0; 192.168.0.0/16 is behind a device without a port, and
/// 172.16.0.0/12 behind a tunnel. No default route.
struct SourceValidation : testing::Test {
  SourceValidation() {
    rules({});
    host().stack->set_routes(table());
    listener = *host().stack->tcp().listen({IpAddress::any_v6(), 80}, false, false, 128, {},
                                           static_cast<Actor*>(&nobody));
    udp = *host().stack->udp().open({IpAddress::any_v6(), 53}, {}, false, static_cast<Actor*>(&nobody));
    host().stack->set_neighbour(0, v4(10, 0, 0, 50), MacAddress{2, 0, 0, 0, 0, 50});
    sim.tracing = true;
  }
  ~SourceValidation() override {
    host().stack->tcp().close_listener(listener);
    host().stack->udp().close(udp);
  }
  Host& host() { return sim[1]; }
  std::vector<RouteEntry> table() {
    return {row(v4(127, 0, 0, 0), 96 + 8, kAnyInterface, RouteKind::kLocal),
            row(host().v4(), 128, 0, RouteKind::kLocal),
            row(v4(10, 0, 0, 255), 128, 0, RouteKind::kBroadcast),
            row(v4(10, 0, 0, 0), 96 + 24, 0),
            row(v4(192, 168, 0, 0), 96 + 16, kAnyInterface),
            row(v4(172, 16, 0, 0), 96 + 12, kAnyInterface, RouteKind::kOther),
            row(v4(203, 0, 113, 0), 96 + 24, kAnyInterface, RouteKind::kUnreachable),
            row(v6({}, 1), 128, kAnyInterface, RouteKind::kLocal),
            row(host().v6(), 128, 0, RouteKind::kLocal),
            row(v6({0xfd}, 0), 64, 0)};
  }
  void rules(const SourceRules& r) {
    Interface info = host().stack->interface(0);
    info.sources = r;
    host().stack->set_interface(0, info);
  }
  /// What a SYN and a datagram from there make; the counter that they move.
  struct Outcome {
    bool answered = false, delivered = false;
    size_t to_kernel = 0;
    Counter counter = Counter::rx_frames;  ///< none of those below
    bool operator==(const Outcome&) const = default;
  };
  Outcome send(const IpAddress& from, IpAddress to = {}, Bytes options = {}) {
    if (to.is_any()) to = from.is_v4() ? host().v4() : host().v6();
    constexpr Counter kCounters[] = {Counter::drop_martian, Counter::drop_reverse_path,
                                     Counter::drop_source_route, Counter::drop_no_way_back};
    uint64_t before[std::size(kCounters)];
    for (size_t i = 0; i < std::size(kCounters); ++i) before[i] = host().counter(kCounters[i]);
    sim.clear_trace();
    host().to_kernel.clear();
    const Endpoint source{from, ++port};
    const auto put = [&](uint8_t protocol, const Bytes& l4) {
      sim.inject(1, frame_of(host().mac(), {from, to, protocol, options}, l4));
    };
    put(6, tcp_segment(source, {to, 80}, {}));
    put(17, udp_datagram(source, {to, 53}, "question"));
    sim.run_for(10ms);
    Outcome out;
    out.answered = !sim.sent_by(1).empty();
    out.to_kernel = host().to_kernel.size();
    std::array<char, 64> text;
    const iovec into{text.data(), text.size()};
    while (host().stack->udp().front(*udp) != nullptr) {
      host().stack->udp().receive(*udp, {&into, 1}, true);
      out.delivered = true;
    }
    for (size_t i = 0; i < std::size(kCounters); ++i)
      if (host().counter(kCounters[i]) != before[i]) out.counter = kCounters[i];
    return out;
  }
  static constexpr Counter kNone = Counter::rx_frames;
  const Outcome taken{true, true, 0, kNone}, martian{false, false, 0, Counter::drop_martian},
      not_reverse{false, false, 0, Counter::drop_reverse_path},
      no_way{false, true, 0, Counter::drop_no_way_back};

  Sim sim{5};
  Recorder nobody;
  TcpListener* listener = nullptr;
  UdpPcb* udp = nullptr;
  uint16_t port = 2000;
};

TEST_F(SourceValidation, MartiansAreDroppedWhateverTheSettings) {
  for (const uint8_t filter : {uint8_t{0}, uint8_t{1}, uint8_t{2}}) {
    rules({filter, false, false, false});
    EXPECT_EQ(send(v4(10, 0, 0, 50)), taken);
    for (const IpAddress& from : {v4(127, 0, 0, 1), v4(0, 0, 0, 5), v4(224, 0, 0, 1), v4(255, 255, 255, 255),
                                  host().v4(), v6({}, 1), host().v6(), v6({0xff, 2}, 1), v6({}, 0)})
      EXPECT_EQ(send(from, from.is_v4() ? IpAddress{} : host().v6()), martian)
          << "filter " << int{filter} << " last byte " << int{from.bytes[15]};
  }
  EXPECT_EQ(sim[1].pool.available(), sim[1].pool.size());
}

TEST_F(SourceValidation, AMappedSourceOverIpv6IsNobody) {
  // frame_of() makes it IPv6, since the destination is.
  EXPECT_EQ(send(v4(127, 0, 0, 1), host().v6()), martian);
  EXPECT_EQ(send(v4(10, 0, 0, 50), host().v6()), martian);
}

TEST_F(SourceValidation, LoopbackByWireNeedsRouteLocalnet) {
  EXPECT_EQ(send(v4(10, 0, 0, 50), v4(127, 0, 0, 1)), martian);
  EXPECT_EQ(send(v6({0xfd}, 50), v6({}, 1)), martian);
  rules({0, false, true, false});
  EXPECT_TRUE(send(v4(10, 0, 0, 50), v4(127, 0, 0, 1)).delivered);
  EXPECT_EQ(send(v4(127, 0, 0, 1)), martian);  // its own still, by the local table
  rules({0, false, true, true});
  EXPECT_TRUE(send(v4(127, 0, 0, 1)).delivered);
  EXPECT_EQ(send(v6({}, 1)), martian);
}

TEST_F(SourceValidation, AcceptLocalLetsOwnAddressesIn) {
  rules({0, false, false, true});
  EXPECT_EQ(send(host().v4()), no_way);  // TCP has no way back by the wire
  EXPECT_EQ(send(host().v6()), martian);
}

TEST_F(SourceValidation, ReversePathFilter) {
  const IpAddress nowhere = v4(198, 51, 100, 7), elsewhere = v4(192, 168, 1, 1), black = v4(203, 0, 113, 1);
  EXPECT_EQ(send(nowhere), no_way);
  EXPECT_EQ(send(black), no_way);
  EXPECT_EQ(send(v4(240, 0, 0, 1)), no_way);
  EXPECT_EQ(send(elsewhere), (Outcome{false, true, 1, kNone}));  // whose SYN the kernel answers
  rules({2, false, false, false});
  EXPECT_EQ(send(nowhere), not_reverse);
  EXPECT_EQ(send(black), not_reverse);
  EXPECT_EQ(send(elsewhere), (Outcome{false, true, 1, kNone}));
  rules({1, false, false, false});
  EXPECT_EQ(send(nowhere), not_reverse);
  EXPECT_EQ(send(elsewhere), not_reverse);
  EXPECT_EQ(send(v4(10, 0, 0, 50)), taken);
  // IPv6 has no such setting.
  EXPECT_EQ(send(v6({0x20, 1}, 9)), no_way);
}

TEST_F(SourceValidation, BroadcastSources) {
  EXPECT_EQ(send(v4(10, 0, 0, 255)), no_way);
  rules({2, false, false, false});
  EXPECT_EQ(send(v4(10, 0, 0, 255)), martian);
}

TEST_F(SourceValidation, ATunnelIsTheKernels) {
  EXPECT_EQ(send(v4(172, 16, 0, 9)), (Outcome{false, true, 1, kNone}));
}

TEST_F(SourceValidation, SettingsThatChangeCountAtOnce) {
  const IpAddress elsewhere = v4(192, 168, 1, 1);
  EXPECT_TRUE(send(elsewhere).delivered);
  rules({1, false, false, false});
  EXPECT_EQ(send(elsewhere), not_reverse);
  rules({});
  EXPECT_TRUE(send(elsewhere).delivered);
  host().stack->set_routes({row(elsewhere, 128, 0, RouteKind::kLocal)});
  EXPECT_EQ(send(elsewhere), martian);
}

TEST_F(SourceValidation, SourceRoutes) {
  const Bytes loose = {1, 131, 7, 4, 10, 77, 0, 50}, strict = {1, 137, 7, 4, 10, 77, 0, 50};
  const Bytes record = {1, 7, 7, 4, 0, 0, 0, 0}, broken = {1, 7, 9, 4, 0, 0, 0, 0};
  const Outcome dropped{false, false, 0, Counter::drop_source_route};
  for (const Bytes& options : {loose, strict, broken})
    EXPECT_EQ(send(v4(10, 0, 0, 50), {}, options), dropped);
  EXPECT_EQ(send(v4(10, 0, 0, 50), {}, record), taken);
  rules({0, true, false, false});
  EXPECT_EQ(send(v4(10, 0, 0, 50), {}, loose), (Outcome{false, false, 2, kNone}));
  EXPECT_EQ(send(v4(10, 0, 0, 50), {}, broken), dropped);
  EXPECT_EQ(send(v4(127, 0, 0, 1), {}, loose), martian);
}

/// A wrong MAC address in a SYN: the answer waits for the kernel, and so does what is sent there later.
TEST_F(SourceValidation, NeighboursAreTheKernelsToTell) {
  const IpAddress there = v4(10, 0, 0, 60);
  EXPECT_FALSE(send(there).answered);
  const auto asked = host().stack->take_unresolved();
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].address, there);
  std::vector<Bytes> frames;
  sim.filter = [&](int, std::span<const uint8_t> f) {
    frames.emplace_back(f.begin(), f.end());
    return true;
  };
  const MacAddress mac{2, 0, 0, 0, 0, 60};
  host().stack->set_neighbour(0, there, mac);
  sim.settle();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_TRUE(std::equal(mac.begin(), mac.end(), frames[0].begin()));
  EXPECT_TRUE(send(there).answered);
}

/// A kernel that never tells does not hold frames for ever.
TEST_F(SourceValidation, FramesForNeighboursThatNobodyTellsOfEnd) {
  EXPECT_FALSE(send(v4(10, 0, 0, 61)).answered);
  EXPECT_LT(host().pool.available(), host().pool.size());
  for (int second = 0; second < 60; ++second) {
    (void)host().stack->take_unresolved();
    sim.run_for(1s);
  }
  EXPECT_FALSE(host().stack->has_unresolved());
  EXPECT_EQ(host().pool.available(), host().pool.size());
}

TEST_F(SourceValidation, TheAnswerLeavesByTheRoutingTable) {
  // The second interface has the same port for its frames here; what counts is where they wait to leave.
  Interface second = host().stack->interface(0);
  host().stack->set_interface(1, second);
  host().stack->set_neighbour(1, v4(10, 0, 0, 50), MacAddress{2, 0, 0, 0, 0, 50});
  auto rows = table();
  rows[3].interface = 1;
  host().stack->set_routes(rows);
  EXPECT_FALSE(send(v4(10, 0, 0, 50)).answered);
  EXPECT_EQ(host().stack->tx_queue(1).size(), 1u);
  // Of two next hops that of the interface it came by.
  rows.push_back(row(v4(10, 0, 0, 0), 96 + 24, 0));
  host().stack->set_routes(rows);
  EXPECT_TRUE(send(v4(10, 0, 0, 50)).answered);
  rules({1, false, false, false});
  EXPECT_TRUE(send(v4(10, 0, 0, 50)).answered);
  while (Packet* p = host().stack->tx_queue(1).pop_front()) FramePool::release(p);
}

/// With policy routing each pair of addresses is a question to the kernel.
TEST_F(SourceValidation, PolicyRoutingAsks) {
  const IpAddress peer = v4(10, 0, 0, 50), other = v4(10, 0, 0, 51), stray = v4(192, 168, 1, 1);
  rules({1, false, false, false});
  host().stack->set_routes(table(), true);
  EXPECT_EQ(send(v4(127, 0, 0, 1)), martian);
  EXPECT_EQ(send(host().v4()), martian);
  for (const IpAddress& from : {peer, other, stray}) EXPECT_EQ(send(from), (Outcome{false, false, 0, kNone}));
  const auto asked = host().stack->take_route_questions();
  ASSERT_EQ(asked.size(), 3u);
  sim.clear_trace();
  for (const auto& question : asked) {
    EXPECT_EQ(question.local, host().v4());
    if (question.remote == peer) host().stack->learn_route(question, row(peer, 128, 0));
    if (question.remote == stray) host().stack->learn_route(question, row(stray, 128, kAnyInterface));
  }
  host().stack->resume(sim.now);
  sim.run_for(10ms);
  EXPECT_EQ(sim.sent_by(1).size(), 1u);
  EXPECT_EQ(host().counter(Counter::drop_route_unknown), 2u);  // other's two
  EXPECT_EQ(host().counter(Counter::drop_reverse_path), 2u);   // stray's two
  EXPECT_EQ(send(peer), taken);
  EXPECT_EQ(send(stray), not_reverse);
  // More than may wait.
  for (int i = 0; i < 100; ++i) (void)send(v4(10, 0, 1, static_cast<uint8_t>(i)));
  EXPECT_EQ(host().stack->take_route_questions().size(), StackCore::kMostAwaiting / 2);
  EXPECT_EQ(host().counter(Counter::drop_route_unknown), 2u + 200 - StackCore::kMostAwaiting);
  host().stack->resume(sim.now);
  EXPECT_FALSE(host().stack->has_route_questions());
}

/// An ICMP error is a packet like others.
TEST_F(SourceValidation, ErrorsOfMartiansDoNotCount) {
  UdpPcb* connected = *host().stack->udp().open({host().v4(), 999}, {v4(10, 0, 0, 50), 53}, false,
                                                static_cast<Actor*>(&nobody));
  const Bytes quoted = frame_of(host().mac(), {host().v4(), v4(10, 0, 0, 50), 17},
                                udp_datagram({host().v4(), 999}, {v4(10, 0, 0, 50), 53}, "question"));
  Bytes icmp = {3, 3, 0, 0, 0, 0, 0, 0};
  icmp.insert(icmp.end(), quoted.begin() + 14, quoted.end());
  store_checksum(&icmp[2], finish_sum(sum_bytes(icmp.data(), icmp.size())));
  const auto tell = [&](const IpAddress& from) {
    sim.inject(1, frame_of(host().mac(), {from, host().v4(), 1}, icmp));
    sim.run_for(1ms);
    return host().stack->udp().take_error(*connected);
  };
  for (const IpAddress& from : {v4(127, 0, 0, 1), host().v4(), v4(0, 0, 0, 1)}) EXPECT_EQ(tell(from), 0);
  rules({1, false, false, false});
  EXPECT_EQ(tell(v4(192, 168, 1, 1)), 0);
  EXPECT_EQ(tell(v4(10, 0, 0, 77)), ECONNREFUSED);
  host().stack->udp().close(connected);
}

}  // namespace
}  // namespace accel::sim
