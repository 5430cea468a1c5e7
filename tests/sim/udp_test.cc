// UDP: who gets a datagram, what bounds the queues, what ICMP says, frames in several buffers.
#include "stack/udp.h"

#include <gtest/gtest.h>

#include "sim.h"
#include "stack/ip_ids.h"
#include "stack/wire/checksum.h"
#include "stack/wire/icmp.h"
#include "stack/wire/ipv4.h"

namespace accel::sim {
namespace {

struct UdpTest : testing::Test {
  explicit UdpTest(HostOptions options = {}) : sim(9, 2, options) {}
  UdpPcb* open(int host, const Endpoint& local, const Endpoint& remote = {}, bool v6_only = false) {
    owners.push_back(std::make_unique<Recorder>());
    return *sim[host].stack->udp().open(local, remote, v6_only, static_cast<Actor*>(owners.back().get()));
  }
  Result<size_t> send(int host, UdpPcb* pcb, std::string_view text, const Endpoint& to) {
    Host& from = sim[host];
    Host& other = sim[1 - host];
    const bool v6 = !to.address.is_v4();
    Endpoint source{v6 ? from.v6() : from.v4(), pcb->local.port};
    const iovec v{const_cast<char*>(text.data()), text.size()};
    auto r = from.stack->udp().send(*pcb, {&v, 1}, source, to, from.route_to(other, v6),
                                    {0, 64, kAutoFlowLabel}, sim.now);
    sim.settle();
    return r;
  }
  std::optional<std::string> receive(int host, UdpPcb* pcb, size_t at_most = 65536) {
    const Datagram* front = sim[host].stack->udp().front(*pcb);
    if (!front) return {};
    last = *front;
    std::string text(at_most, 0);
    const iovec v[2] = {{text.data(), std::min<size_t>(3, at_most)},
                        {text.data() + std::min<size_t>(3, at_most), at_most - std::min<size_t>(3, at_most)}};
    text.resize(sim[host].stack->udp().receive(*pcb, v, true));
    return text;
  }
  Recorder& recorder(UdpPcb* pcb) { return *static_cast<Recorder*>(static_cast<Actor*>(pcb->owner)); }
  void run() { sim.run_for(100ms); }

