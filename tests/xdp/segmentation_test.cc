// Frames that the kernel cuts for a port in copy mode.
#include <cstdlib>

#include "base/counters.h"
#include "stack/wire/checksum.h"
#include "tests/xdp/xdp_fixture.h"

namespace accel::test {
namespace {

constexpr uint16_t kRemote = 40000, kLocal = 8000;
constexpr uint8_t kPsh = 8;
constexpr uint16_t kSegment = 1000;

struct Cut {
  uint32_t seq = 0;
  uint8_t flags = 0;
  bool sums_hold = false;
  std::string payload;
};

uint32_t be32(const uint8_t* p) { return uint32_t{p[0]} << 24 | p[1] << 16 | p[2] << 8 | p[3]; }

/// Frames that the port has dropped since the last call.
uint64_t dropped(XdpPort& port) {
  Counters since;
  port.count(since);
  return since.get(Counter::tx_dropped);
}

/// A TCP frame without options.
Cut read(const std::vector<uint8_t>& frame, bool v6) {
  const size_t l4 = v6 ? 54 : 34;
  if (frame.size() < l4 + 20) return {};
  const size_t length = frame.size() - l4;
  uint64_t sum = v6 ? sum_bytes(&frame[22], 32) : sum_bytes(&frame[26], 8);
  sum += sum_of(6) + sum_of(static_cast<uint16_t>(length));
  const bool ip_holds = v6 || finish_sum(sum_bytes(&frame[14], 20)) == 0;
  return {be32(&frame[l4 + 4]), frame[l4 + 13],
          ip_holds && finish_sum(add_sums(sum, sum_bytes(&frame[l4], length))) == 0,
          std::string(frame.begin() + static_cast<long>(l4 + 20), frame.end())};
}

class Segmentation : public XdpTest {
 protected:
  void TearDown() override {
    at_a.port.reset();
    at_b.port.reset();
    XdpTest::TearDown();
  }
  /// With the marks and the checksum that the stack gives a frame to be cut.
  Packet* to_cut(std::vector<uint8_t> frame, bool v6) {
    const size_t l4 = v6 ? 54 : 34;
    const uint64_t addresses = v6 ? sum_bytes(&frame[22], 32) : sum_bytes(&frame[26], 8);
    store_checksum(&frame[l4 + 16], fold_sum(addresses + sum_of(6)));
    Packet* p = at_b.make(frame);
    p->tso_size = kSegment;
    p->header_length = static_cast<uint16_t>(l4 + 20);
    p->checksum_offload = true;
    return p;
  }
  void open_both(const XdpOptions& options = {}) {
    ASSERT_TRUE(at_a.open(a)) << at_a.why;
    ASSERT_TRUE(at_b.open(b, options)) << at_b.why;
    for (bool v6 : {false, true})
      ASSERT_TRUE(at_a.steer({Protocol::kTcp,
                              {v6 ? a.address6() : a.address4(), kLocal},
                              {v6 ? b.address6() : b.address4(), kRemote}}));
  }
  void expect_in_order(bool v6, size_t size = 20 * kSegment + 500);

  PortAtEnd at_a, at_b;
  FrameMaker b_to_a{b, a};
};

/// One to be cut between two that are not: they arrive in this order, whole, with good checksums.
void Segmentation::expect_in_order(bool v6, size_t size) {
  auto frame = [&](uint8_t flags, std::string_view payload) {
    return v6 ? b_to_a.tcp6(kRemote, kLocal, flags, payload) : b_to_a.tcp4(kRemote, kLocal, flags, payload);
  };
  std::string text(size, 0);
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7 + i / 256);
  Packet* burst[] = {at_b.make(frame(kAck, "before")), to_cut(frame(kAck | kPsh | kFin, text), v6),
                     at_b.make(frame(kAck, "behind"))};
  ASSERT_EQ(at_b.port->tx_burst(burst), 3u);
  EXPECT_EQ(read(at_a.receive(), v6).payload, "before");
  std::string got;
  while (got.size() < text.size()) {
    const Cut cut = read(at_a.receive(), v6);
    ASSERT_FALSE(cut.payload.empty()) << "after " << got.size();
    EXPECT_TRUE(cut.sums_hold);
    EXPECT_EQ(cut.seq, 1 + got.size());
    EXPECT_LE(cut.payload.size(), kSegment);
    got += cut.payload;
    EXPECT_EQ(cut.flags, got.size() < text.size() ? kAck : kAck | kPsh | kFin);
  }
  EXPECT_EQ(got, text);
  EXPECT_EQ(read(at_a.receive(), v6).payload, "behind");
  EXPECT_EQ(dropped(*at_b.port), 0u);
}

TEST_F(Segmentation, CutsInOrderWithWhatIsAround) {
  open_both();
  if (lab_queues > 1) {  // the kernel would choose a queue of its own for them
    EXPECT_FALSE(at_b.port->info().tso);
    return;
  }
  ASSERT_TRUE(at_b.port->info().tso);
  expect_in_order(false);
  expect_in_order(true);
  const uint32_t most = at_b.port->info().tso_max;
  ASSERT_GE(most, kTsoPayload);
  expect_in_order(false, most);
  expect_in_order(true, most);
  const uint32_t held = at_b.pool.available();
  for (int i = 0; i < 100; ++i) expect_in_order(i % 2 != 0);
  EXPECT_GE(at_b.pool.available() + 16, held);  // those that were cut came back at once
}

TEST_F(Segmentation, IsNotOfferedWhenTurnedOff) {
  XdpOptions options;
  options.segmentation = false;
  open_both(options);
  EXPECT_FALSE(at_b.port->info().tso);
}

/// Its receiver's XDP program would see frames without checksums.
TEST_F(Segmentation, IsNotOfferedWhereVethLeavesChecksumsOut) {
  const std::string command = "ip netns exec " + b.ns + " ethtool -K " + b.dev + " tx ";
  ASSERT_EQ(std::system((command + "on >/dev/null").c_str()), 0);
  open_both();
  EXPECT_FALSE(at_b.port->info().tso);
  ASSERT_EQ(std::system((command + "off >/dev/null").c_str()), 0);
}

TEST_F(Segmentation, WhatTheKernelRefusesIsCountedAndNotOfferedAgain) {
  open_both();
  if (!at_b.port->info().tso) return;
  Packet* odd = to_cut(b_to_a.tcp4(kRemote, kLocal, kAck, std::string(3000, 'x')), false);
  odd->header_length = 20;  // no TCP header in it
  EXPECT_EQ(at_b.port->tx_burst({&odd, 1}), 1u);
  EXPECT_EQ(dropped(*at_b.port), 1u);
  EXPECT_EQ(dropped(*at_b.port), 0u);
  EXPECT_FALSE(at_b.port->info().tso);
}

}  // namespace
}  // namespace accel::test
