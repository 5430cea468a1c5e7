// Fragments and extension headers: what an honest peer's become, and what a hostile one's are bounded by.
#include <gtest/gtest.h>

#include <algorithm>

#include "frames.h"
#include "sim.h"
#include "stack/ip_reassembly.h"

namespace accel::sim {
namespace {

/// A connection of host 1 whose peer is the test.
struct Reassembly : testing::Test {
  explicit Reassembly(bool v6_in = false) : v6(v6_in) {
    local = {v6 ? host().v6() : host().v4(), 80};
    remote = {v6 ? sim[0].v6() : sim[0].v4(), 4000};
    listener = *host().stack->tcp().listen(local, true, false, 8, {}, static_cast<Actor*>(&nobody));
    sim.filter = [&](int from, std::span<const uint8_t> f) {
      if (from == 1) sent.emplace_back(f.begin(), f.end());
      return false;
    };
    put({remote.address, local.address, 6}, tcp_segment(remote, local, {seq++, 0, kSyn, {}}));
    ack = tcp_of(sent.back()).sequence + 1;
    put({remote.address, local.address, 6}, tcp_segment(remote, local, {seq, ack, kAck, {}}));
    conn = host().stack->tcp().accept(*listener);
    conn->owner = static_cast<Actor*>(&nobody);
  }
  ~Reassembly() override {
    host().stack->tcp().close(conn, true, sim.now);
    host().stack->tcp().close_listener(listener);
  }
  Host& host() { return sim[1]; }
  const TcpHeader& tcp_of(const Bytes& f) const { return wire_at<TcpHeader>(&f[v6 ? 54 : 34]); }
  void put(const Packaging& p, std::span<const uint8_t> payload) {
    sim.inject(1, frame_of(host().mac(), p, payload));
    sim.run_for(1ms);
  }
  Bytes segment(std::string_view text) const {
    return tcp_segment(remote, local, {seq, ack, kAck | kPsh, {}}, text);
  }

  /// A fragment: bytes [from, to) of what is cut.
  struct Cut {
    size_t from, to;
    bool more;
    uint8_t ecn = 0;
  };
  Bytes fragment(const Bytes& whole, const Cut& c, uint16_t id) const {
    Packaging p{remote.address, local.address, 6};
    p.tos = c.ecn;
    if (v6) {
      p.protocol = kIpv6Fragment;
      const auto where = static_cast<uint16_t>(c.from | c.more);
      p.options = {6, 0, static_cast<uint8_t>(where >> 8), static_cast<uint8_t>(where),
                   0, 0, static_cast<uint8_t>(id >> 8),    static_cast<uint8_t>(id)};
    } else {
      p.id = id;
      p.fragment = static_cast<uint16_t>(c.from / 8 | (c.more ? kIpMoreFragments : 0));
    }
    return frame_of(sim_mac(), p, std::span(whole).subspan(c.from, c.to - c.from));
  }
  MacAddress sim_mac() const { return {2, 0, 0, 0, 0, 2}; }
  void send(const Bytes& whole, std::initializer_list<Cut> cuts, uint16_t id) {
    for (const Cut& c : cuts) sim.inject(1, fragment(whole, c, id));
    sim.run_for(1ms);
  }
  std::string read() {
    std::string text(70000, 0);
    const iovec into{text.data(), text.size()};
    const auto n = host().stack->tcp().receive(*conn, {&into, 1}, false, 0, sim.now);
    text.resize(n ? *n : 0);
    seq += static_cast<uint32_t>(text.size());
    return text;
  }
  uint64_t dropped() { return host().counter(Counter::drop_fragment); }