  Sim sim;
  std::vector<std::unique_ptr<Recorder>> owners;
  Datagram last;
};

TEST_F(UdpTest, EveryLengthArrives) {
  for (bool v6 : {false, true}) {
    const IpAddress there = v6 ? sim[1].v6() : sim[1].v4();
    UdpPcb* a = open(0, {v6 ? sim[0].v6() : sim[0].v4(), 1000});
    UdpPcb* b = open(1, {there, 2000});
    const size_t most = 1500 - 8 - (v6 ? 40 : 20);
    for (size_t n = 0; n <= most; n += n < 70 ? 1 : 101) {
      std::string text(n, 0);
      for (size_t i = 0; i < n; ++i) text[i] = static_cast<char>(stream_byte(n, i));
      ASSERT_EQ(*send(0, a, text, {there, 2000}), n);
      run();
      ASSERT_EQ(*receive(1, b), text);
      EXPECT_EQ(last.size, n);
      EXPECT_EQ(last.from, (Endpoint{v6 ? sim[0].v6() : sim[0].v4(), 1000}));
    }
    EXPECT_TRUE(send(0, a, std::string(most, 'x'), {there, 2000}).ok());
    EXPECT_TRUE(send(0, a, std::string(most + 1, 'x'), {there, 2000}).is(EMSGSIZE));
    sim[0].stack->udp().close(a);
    sim[1].stack->udp().close(b);
  }
  run();
  EXPECT_EQ(sim[1].counter(Counter::drop_udp_checksum), 0u);
  EXPECT_EQ(sim[1].pool.available(), sim[1].pool.size());
}

TEST_F(UdpTest, ShortBufferTruncates) {
  UdpPcb* a = open(0, {sim[0].v4(), 1000});
  UdpPcb* b = open(1, {sim[1].v4(), 2000});
  (void)send(0, a, "0123456789", {sim[1].v4(), 2000});
  (void)send(0, a, "next", {sim[1].v4(), 2000});
  run();
  EXPECT_EQ(*receive(1, b, 4), "0123");
  EXPECT_EQ(last.size, 10u);
  EXPECT_EQ(*receive(1, b), "next");
  EXPECT_FALSE(receive(1, b));
}

TEST_F(UdpTest, TheMostSpecificSocketGetsIt) {
  UdpPcb* a = open(0, {sim[0].v4(), 1000});
  UdpPcb* c = open(0, {sim[0].v4(), 1001});
  UdpPcb* dual = open(1, {IpAddress::any_v6(), 2000});
  (void)send(0, a, "1", {sim[1].v4(), 2000});
  run();
  EXPECT_EQ(*receive(1, dual), "1");
  EXPECT_TRUE(last.from.address.is_v4());
  UdpPcb* any = open(1, {IpAddress::any_v4(), 2000});
  (void)send(0, a, "2", {sim[1].v4(), 2000});
  run();
  EXPECT_EQ(*receive(1, any), "2");
  UdpPcb* specific = open(1, {sim[1].v4(), 2000});
  (void)send(0, a, "3", {sim[1].v4(), 2000});
  run();
  EXPECT_EQ(*receive(1, specific), "3");
  UdpPcb* connected = open(1, {sim[1].v4(), 2000}, {sim[0].v4(), 1000});
  (void)send(0, a, "4", {sim[1].v4(), 2000});
  (void)send(0, c, "5", {sim[1].v4(), 2000});
  run();
  EXPECT_EQ(*receive(1, connected), "4");
  EXPECT_EQ(*receive(1, specific), "5");
  sim[1].stack->udp().connect(*connected, {sim[1].v4(), 2000}, {sim[0].v4(), 1001});
  (void)send(0, c, "6", {sim[1].v4(), 2000});
  run();
  EXPECT_EQ(*receive(1, connected), "6");
  for (UdpPcb* p : {dual, any, specific, connected}) EXPECT_FALSE(receive(1, p));
}

TEST_F(UdpTest, V6OnlyTakesNoV4) {
  UdpPcb* a = open(0, {sim[0].v4(), 1000});
  open(1, {IpAddress::any_v6(), 2000}, {}, true);
  (void)send(0, a, "1", {sim[1].v4(), 2000});
  run();
  EXPECT_EQ(sim[1].counter(Counter::drop_no_socket), 1u);
}

TEST_F(UdpTest, AGroupSharesByFlow) {
  UdpPcb* b[2] = {open(1, {sim[1].v4(), 2000}), open(1, {sim[1].v4(), 2000})};
  b[0]->reuse_port = b[1]->reuse_port = true;
  int got[2] = {0, 0};
  for (uint16_t port = 1000; port < 1064; ++port) {
    UdpPcb* a = open(0, {sim[0].v4(), port});
    (void)send(0, a, "x", {sim[1].v4(), 2000});
    (void)send(0, a, "x", {sim[1].v4(), 2000});
    run();
    const size_t first = sim[1].stack->udp().queued_bytes(*b[0]),
                 second = sim[1].stack->udp().queued_bytes(*b[1]);
    EXPECT_TRUE((first == 2 && second == 0) || (first == 0 && second == 2));
    for (int i = 0; i < 2; ++i)
      while (receive(1, b[i])) ++got[i];
  }
  EXPECT_EQ(got[0] + got[1], 128);
  EXPECT_GT(got[0], 20);
  EXPECT_GT(got[1], 20);
}

TEST_F(UdpTest, TheNamedCpuCounts) {
  UdpPcb* b[3] = {};
  for (UdpPcb*& p : b) p = open(1, {sim[1].v4(), 2000});
  b[0]->incoming_cpu = 0;
  b[1]->incoming_cpu = 1;
  const auto takes = [&](int cpu, uint16_t from) {  // the index of who has all, or -1
    sim[1].cpu = cpu;
    for (uint16_t i = 0; i < 16; ++i)
      (void)send(0, open(0, {sim[0].v4(), static_cast<uint16_t>(from + i)}), "x", {sim[1].v4(), 2000});
    run();
    int all = -1;
    for (int i = 0; i < 3; ++i) {
      if (sim[1].stack->udp().queued_bytes(*b[i]) == 16) all = i;
      while (receive(1, b[i])) {
      }
    }
    return all;
  };
  EXPECT_EQ(takes(0, 1000), 0);
  EXPECT_EQ(takes(1, 1100), 1);
  EXPECT_EQ(takes(2, 1200), 2);  // the last that was bound
  for (UdpPcb* p : b) p->reuse_port = true;
  EXPECT_EQ(takes(0, 1300), 0);
  EXPECT_EQ(takes(1, 1400), 1);
  EXPECT_EQ(takes(2, 1500), -1);  // by hash
}

TEST_F(UdpTest, WithoutAGroupTheLastGetsIt) {
  UdpPcb* older = open(1, {sim[1].v4(), 2000});
  UdpPcb* newer = open(1, {sim[1].v4(), 2000});
  for (uint16_t port = 1000; port < 1016; ++port)
    (void)send(0, open(0, {sim[0].v4(), port}), "x", {sim[1].v4(), 2000});
  run();
  EXPECT_EQ(sim[1].stack->udp().queued_bytes(*older), 0u);
  EXPECT_EQ(sim[1].stack->udp().queued_bytes(*newer), 16u);
}

TEST_F(UdpTest, ADeviceIsHeldTo) {
  UdpPcb* a = open(0, {sim[0].v4(), 1000});
  UdpPcb* here = open(1, {IpAddress::any_v4(), 2000});
  UdpPcb* elsewhere = open(1, {IpAddress::any_v4(), 2000});
  UdpPcb* wherever = open(1, {IpAddress::any_v4(), 2000});
  sim[1].stack->udp().set_device(*here, 0);
  sim[1].stack->udp().set_device(*elsewhere, 1);
  (void)send(0, a, "1", {sim[1].v4(), 2000});
  run();
  EXPECT_EQ(*receive(1, here), "1");
  sim[1].stack->udp().close(here);
  (void)send(0, a, "2", {sim[1].v4(), 2000});
  run();
  EXPECT_EQ(*receive(1, wherever), "2");
  EXPECT_FALSE(receive(1, elsewhere));
}

TEST_F(UdpTest, AnAddressCountsBeforeADevice) {
  UdpPcb* address = open(1, {sim[1].v4(), 2000});
  UdpPcb* device = open(1, {IpAddress::any_v4(), 2000});
  sim[1].stack->udp().set_device(*device, 0);
  (void)send(0, open(0, {sim[0].v4(), 1000}), "1", {sim[1].v4(), 2000});
  run();
  EXPECT_EQ(*receive(1, address), "1");
  EXPECT_FALSE(receive(1, device));
}

TEST_F(UdpTest, MulticastGoesToAll) {
  const IpAddress group = IpAddress::v4(0xef010203);
  UdpPcb* a = open(0, {sim[0].v4(), 1000});
  UdpPcb* one = open(1, {IpAddress::any_v4(), 2000});
  UdpPcb* two = open(1, {group, 2000});
  UdpPcb* not_me = open(1, {sim[1].v4(), 2000});
  std::vector<uint8_t> frame;
  sim.filter = [&](int, std::span<const uint8_t> f) {
    frame.assign(f.begin(), f.end());
    return true;
  };
  Route route = sim[0].route_to(sim[1]);
  route.next_hop = group;
  const iovec v{const_cast<char*>("all"), 3};
  ASSERT_TRUE(
      sim[0]
          .stack->udp()
          .send(*a, {&v, 1}, {sim[0].v4(), 1000}, {group, 2000}, route, {0, 1, kAutoFlowLabel}, sim.now)
          .ok());
  sim.settle();
  ASSERT_EQ((MacAddress{frame[0], frame[1], frame[2], frame[3], frame[4], frame[5]}),
            (MacAddress{0x01, 0x00, 0x5e, 0x01, 0x02, 0x03}));
  sim.inject(1, frame);
  run();
  EXPECT_EQ(*receive(1, one), "all");
  EXPECT_EQ(*receive(1, two), "all");
  EXPECT_EQ(last.ttl, 1);
  EXPECT_FALSE(receive(1, not_me));
}

TEST_F(UdpTest, TheReceiveBufferBounds) {
  UdpPcb* a = open(0, {sim[0].v4(), 1000});
  UdpPcb* b = open(1, {sim[1].v4(), 2000});
  sim[1].stack->udp().set_receive_buffer(*b, 10000);
  for (int i = 0; i < 100; ++i) (void)send(0, a, std::string(1000, 'x'), {sim[1].v4(), 2000});
  run();
  EXPECT_LE(sim[1].stack->udp().queued_bytes(*b), 10000u);
  EXPECT_GE(sim[1].stack->udp().queued_bytes(*b), 7000u);
  const uint64_t kept = sim[1].stack->udp().queued_bytes(*b) / 1000;
  EXPECT_EQ(sim[1].stack->udp().drops(*b), 100 - kept);
  EXPECT_EQ(sim[1].counter(Counter::drop_udp_queue_full), 100 - kept);
  sim[1].stack->udp().set_receive_buffer(*b, 0);
  while (receive(1, b)) {
  }
  (void)send(0, a, "one fits always", {sim[1].v4(), 2000});
  for (int i = 0; i < 100; ++i) (void)send(0, a, "", {sim[1].v4(), 2000});  // empty ones are bounded too
  run();
  EXPECT_EQ(*receive(1, b), "one fits always");
  EXPECT_FALSE(receive(1, b));
}

struct SmallPoolTest : UdpTest {
  SmallPoolTest()
      : UdpTest([] {
          HostOptions o;
          o.frames = 64;
          return o;
        }()) {}
};

TEST_F(SmallPoolTest, QueuedDatagramsLeaveThePool) {
  UdpPcb* a = open(0, {sim[0].v4(), 1000});
  UdpPcb* b = open(1, {sim[1].v4(), 2000});
  for (int i = 0; i < 500; ++i) {
    ASSERT_TRUE(send(0, a, std::to_string(i), {sim[1].v4(), 2000}).ok());
    sim.run_for(10ms);
  }
  EXPECT_GE(sim[1].pool.available(), 31u);
  for (int i = 0; i < 500; ++i) ASSERT_EQ(*receive(1, b), std::to_string(i));
}

TEST_F(SmallPoolTest, SendingIsHeldBackAndResumes) {
  UdpPcb* a = open(0, {sim[0].v4(), 1000});
  const iovec v{const_cast<char*>("x"), 1};
  int sent = 0;
  Result<size_t> r = size_t{0};
  while (sent < 1000 &&
         (r = sim[0].stack->udp().send(*a, {&v, 1}, {sim[0].v4(), 1000}, {sim[1].v4(), 9},
                                       sim[0].route_to(sim[1]), {0, 64, kAutoFlowLabel}, sim.now)))
    ++sent;
  EXPECT_TRUE(r.is(EAGAIN));
  EXPECT_FALSE(sim[0].stack->udp().readiness(*a) & kWritable);
  run();
  EXPECT_TRUE(recorder(a).edges & kWritable);
  EXPECT_TRUE(sim[0].stack->udp().readiness(*a) & kWritable);
}

struct JumboTest : UdpTest {
  JumboTest()
      : UdpTest([] {
          HostOptions o;
          o.mtu = 9000;
          return o;
        }()) {}
};

TEST_F(JumboTest, DatagramsInSeveralBuffers) {
  UdpPcb* a = open(0, {sim[0].v4(), 1000});
  UdpPcb* b = open(1, {sim[1].v4(), 2000});
  for (size_t n : {1990u, 2005u, 2006u, 2007u, 4053u, 4054u, 4055u, 8972u}) {
    std::string text(n, 0);
    for (size_t i = 0; i < n; ++i) text[i] = static_cast<char>(stream_byte(n, i));
    const iovec v[3] = {{text.data(), 7}, {text.data() + 7, 0}, {text.data() + 7, n - 7}};  // odd pieces
    ASSERT_EQ(*sim[0].stack->udp().send(*a, v, {sim[0].v4(), 1000}, {sim[1].v4(), 2000},
                                        sim[0].route_to(sim[1]), {0, 64, kAutoFlowLabel}, sim.now),
              n);
    run();
    ASSERT_EQ(*receive(1, b), text) << n;
  }
  EXPECT_TRUE(send(0, a, std::string(8973, 'x'), {sim[1].v4(), 2000}).is(EMSGSIZE));
}

struct OffloadTest : UdpTest {
  OffloadTest()
      : UdpTest([] {
          HostOptions o;
          o.tx_checksum = true;
          o.vlan = 7;
          return o;
        }()) {}
};

TEST_F(OffloadTest, FramesAreTheInterfacesThatHasTheirTag) {
  Interface plain = sim[1].stack->interface(0), seven = plain, eight = plain;
  plain.vlan.reset();
  seven.lower = eight.lower = 0;
  eight.vlan = 8;
  for (const auto& [id, info] : {std::pair<InterfaceId, Interface&>{0, plain}, {1, eight}, {2, seven}})
    sim[1].stack->set_interface(id, info);
  UdpPcb* a = open(0, {sim[0].v6(), 1000});
  UdpPcb* b = open(1, {IpAddress::any_v6(), 2000});
  (void)send(0, a, "seven", {sim[1].v6(), 2000});
  run();
  EXPECT_EQ(*receive(1, b), "seven");
  EXPECT_EQ(last.interface, 2);
  sim[1].stack->remove_interface(2);
  (void)send(0, a, "nobody's", {sim[1].v6(), 2000});
  run();
  EXPECT_FALSE(receive(1, b));
  EXPECT_EQ(sim[1].counters.get(Counter::drop_other_host), 1u);
}

TEST_F(OffloadTest, TheDeviceSumsAndTheTagIsThere) {
  UdpPcb* a = open(0, {sim[0].v6(), 1000});
  UdpPcb* b = open(1, {IpAddress::any_v6(), 2000});
  size_t tagged = 0;
  sim.filter = [&](int, std::span<const uint8_t> f) {
    tagged += f[12] == 0x81 && f[13] == 0 && f[15] == 7;
    return true;
  };
  (void)send(0, a, "tagged", {sim[1].v6(), 2000});
  run();
  EXPECT_EQ(*receive(1, b), "tagged");
  EXPECT_EQ(tagged, 1u);
}

/// Answers every UDP frame of host 0 with an ICMP error that quotes it.
void answer_with_icmp(Sim& sim, uint8_t type, uint8_t code, uint32_t rest) {
  sim.filter = [&sim, type, code, rest](int host, std::span<const uint8_t> f) {
    if (host != 0) return true;
    std::vector<uint8_t> e(f.begin(), f.begin() + 14);
    std::copy_n(sim[0].mac().begin(), 6, e.begin());
    e.resize(14 + 20 + 8);
    e.insert(e.end(), f.begin() + 14, f.begin() + 14 + 28);
    auto& ip = wire_at<Ipv4Header>(&e[14]);
    ip = {};
    ip.version_ihl = 0x45;
    ip.total_length = static_cast<uint16_t>(e.size() - 14);
    ip.ttl = 64;
    ip.protocol = kProtocolIcmp;
    ip.source = {10, 0, 0, 2};
    ip.destination = {10, 0, 0, 1};
    store_checksum(&ip.checksum, finish_sum(sum_bytes(&e[14], 20)));
    auto& icmp = wire_at<IcmpHeader>(&e[34]);
    icmp = {};
    icmp.type = type;
    icmp.code = code;
    icmp.rest = rest;
    store_checksum(&icmp.checksum, finish_sum(sum_bytes(&e[34], e.size() - 34)));
    sim.inject(0, e);
    return false;
  };
}

TEST_F(UdpTest, PortUnreachableReachesConnectedSockets) {
  UdpPcb* connected = open(0, {sim[0].v4(), 1000}, {sim[1].v4(), 2000});
  UdpPcb* loose = open(0, {sim[0].v4(), 1001});
  answer_with_icmp(sim, 3, 3, 0);
  (void)send(0, connected, "x", {sim[1].v4(), 2000});
  (void)send(0, loose, "x", {sim[1].v4(), 2000});
  run();
  EXPECT_TRUE(recorder(connected).edges & kError);
  EXPECT_TRUE(sim[0].stack->udp().readiness(*connected) & kError);
  EXPECT_EQ(sim[0].stack->udp().take_error(*connected), ECONNREFUSED);
  EXPECT_EQ(sim[0].stack->udp().take_error(*connected), 0);
  EXPECT_EQ(sim[0].stack->udp().take_error(*loose), 0);
  EXPECT_EQ(sim[0].counter(Counter::icmp_errors), 2u);
}

TEST_F(UdpTest, FragmentationNeededShrinksThePathForAWhile) {
  UdpPcb* a = open(0, {sim[0].v4(), 1000});
  answer_with_icmp(sim, 3, 4, 1280);
  ASSERT_TRUE(send(0, a, std::string(1400, 'x'), {sim[1].v4(), 2000}).ok());
  run();
  EXPECT_EQ(sim[0].to_kernel.size(), 1u);  // its sockets are told as well
  EXPECT_TRUE(send(0, a, std::string(1400, 'x'), {sim[1].v4(), 2000}).is(EMSGSIZE));
  EXPECT_TRUE(send(0, a, std::string(1252, 'x'), {sim[1].v4(), 2000}).ok());
  sim.filter = nullptr;
  sim.run_for(700s);
  EXPECT_TRUE(send(0, a, std::string(1400, 'x'), {sim[1].v4(), 2000}).ok());
}

// As __ip6_rt_update_pmtu(): no link of IPv6 is so narrow, whoever says so.
TEST_F(UdpTest, PacketTooBigBelowTheLeastMtuIsNotHeeded) {
  const Endpoint to{sim[1].v6(), 2000};
  UdpPcb* a = open(0, {sim[0].v6(), 1000});
  sim[0].link.mtu = 1279;
  ASSERT_TRUE(send(0, a, std::string(1400, 'x'), to).ok());
  run();
  EXPECT_EQ(sim[0].to_kernel.size(), 1u);
  EXPECT_TRUE(send(0, a, std::string(1400, 'x'), to).ok());
  sim[0].link.mtu = 1280;
  ASSERT_TRUE(send(0, a, std::string(1400, 'x'), to).ok());
  run();
  EXPECT_TRUE(send(0, a, std::string(1400, 'x'), to).is(EMSGSIZE));
}

/// DF and ID of what host 0 sends.
struct Marks {
  explicit Marks(Sim& sim) {
    sim.filter = [this](int host, std::span<const uint8_t> f) {
      if (host == 0) seen.emplace_back((f[20] & 0x40) != 0, get_be16(f, 18));
      return true;
    };
  }
  std::vector<std::pair<bool, uint16_t>> seen;
};

TEST_F(UdpTest, MtuDiscoverySetsDfAndIds) {
  const Endpoint to{sim[1].v4(), 2000};
  open(1, to);
  for (const bool connected : {false, true}) {
    for (uint8_t i = 0; i <= static_cast<uint8_t>(MtuDiscovery::kOmit); ++i) {
      const auto discovery = static_cast<MtuDiscovery>(i);
      UdpPcb* a = open(0, {sim[0].v4(), 1000}, connected ? to : Endpoint{});
      sim[0].stack->udp().set_mtu_options(*a, {discovery, MtuDiscovery::kWant, 0});
      Marks marks(sim);
      for (int n = 0; n < 5; ++n) ASSERT_TRUE(send(0, a, "x", to).ok());
      run();
      ASSERT_EQ(marks.seen.size(), 5u);
      const bool df = discovery == MtuDiscovery::kWant || discovery == MtuDiscovery::kDo ||
                      discovery == MtuDiscovery::kProbe;
      const bool zero = !connected && df && discovery != MtuDiscovery::kWant;
      for (size_t n = 0; n < 5; ++n) {
        EXPECT_EQ(marks.seen[n].first, df) << int{i};
        if (zero) {
          EXPECT_EQ(marks.seen[n].second, 0);
        } else if (n > 0) {
          EXPECT_EQ(marks.seen[n].second, static_cast<uint16_t>(marks.seen[n - 1].second + 1)) << int{i};
        }
      }
      sim[0].stack->udp().close(a);
    }
  }
  EXPECT_EQ(sim[1].counter(Counter::drop_ip_checksum), 0u);
}

TEST_F(UdpTest, MtuDiscoverySaysWhichMtuBounds) {
  const Endpoint to{sim[1].v4(), 2000}, to6{sim[1].v6(), 2000};
  UdpPcb* a = open(0, {sim[0].v4(), 1000});
  UdpPcb* b = open(0, {sim[0].v6(), 1000});
  auto most = [&](UdpPcb* pcb, const Endpoint& where, bool locked, MtuDiscovery discovery, uint32_t most_v6) {
    sim[0].stack->udp().set_mtu_options(*pcb, {discovery, discovery, most_v6});
    const bool v6 = !where.address.is_v4();
    Route route = sim[0].route_to(sim[1], v6);
    route.mtu = 1400;
    route.mtu_locked = locked;
    size_t n = 1600;
    const std::string text(n, 'x');
    for (;; --n) {
      const iovec v{const_cast<char*>(text.data()), n};
      auto r = sim[0].stack->udp().send(*pcb, {&v, 1}, {v6 ? sim[0].v6() : sim[0].v4(), 1000}, where, route,
                                        {}, sim.now);
      sim.settle();
      if (!r.is(EMSGSIZE)) break;
    }
    return n + (v6 ? 48 : 28);
  };
  using enum MtuDiscovery;
  for (const MtuDiscovery d : {kDont, kWant, kDo}) {
    EXPECT_EQ(most(a, to, false, d, 0), 1400u);
    EXPECT_EQ(most(b, to6, false, d, 0), 1400u);
    EXPECT_EQ(most(b, to6, false, d, 1300), 1300u);
  }
  for (const MtuDiscovery d : {kProbe, kInterface, kOmit}) {
    EXPECT_EQ(most(a, to, false, d, 1300), 1500u) << "IPV6_MTU is of IPv6";
    EXPECT_EQ(most(b, to6, false, d, 0), 1500u);
    EXPECT_EQ(most(b, to6, false, d, 1300), 1300u);
  }
  for (const auto& [discovery, df] : {std::pair{kWant, false}, {kDo, true}}) {
    Marks marks(sim);
    EXPECT_EQ(most(a, to, true, discovery, 0), 1400u);
    EXPECT_EQ(marks.seen.front().first, df) << "mtu lock";
  }
}

TEST_F(UdpTest, MtuDiscoverySaysWhatIcmpMeans) {
  const Endpoint to{sim[1].v4(), 2000};
  using enum MtuDiscovery;
  for (const MtuDiscovery discovery : {kInterface, kOmit, kProbe, kDont, kWant, kDo}) {
    UdpPcb* a = open(0, {sim[0].v4(), 1000}, to);
    sim[0].stack->udp().set_mtu_options(*a, {discovery, kWant, 0});
    answer_with_icmp(sim, 3, 4, 1280);
    ASSERT_TRUE(send(0, a, std::string(1400, 'x'), to).ok());
    run();
    EXPECT_EQ(a->kernel_has_error, discovery != kDont);
    sim[0].stack->udp().set_mtu_options(*a, {});  // the destination's MTU, if anything was learned
    EXPECT_EQ(send(0, a, std::string(1400, 'x'), to).is(EMSGSIZE),
              discovery != kInterface && discovery != kOmit);
    sim[0].stack->udp().close(a);
    sim.filter = nullptr;
    sim.run_for(700s);
  }
}

TEST_F(UdpTest, AnMtuThatNobodyBelievesTakesDfAway) {
  const Endpoint to{sim[1].v4(), 2000};
  UdpPcb* a = open(0, {sim[0].v4(), 1000});
  answer_with_icmp(sim, 3, 4, 300);
  ASSERT_TRUE(send(0, a, std::string(1400, 'x'), to).ok());
  run();
  EXPECT_TRUE(send(0, a, std::string(552 - 28 + 1, 'x'), to).is(EMSGSIZE));
  Marks marks(sim);
  EXPECT_TRUE(send(0, a, std::string(552 - 28, 'x'), to).ok());
  run();
  ASSERT_EQ(marks.seen.size(), 1u);
  EXPECT_FALSE(marks.seen[0].first);
}

TEST_F(UdpTest, SegmentsAreDatagrams) {
  const Endpoint to{sim[1].v4(), 2000};
  UdpPcb* a = open(0, {sim[0].v4(), 1000});
  UdpPcb* b = open(1, to);
  auto send_in = [&](size_t size, uint16_t segment) {
    std::string text(size, 0);
    for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(stream_byte(segment, i));
    const size_t cut = std::min<size_t>(size, 333);
    const iovec v[3] = {{text.data(), cut}, {text.data(), 0}, {text.data() + cut, size - cut}};
    auto r = sim[0].stack->udp().send(*a, v, {sim[0].v4(), 1000}, to, sim[0].route_to(sim[1]),
                                      {.segment = segment}, sim.now);
    sim.settle();
    run();
    std::string got;
    for (size_t n = 0; r && n < (size + segment - 1) / segment; ++n) {
      const auto one = receive(1, b);
      EXPECT_EQ(last.size, std::min<size_t>(segment, size - got.size()));
      got += one.value_or("nothing");
    }
    if (r) {
      EXPECT_EQ(got, text);
    }
    EXPECT_FALSE(receive(1, b));
    return r;
  };
  Marks marks(sim);
  EXPECT_EQ(*send_in(1000, 300), 1000u);
  EXPECT_EQ(*send_in(900, 300), 900u);
  EXPECT_EQ(*send_in(10, 300), 10u);
  EXPECT_EQ(*send_in(6400, 100), 6400u);
  EXPECT_EQ(*send_in(60000, 1472), 60000u);
  for (size_t i = 0; i < marks.seen.size(); ++i) {
    EXPECT_EQ(marks.seen[i].first, i < 8) << "a send that is longer than the MTU goes without DF";
    if (i > 0) {
      EXPECT_NE(marks.seen[i].second, marks.seen[i - 1].second);
    }
  }
  EXPECT_TRUE(send_in(6401, 100).is(EMSGSIZE)) << "more segments than any kernel takes";
  EXPECT_TRUE(send_in(10, 1473).is(EMSGSIZE));
  EXPECT_EQ(sim[0].counter(Counter::udp_sent), 4u + 3 + 1 + 64 + 41);
}

TEST(IpIds, OneCounterGivesEachNumberOnceARound) {
  IpIds ids(1);
  const IpAddress from = IpAddress::v4(1), to = IpAddress::v4(2);
  std::vector<bool> seen(65536);
  for (int i = 0; i < 65536; i += 16) {
    const uint16_t first = ids.reserve(from, to, Protocol::kUdp, 16, Instant{});
    for (uint16_t n = 0; n < 16; ++n) {
      EXPECT_FALSE(seen[static_cast<uint16_t>(first + n)]);
      seen[static_cast<uint16_t>(first + n)] = true;
    }
  }
}

TEST(IpIds, ARestIsSkippedByChance) {
  IpIds ids(1), others(2);
  const IpAddress from = IpAddress::v4(1), to = IpAddress::v4(2);
  Instant now{};
  int steps = 0, alike = 0;
  for (int i = 0; i < 100; ++i) {
    const uint16_t before = ids.reserve(from, to, Protocol::kUdp, 1, now);
    now += 1s;
    const auto step = static_cast<uint16_t>(ids.reserve(from, to, Protocol::kUdp, 1, now) - before);
    EXPECT_GE(step, 1);
    EXPECT_LE(step, 250);
    steps += step;
    alike += others.reserve(from, to, Protocol::kUdp, 1, now) == before;
  }
  EXPECT_GT(steps, 100 * 60);
  EXPECT_LT(steps, 100 * 190);
  EXPECT_LT(alike, 5);
}

TEST_F(UdpTest, FramesForOthersAndBrokenOnesAreCounted) {
  UdpPcb* a = open(0, {sim[0].v4(), 1000});
  open(1, {sim[1].v4(), 2000});
  std::vector<uint8_t> good;
  sim.filter = [&](int, std::span<const uint8_t> f) {
    good.assign(f.begin(), f.end());
    return false;
  };
  (void)send(0, a, "payload", {sim[1].v4(), 2000});
  auto expect = [&](Counter c, const std::function<void(std::vector<uint8_t>&)>& spoil) {
    auto frame = good;
    spoil(frame);
    const uint64_t before = sim[1].counter(c);
    sim.inject(1, frame);
    run();
    EXPECT_EQ(sim[1].counter(c), before + 1) << kCounterTexts[static_cast<size_t>(c)].name;
  };
  auto resum = [](std::vector<uint8_t>& f) {
    f[24] = f[25] = 0;
    store_checksum(&f[24], finish_sum(sum_bytes(&f[14], 20)));
  };
  expect(Counter::drop_truncated, [](auto& f) { f.resize(13); });
  expect(Counter::drop_truncated, [](auto& f) {
    f.resize(30);
    f.resize(40);
  });
  expect(Counter::drop_other_host, [](auto& f) { f[5] ^= 0x40; });
  expect(Counter::drop_not_ip, [](auto& f) { f[12] = 0x08, f[13] = 0x06; });
  expect(Counter::drop_ip_header, [](auto& f) { f[14] = 0x44; });
  expect(Counter::drop_ip_checksum, [](auto& f) { f[24] ^= 1; });
  expect(Counter::drop_fragment, [&](auto& f) {  // 15 bytes, and more to follow
    f[20] = 0x20;
    resum(f);
  });
  expect(Counter::drop_protocol, [&](auto& f) {
    f[23] = 47;
    resum(f);
  });
  expect(Counter::drop_udp_checksum, [](auto& f) { f.back() ^= 1; });
  expect(Counter::drop_udp_header, [](auto& f) { f[39] = 200; });
  expect(Counter::drop_udp_header, [](auto& f) { f[39] = 7; });
  expect(Counter::drop_no_socket, [](auto& f) { f[37] ^= 1, f[40] = f[41] = 0; });
  EXPECT_EQ(sim[1].pool.available(), sim[1].pool.size());
}

}  // namespace
}  // namespace accel::sim
