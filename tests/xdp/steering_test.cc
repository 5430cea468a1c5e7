// Which frames the port takes and which stay with the kernel.
#include "base/counters.h"
#include "tests/xdp/xdp_fixture.h"

namespace accel::test {
namespace {

/// A port at A under test; B's port sends to it, made-up frames included.
class Steering : public XdpTest {
 protected:
  void SetUp() override {
    XdpTest::SetUp();
    ASSERT_TRUE(at_a.open(a)) << at_a.why;
    ASSERT_TRUE(at_b.open(b)) << at_b.why;
    // Frames of one UDP flow follow those sent before on the same queue: seeing this one means the others
    // have passed.
    ASSERT_TRUE(at_a.steer(udp(a, kSentinel)));
  }
  void TearDown() override {
    at_a.port.reset();
    at_b.port.reset();
    XdpTest::TearDown();
  }

  /// Sends the frame, then a sentinel by the same queue (same sum of ports).
  bool arrives(const std::vector<uint8_t>& frame, uint32_t port_sum) {
    const auto sentinel = b_to_a.udp4(static_cast<uint16_t>(port_sum - kSentinel), kSentinel, "sentinel");
    EXPECT_TRUE(at_b.send(frame) && at_b.send(sentinel));
    const auto first = at_a.receive();
    if (first == sentinel) return false;
    EXPECT_EQ(first, frame);
    EXPECT_EQ(at_a.receive(), sentinel);
    return true;
  }