  const bool v6;
  Sim sim{3};
  Recorder nobody;
  std::vector<Bytes> sent;
  Endpoint local, remote;
  TcpListener* listener = nullptr;
  TcpConn* conn = nullptr;
  uint32_t seq = 1000, ack = 0;
};
struct ReassemblyV6 : Reassembly {
  ReassemblyV6() : Reassembly(true) {}
};

std::string text_of(size_t n) {
  std::string text(n, 0);
  for (size_t i = 0; i < n; ++i) text[i] = static_cast<char>(stream_byte(n, i));
  return text;
}

template <class T>
void arrives_in_any_order(T& t) {
  const std::string text = text_of(180);  // with the header 200 bytes
  std::array<int, 4> order{0, 1, 2, 3};
  uint16_t id = 1;
  do {
    const Bytes whole = t.segment(text);
    const size_t first = t.v6 ? 24 : 8;
    const typename T::Cut cuts[] = {
        {0, first, true}, {first, 64, true}, {64, 136, true}, {136, whole.size(), false}};
    for (int i : order) t.send(whole, {cuts[i]}, id);
    ASSERT_EQ(t.read(), text);
    ++id;
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(t.host().counter(Counter::ip_reassembled), 24u);
  EXPECT_EQ(t.dropped(), 0u);
}
TEST_F(Reassembly, ArrivesInAnyOrder) { arrives_in_any_order(*this); }
TEST_F(ReassemblyV6, ArrivesInAnyOrder) { arrives_in_any_order(*this); }

TEST_F(Reassembly, LongOnesFillSeveralBuffers) {
  const std::string text = text_of(9000);
  const Bytes whole = segment(text);
  for (size_t at = 0; at < whole.size(); at += 1480)
    send(whole, {{at, std::min(at + 1480, whole.size()), at + 1480 < whole.size()}}, 5);
  EXPECT_EQ(read(), text);
  const uint64_t before = dropped();
  EXPECT_EQ(before, 0u);
}

TEST_F(Reassembly, DuplicatesAreHarmlessAndOverlapsCondemn) {
  const std::string text = text_of(180);
  const Bytes whole = segment(text);
  send(whole, {{0, 64, true}, {0, 64, true}, {64, 128, true}, {8, 120, true}, {128, whole.size(), false}}, 1);
  EXPECT_EQ(read(), text);
  EXPECT_EQ(dropped(), 0u);
  const Bytes next = segment(text);
  send(next, {{0, 64, true}, {56, 128, true}, {64, 128, true}, {128, next.size(), false}}, 2);
  EXPECT_EQ(read(), "");
  EXPECT_EQ(dropped(), 2u);
  // Nor does a packet have two ends.
  send(next, {{0, 64, true}, {64, next.size(), false}}, 3);
  EXPECT_EQ(read(), text);
  const Bytes last = segment(text);
  send(last, {{64, 128, false}, {128, last.size(), false}}, 4);
  send(last, {{64, last.size(), false}, {64, last.size() + 0, true}}, 5);
  EXPECT_EQ(read(), "");
}

TEST_F(Reassembly, MalformedFragmentsAreDropped) {
  const Bytes whole = segment(text_of(180));
  send(whole, {{0, 60, true}}, 1);                                  // not a multiple of 8
  send(whole, {{64, 64, true}, {64, 64, false}}, 2);                // empty
  sim.inject(1, fragment(Bytes(65536), {65528, 65536, false}, 3));  // beyond 65535 with its header
  sim.run_for(1ms);
  EXPECT_EQ(dropped(), 4u);
}

TEST_F(Reassembly, WaitsAsLongAsTheKernelDoes) {
  const Bytes whole = segment(text_of(180));
  send(whole, {{0, 64, true}}, 1);
  sim.run_for(IpReassembly::kTimeV4 - 1s);
  EXPECT_EQ(dropped(), 0u);
  sim.run_for(2s);
  EXPECT_EQ(dropped(), 1u);
  send(whole, {{64, whole.size(), false}}, 1);
  EXPECT_EQ(read(), "");
}

TEST_F(Reassembly, EcnIsThatOfAllFragments) {
  const uint64_t before = host().counter(Counter::ip_reassembled);
  const Bytes whole = segment(text_of(180));
  send(whole, {{0, 64, true, 2}, {64, whole.size(), false, 0}}, 1);  // ECT(0) with Not-ECT
  EXPECT_EQ(host().counter(Counter::ip_reassembled), before);
  send(whole, {{0, 64, true, 2}, {64, whole.size(), false, 3}}, 2);
  send(whole, {{0, 64, true, 2}, {64, whole.size(), false, 1}}, 3);
  EXPECT_EQ(host().counter(Counter::ip_reassembled), before + 2);
}

TEST_F(Reassembly, AFloodIsBoundedAndAnHonestPacketPasses) {
  const Bytes junk(1400);
  const auto flood = [&](uint32_t source, uint16_t id, size_t from) {
    Packaging p{IpAddress::v4(source), local.address, 6};
    p.id = id;
    p.fragment = static_cast<uint16_t>(from / 8 | kIpMoreFragments);
    sim.inject(1, frame_of(sim_mac(), p, std::span(junk).first(1400)));
  };
  for (uint16_t id = 0; id < 2000; ++id) {  // one source, then many
    flood(0x0a000063, id, 0);
    flood(0x0a010000u + id, id, 0);
    flood(0x0a010000u + id, id, 1400);
    if (id % 64 == 0) sim.run_for(1ms);
  }
  sim.run_for(1ms);
  EXPECT_EQ(host().pool.available(), host().pool.size());
  EXPECT_GE(dropped(), 6000u - IpReassembly::kMostBytes / 1400);
  const std::string text = text_of(180);
  const Bytes whole = segment(text);
  send(whole, {{0, 64, true}}, 1);
  for (uint16_t id = 0; id < 100; ++id) flood(0x0a000063, id, 0);  // who floods loses their own
  send(whole, {{64, whole.size(), false}}, 1);
  EXPECT_EQ(read(), text);
  sim.run_for(61s);
  EXPECT_GT(host().stack->next_deadline(), sim.now + 1h);
}

TEST_F(ReassemblyV6, ExtensionHeadersAreSkipped) {
  const Bytes options = {6, 0, 1, 4, 0, 0, 0, 0}, alert = {6, 0, 5, 2, 0, 0, 1, 0};
  const Bytes routing = {6, 0, 0, 0, 0, 0, 0, 0}, atomic = {6, 0, 0, 0, 0, 0, 0, 1};
  Bytes all = options;  // hop-by-hop, destination options, atomic fragment
  all[0] = kIpv6DestinationOptions;
  all.insert(all.end(), options.begin(), options.end());
  all[8] = kIpv6Fragment;
  all.insert(all.end(), atomic.begin(), atomic.end());
  const std::pair<uint8_t, Bytes> headers[] = {
      {kIpv6HopByHop, options}, {kIpv6HopByHop, alert},  {kIpv6DestinationOptions, options},
      {kIpv6Routing, routing},  {kIpv6Fragment, atomic}, {kIpv6HopByHop, all}};
  for (const auto& [first, bytes] : headers) {
    put({remote.address, local.address, first, bytes}, segment("hello"));
    EXPECT_EQ(read(), "hello") << int{first};
  }
}

TEST_F(ReassemblyV6, HeadersThatTheKernelDropsAreDropped) {
  const Bytes segments_left = {6, 0, 0, 1, 0, 0, 0, 0}, unknown = {6, 0, 0x7e, 4, 0, 0, 0, 0};
  const uint64_t before = host().counter(Counter::drop_ip_header);
  put({remote.address, local.address, kIpv6Routing, segments_left}, segment("hello"));
  put({remote.address, local.address, kIpv6DestinationOptions, unknown}, segment("hello"));
  EXPECT_EQ(host().counter(Counter::drop_ip_header), before + 2);
  EXPECT_EQ(read(), "");
}

TEST_F(ReassemblyV6, TheFirstFragmentHasTheWholeHeader) {
  const Bytes whole = segment(text_of(180));
  send(whole, {{0, 16, true}, {16, whole.size(), false}}, 1);
  EXPECT_EQ(read(), "");
  EXPECT_EQ(dropped(), 1u);
}

TEST_F(ReassemblyV6, FragmentsWithinFragmentsAreNone) {
  Bytes inner = {6, 0, 0, 1, 0, 0, 0, 9};  // a first fragment, as the payload of one
  const Bytes part = segment(text_of(180));
  inner.insert(inner.end(), part.begin(), part.begin() + 64);
  Packaging p{remote.address, local.address, kIpv6Fragment};
  p.options = {kIpv6Fragment, 0, 0, 1, 0, 0, 0, 1};
  put(p, std::span(inner).first(64));
  p.options = {kIpv6Fragment, 0, 0, 64, 0, 0, 0, 1};
  put(p, std::span(inner).subspan(64));
  EXPECT_EQ(host().counter(Counter::ip_reassembled), 1u);
  EXPECT_EQ(dropped(), 1u);
}

}  // namespace
}  // namespace accel::sim