  static constexpr uint16_t kSentinel = 6999;
  PortAtEnd at_a, at_b;
  FrameMaker b_to_a{b, a}, a_to_b{a, b};
};

constexpr uint16_t kRemote = 40000, kLocal = 8000;
constexpr uint32_t kSum = kRemote + kLocal;

TEST_F(Steering, ListenerTakesPlainSynsOnly) {
  EXPECT_FALSE(arrives(b_to_a.tcp4(kRemote, kLocal, kSyn), kSum));
  ASSERT_TRUE(at_a.steer(tcp(a, kLocal)));
  EXPECT_TRUE(arrives(b_to_a.tcp4(kRemote, kLocal, kSyn), kSum));
  for (int flags : std::initializer_list<int>{kAck, kSyn | kAck, kRst, kFin | kAck, 0})
    EXPECT_FALSE(arrives(b_to_a.tcp4(kRemote, kLocal, static_cast<uint8_t>(flags)), kSum)) << flags;
  EXPECT_FALSE(arrives(b_to_a.tcp4(kRemote, kLocal + 1, kSyn), kSum + 1)) << "another port";
  at_a.port->unsteer(tcp(a, kLocal));
  EXPECT_FALSE(arrives(b_to_a.tcp4(kRemote, kLocal, kSyn), kSum));
}

TEST_F(Steering, ConnectionTakesEverySegmentOfItsTuple) {
  ASSERT_TRUE(at_a.steer(tcp(a, kLocal, b, kRemote)));
  for (int flags : std::initializer_list<int>{kAck, kSyn, kSyn | kAck, kRst, kFin | kAck})
    EXPECT_TRUE(arrives(b_to_a.tcp4(kRemote, kLocal, static_cast<uint8_t>(flags)), kSum)) << flags;
  EXPECT_FALSE(arrives(b_to_a.tcp4(kRemote + 1, kLocal, kAck), kSum + 1));
  EXPECT_FALSE(arrives(b_to_a.tcp4(kRemote, kLocal + 1, kAck), kSum + 1));
  at_a.port->unsteer(tcp(a, kLocal, b, kRemote));
  EXPECT_FALSE(arrives(b_to_a.tcp4(kRemote, kLocal, kAck), kSum));
}

TEST_F(Steering, UdpTakesEveryDatagram) {
  EXPECT_FALSE(arrives(b_to_a.udp4(kRemote, kLocal, "hello"), kSum));
  ASSERT_TRUE(at_a.steer(udp(a, kLocal)));
  EXPECT_TRUE(arrives(b_to_a.udp4(kRemote, kLocal, "hello"), kSum));
  EXPECT_TRUE(arrives(b_to_a.udp4(kRemote + 7, kLocal, ""), kSum + 7));
  EXPECT_FALSE(arrives(b_to_a.tcp4(kRemote, kLocal, kSyn), kSum)) << "the key is UDP's";
}

TEST_F(Steering, Ipv6) {
  ASSERT_TRUE(at_a.steer({Protocol::kUdp, {a.address6(), kLocal}, {}}));
  ASSERT_TRUE(at_a.steer({Protocol::kTcp, {a.address6(), kLocal}, {}}));
  EXPECT_TRUE(arrives(b_to_a.udp6(kRemote, kLocal, "hello"), kSum));
  EXPECT_TRUE(arrives(b_to_a.tcp6(kRemote, kLocal, kSyn), kSum));
  EXPECT_FALSE(arrives(b_to_a.tcp6(kRemote, kLocal, kAck), kSum));
  EXPECT_FALSE(arrives(b_to_a.udp4(kRemote, kLocal, "hello"), kSum)) << "the key is IPv6's";
  ASSERT_TRUE(at_a.steer({Protocol::kTcp, {a.address6(), kLocal}, {b.address6(), kRemote}}));
  EXPECT_TRUE(arrives(b_to_a.tcp6(kRemote, kLocal, kAck), kSum));
}

TEST_F(Steering, AVlansFramesAreNotTheDevices) {
  ASSERT_TRUE(at_a.steer(udp(a, kLocal)));
  const auto plain = b_to_a.udp4(kRemote, kLocal, "tagged");
  EXPECT_FALSE(arrives(FrameMaker::tagged(plain, 5), kSum));
  EXPECT_FALSE(arrives(FrameMaker::tagged(FrameMaker::tagged(plain, 0), 6), kSum));
  EXPECT_TRUE(arrives(FrameMaker::tagged(plain, 0), kSum)) << "VLAN 0: a priority only";
}

// Errors may arrive on another queue than the flow (they hash by addresses only): then they are the kernel's.
TEST_F(Steering, IcmpErrorsOfOurFlows) {
  if (at_a.port->info().queues_held > 1) GTEST_SKIP() << "one queue only";
  ASSERT_TRUE(at_a.steer(tcp(a, kLocal, b, kRemote)));
  ASSERT_TRUE(at_a.steer(udp(a, kLocal)));
  const auto ours = a_to_b.tcp4(kLocal, kRemote, kAck), other = a_to_b.tcp4(kLocal + 1, kRemote, kAck);
  EXPECT_TRUE(arrives(b_to_a.icmp4(3, 4, ours), 0));
  EXPECT_TRUE(arrives(b_to_a.icmp4(11, 0, ours), 0));
  EXPECT_FALSE(arrives(b_to_a.icmp4(3, 4, other), 0));
  EXPECT_FALSE(arrives(b_to_a.icmp4(5, 0, ours), 0)) << "redirects belong to the kernel";
  EXPECT_TRUE(arrives(b_to_a.icmp4(3, 3, a_to_b.udp4(kLocal, 53, "query")), 0));
  EXPECT_FALSE(arrives(b_to_a.icmp4(3, 3, a_to_b.udp4(kLocal + 1, 53, "query")), 0));
  ASSERT_TRUE(at_a.steer({Protocol::kTcp, {a.address6(), kLocal}, {b.address6(), kRemote}}));
  EXPECT_TRUE(arrives(b_to_a.icmp6(2, 0, a_to_b.tcp6(kLocal, kRemote, kAck)), 0));
  EXPECT_FALSE(arrives(b_to_a.icmp6(2, 0, a_to_b.tcp6(kLocal, kRemote + 1, kAck)), 0));
}

TEST_F(Steering, FragmentsStayWithTheKernel) {
  ASSERT_TRUE(at_a.steer(udp(a, kLocal)));
  // The kernel's own socket on the steered port, our shadow, receives what the kernel reassembled.
  expect_kernel_delivers(b, a, kLocal, size_t{lab_mtu} * 3);
  EXPECT_TRUE(at_a.receive_now().empty());
}

TEST_F(Steering, EverythingElsePasses) {
  ASSERT_TRUE(at_a.steer(tcp(a, kLocal)));
  expect_kernel_delivers(b, a, 9000);
  // A connection as ssh's, through the kernels of both ends.
  const int listener = a.kernel_socket(SOCK_STREAM, 2222), client = b.kernel_socket(SOCK_STREAM, 0);
  ASSERT_EQ(listen(listener, 1), 0);
  const sockaddr_in address = a.at(2222);
  ASSERT_EQ(connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  const int server = accept(listener, nullptr, nullptr);
  ASSERT_EQ(write(client, "ping", 4), 4);
  char text[4];
  ASSERT_EQ(recv(server, text, 4, MSG_WAITALL), 4);
  for (int fd : {listener, client, server}) close(fd);
  EXPECT_TRUE(at_a.receive_now().empty());
}

TEST_F(Steering, KernelToPortAndBack) {
  ASSERT_TRUE(at_a.steer(udp(a, kLocal)));
  const std::string payload(lab_mtu - 28, 'p');
  kernel_sends(b, kRemote, a, kLocal, payload);
  const auto frame = at_a.receive();
  ASSERT_EQ(frame.size(), 14 + lab_mtu);
  EXPECT_EQ(std::string(frame.begin() + 42, frame.end()), payload);
  const int receiver = b.kernel_socket(SOCK_DGRAM, kRemote);
  ASSERT_TRUE(at_a.send(a_to_b.udp4(kLocal, kRemote, payload)));
  std::string got(payload.size() + 1, 0);
  pollfd ready{receiver, POLLIN, 0};
  ASSERT_EQ(poll(&ready, 1, 20'000), 1);
  EXPECT_EQ(recv(receiver, got.data(), got.size(), 0), static_cast<ssize_t>(payload.size()));
  close(receiver);
}

TEST_F(Steering, ManyFramesAndNoneLost) {
  ASSERT_TRUE(at_a.steer(udp(a, kLocal)));
  constexpr int kFrames = 20'000, kWindow = 100;
  int sent = 0, received = 0;
  uint64_t bytes_sent = 0, bytes_received = 0;
  while (received < kFrames) {
    while (sent < kFrames && sent - received < kWindow) {
      const auto frame =
          b_to_a.udp4(kRemote, kLocal, std::string(static_cast<size_t>(sent * 37) % (lab_mtu - 28), 'x'));
      ASSERT_TRUE(at_b.send(frame));
      bytes_sent += frame.size();
      ++sent;
    }
    const auto frame = at_a.receive();
    ASSERT_FALSE(frame.empty()) << received;
    bytes_received += frame.size();
    ++received;
  }
  EXPECT_EQ(bytes_sent, bytes_received);
  at_b.port.reset();
  at_a.port.reset();
  EXPECT_EQ(at_a.pool.available(), at_a.pool.size());
  EXPECT_EQ(at_b.pool.available(), at_b.pool.size());
}

// A burst beyond all that a queue has for it is counted, once.
TEST_F(Steering, FramesThatComeTooFastAreCounted) {
  ASSERT_TRUE(at_a.steer(udp(a, kLocal)));
  const auto frame = b_to_a.udp4(kRemote, kLocal, "hello");
  Counters counters;
  at_a.port->count(counters);
  EXPECT_EQ(counters.get(Counter::xdp_rx_no_buffer) + counters.get(Counter::xdp_rx_ring_full), 0u);
  const int most = static_cast<int>(at_a.pool.size());
  for (int i = 0; i < most; ++i) ASSERT_TRUE(at_b.send(frame));
  int came = 0;
  while (!at_a.receive_now().empty()) ++came;
  at_a.port->count(counters);
  EXPECT_GT(came, 0);
  EXPECT_LT(came, most);
  EXPECT_EQ(counters.get(Counter::xdp_rx_no_buffer) + counters.get(Counter::xdp_rx_ring_full),
            static_cast<uint64_t>(most - came));
  at_a.port->count(counters);
  EXPECT_EQ(counters.get(Counter::xdp_rx_no_buffer) + counters.get(Counter::xdp_rx_ring_full),
            static_cast<uint64_t>(most - came));
}

// In the caches lie the buffers that bursts need, and never fewer than a burst may want.
TEST_F(Steering, ReceiveBuffersFollowTheBursts) {
  if (at_a.port->info().queues_held > 1) GTEST_SKIP() << "one queue only";
  at_a.port.reset();
  XdpOptions long_ring;
  long_ring.rx_ring = 4096;
  ASSERT_TRUE(at_a.open(a, long_ring)) << at_a.why;
  ASSERT_TRUE(at_a.steer(udp(a, kLocal)));
  const auto frame = b_to_a.udp4(kRemote, kLocal, "hello");
  auto burst = [&](int n) {
    for (int i = 0; i < n; ++i) ASSERT_TRUE(at_b.send(frame));
    for (int i = 0; i < n; ++i) ASSERT_EQ(at_a.receive(), frame);
  };
  const uint32_t at_first = at_a.pool.available();
  burst(1000);
  EXPECT_EQ(at_a.port->stats().fill_ring_empty, 0u) << "all of the ring before anything is known";
  for (int i = 0; i < 1100; ++i) burst(32);
  EXPECT_GT(at_a.pool.available(), at_first + 1000);
  burst(400);
  EXPECT_EQ(at_a.port->stats().fill_ring_empty, 0u);
  EXPECT_LT(at_a.pool.available(), at_first + 100);
  burst(1000);
  EXPECT_EQ(at_a.port->stats().fill_ring_empty, 0u);
}

}  // namespace
}  // namespace accel::test
