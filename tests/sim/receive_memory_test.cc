// What peers make a host hold: true sizes, what was advertised is taken, and the unread do not starve the
// living.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "sim.h"
#include "stack/udp.h"
#include "stack/wire/checksum.h"
#include "stack/wire/tcp.h"

namespace accel::sim {
namespace {

/// A segment of the connection's peer, as it would be on the wire, without options.
std::vector<uint8_t> segment_to(Sim& sim, const TcpConn& c, uint32_t seq, std::string_view text) {
  std::vector<uint8_t> f(54 + text.size());
  std::copy_n(sim[1].mac().begin(), 6, f.begin());
  std::copy_n(sim[0].mac().begin(), 6, f.begin() + 6);
  f[12] = 0x08;
  f[14] = 0x45;
  store_be16(&f[16], static_cast<uint16_t>(40 + text.size()));
  f[22] = 64;
  f[23] = 6;
  std::memcpy(&f[26], c.remote.address.v4_bytes(), 4);
  std::memcpy(&f[30], c.local.address.v4_bytes(), 4);
  store_checksum(&f[24], finish_sum(sum_bytes(&f[14], 20)));
  auto& tcp = wire_at<TcpHeader>(&f[34]);
  tcp.source = c.remote.port;
  tcp.destination = c.local.port;
  tcp.sequence = seq;
  tcp.acknowledgment = c.snd_una;
  tcp.data_offset = 5 << 4;
  tcp.flags = kAck;
  tcp.window = 65535;
  std::copy(text.begin(), text.end(), f.begin() + 54);
  const auto length = static_cast<uint16_t>(20 + text.size());
  store_checksum(&tcp.checksum,
                 finish_sum(sum_bytes(&f[26], 8) + sum_of(6) + sum_of(length) + sum_bytes(&f[34], length)));
  return f;
}

/// A byte behind every other one, from the next expected on.
void punch_holes(Sim& sim, const TcpConn& c, uint32_t holes) {
  const uint32_t base = c.rcv_nxt;
  for (uint32_t i = 0; i < holes; ++i) {
    sim.inject(1, segment_to(sim, c, base + 1 + 2 * i, "x"));
    if (i % 64 == 63) sim.run_for(1us);
  }
  sim.run_for(1us);
}

class FrameSize : public testing::TestWithParam<uint32_t> {};

TEST_P(FrameSize, WhatWasAdvertisedIsTaken) {
  HostOptions options;
  options.frames = 16384;
  options.buffer_size = GetParam();
  options.config.receive_buffer = options.config.send_buffer = 1 << 20;
  Sim sim(1, 2, options);
  sim.links([](Link& l) {
    l.delay = 10ms;
    l.bits_per_second = 1'000'000'000;
    l.queue_frames = 20000;
  });
  End client(sim[0], 1, 2, 20'000'000), server(sim[1], 2, 1, 0);
  Acceptor acceptor(sim[1], {sim[1].v4(), 80});
  acceptor.accepted = [&](TcpConn* c) { server.attach(c); };
  client.attach(*sim[0].stack->tcp().connect({sim[0].v4(), 4000}, {sim[1].v4(), 80}, sim[0].route_to(sim[1]),
                                             {}, static_cast<Actor*>(&client), sim.now));
  std::set<uint32_t> seen;
  uint32_t lost = 0;
  sim.filter = [&, n = 0](int host, std::span<const uint8_t> f) mutable {
    if (host != 0 || f.size() < 1000 || !seen.insert(tcp_of(f.subspan(14)).sequence).second) return true;
    if (++n % 4000 != 2000) return true;
    ++lost;
    return false;
  };
  ASSERT_TRUE(sim.run_until([&] { return client.finished() && server.finished(); }, 100s));
  EXPECT_EQ(server.read, 20'000'000u);
  EXPECT_FALSE(server.wrong);
  EXPECT_GE(lost, 3u);
  EXPECT_EQ(sim[1].counter(Counter::drop_tcp_memory), 0u);
  EXPECT_EQ(sim[0].counter(Counter::tcp_retransmits), lost);
}

/// A reader that sleeps: the window is filled by segments that leave most of their frames empty.
TEST_P(FrameSize, AFullWindowOfSmallSegmentsIsTaken) {
  HostOptions options;
  options.frames = 4096;
  options.buffer_size = GetParam();
  options.config.receive_buffer = 200'000;
  options.config.send_buffer = 1 << 20;
  Sim sim(1, 2, options);
  PairOptions small;
  small.a.nodelay = true;
  small.a.max_segment = 300;
  Pairs pairs(sim, small);
  Pair p = pairs.connect();
  for (int i = 0; i < 300; ++i) {
    (void)write(sim[0], p.a, std::string(1000, 'x'));  // in the end the window is closed
    sim.run_for(5ms);
  }
  EXPECT_GT(sim[1].stack->tcp().readable_bytes(*p.b), 190'000u);
  EXPECT_EQ(sim[1].counter(Counter::drop_tcp_memory), 0u);
  EXPECT_LE(p.b->receive_held(), 3 * 200'000u);
  EXPECT_GT(sim[1].pool.available(), sim[1].pool.size() / 4);
}

INSTANTIATE_TEST_SUITE_P(, FrameSize, testing::Values(2048, 4096),
                         [](const auto& size) { return std::to_string(size.param); });

TEST(Holes, OfOneByteCostWhatTheWindowAllows) {
  HostOptions options;
  options.config.receive_buffer = 1 << 20;
  Sim sim(1, 2, options);
  Pairs pairs(sim);
  Pair p = pairs.connect();
  ASSERT_TRUE(write(sim[0], p.a, "first"));
  sim.run_for(100ms);
  ASSERT_EQ(*read(sim[1], p.b), "first");
  const uint32_t base = p.b->rcv_nxt;
  punch_holes(sim, *p.b, 20'000);
  EXPECT_EQ(sim[1].counter(Counter::drop_tcp_memory), 0u);
  EXPECT_LE(p.b->receive_held(), 60'000u);  // for 20 000 bytes
  EXPECT_GT(sim[1].pool.available(), sim[1].pool.size() / 2);
  // Nothing of it was lost: the missing ones make a stream of all.
  std::string all;
  for (uint32_t i = 0; i < 20'000; ++i) {
    sim.inject(1, segment_to(sim, *p.b, base + 2 * i, "y"));
    if (i % 64 == 63) sim.run_for(1us);
  }
  sim.run_for(1us);
  while (auto r = read(sim[1], p.b)) all += *r;
  ASSERT_EQ(all.size(), 40'000u);
  for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], i % 2 ? 'x' : 'y');
}

/// Nanoseconds that a duplicate of the last piece takes, the least of some rounds.
double cost_of_duplicate(Sim& sim, const TcpConn& c, uint32_t seq) {
  double least = 1e18;
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 200; ++i) sim.inject(1, segment_to(sim, c, seq, "x"));
    const auto begin = std::chrono::steady_clock::now();
    sim.run_for(1us);
    least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return least / 200 * 1e9;
}

TEST(Holes, TheirNumberDoesNotMakeASegmentDearer) {
  HostOptions options;
  options.config.receive_buffer = 1 << 20;
  Sim sim(1, 2, options);
  Pairs pairs(sim);
  Pair p = pairs.connect();
  const uint32_t base = p.b->rcv_nxt;
  punch_holes(sim, *p.b, 100);
  const double few = cost_of_duplicate(sim, *p.b, base + 1 + 2 * 98);
  punch_holes(sim, *p.b, 25'000);
  const double many = cost_of_duplicate(sim, *p.b, base + 1 + 2 * 24'998);
  EXPECT_LT(many, 10 * few) << "ns";  // of a list it is more than a hundred times as much
}

TEST(Holes, MakeWayForTheTextThatIsNext) {
  HostOptions options;
  options.config.receive_buffer = 1 << 20;
  options.config.tcp_memory = {1 << 20, 1 << 20, 2 << 20};
  Sim sim(1, 2, options);
  Pairs pairs(sim);
  std::vector<Pair> hostile;
  for (int i = 0; i < 12; ++i) hostile.push_back(pairs.connect());
  for (const Pair& h : hostile) {
    const uint32_t base = h.b->rcv_nxt;
    for (uint32_t at = 1; at < 900'000; at += 4000) {
      sim.inject(1, segment_to(sim, *h.b, base + at, "x"));
      if (at % 64 == 1) sim.run_for(1us);
    }
    sim.run_for(1us);
  }
  uint64_t held = 0;
  for (const Pair& h : hostile) held += h.b->receive_held();
  EXPECT_LE(held, 2'200'000u);
  EXPECT_GT(sim[1].counter(Counter::drop_tcp_memory), 0u);
  // A connection that is full of such takes what is next, and gives the far pieces up for it.
  const Pair h = hostile[0];
  for (int i = 0; i < 40; ++i) {
    const std::string text(1000, static_cast<char>('a' + i % 26));
    sim.inject(1, segment_to(sim, *h.b, h.b->rcv_nxt, text));
    sim.run_for(1us);
  }
  EXPECT_GE(sim[1].stack->tcp().readable_bytes(*h.b), 40'000u);
  EXPECT_GT(sim[1].counter(Counter::tcp_out_of_order_pruned), 0u);
}

TEST(Unread, ConnectionsDoNotStarveTheLiving) {
  HostOptions options;
  options.frames = 8192;
  options.config.receive_buffer = 1 << 20;
  options.config.tcp_memory = {2 << 20, 3 << 20, 4 << 20};
  Sim sim(1, 2, options);
  sim.links([](Link& l) { l.delay = 1ms; });
  Pairs pairs(sim);
  std::vector<Pair> unread;
  for (int i = 0; i < 60; ++i) unread.push_back(pairs.connect());
  Pair living = pairs.connect();
  for (int round = 0; round < 40; ++round) {
    for (const Pair& u : unread) (void)write(sim[0], u.a, std::string(20'000, 'x'));
    sim.run_for(20ms);
  }
  uint64_t held = 0;
  for (const Pair& u : unread) held += u.b->receive_held();
  EXPECT_LE(held, 5u << 20);
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(write(sim[0], living.a, "ping"));
    sim.run_for(10ms);
    auto asked = read(sim[1], living.b);
    ASSERT_TRUE(asked) << i;
    EXPECT_EQ(*asked, "ping");
    ASSERT_TRUE(write(sim[1], living.b, "pong"));
    sim.run_for(10ms);
    auto told = read(sim[0], living.a);
    ASSERT_TRUE(told) << i;
    EXPECT_EQ(*told, "pong");
  }
  // A connection that comes now is no worse off.
  Pair late = pairs.connect();
  ASSERT_TRUE(late.b);
  ASSERT_TRUE(write(sim[0], late.a, std::string(3000, 'z')));
  sim.run_for(100ms);
  EXPECT_EQ(sim[1].stack->tcp().readable_bytes(*late.b), 3000u);
  // Those that nobody read have lost nothing that was acknowledged.
  size_t got = 0, sent = 0;
  for (const Pair& u : unread) sent += u.a->bytes_sent - u.a->bytes_retransmitted;
  EXPECT_TRUE(sim.run_until(
      [&] {
        for (const Pair& u : unread)
          while (auto r = read(sim[1], u.b)) {
            if (r->empty()) break;
            got += r->size();
          }
        sent = 0;
        for (const Pair& u : unread) sent += u.a->snd_una - u.a->iss - 1 + u.a->send_queue.size();
        return got == sent;
      },
      300s));
}

TEST(Unread, DatagramsDoNotStarveTheLiving) {
  HostOptions options;
  options.frames = 8192;
  options.buffer_size = 4096;
  options.config.udp_memory = {2 << 20, 3 << 20, 4 << 20};
  Sim sim(1, 2, options);
  Pairs pairs(sim);
  Pair tcp = pairs.connect();
  auto* from = *sim[0].stack->udp().open({sim[0].v4(), 9}, {}, false, nullptr);
  std::vector<UdpPcb*> unread;
  Recorder owner;
  for (uint16_t i = 0; i < 1400; ++i)
    unread.push_back(
        *sim[1].stack->udp().open({sim[1].v4(), static_cast<uint16_t>(20000 + i)}, {}, false, &owner));
  UdpPcb* living = *sim[1].stack->udp().open({sim[1].v4(), 7}, {}, false, &owner);
  std::string text(1000, 'u');
  auto send_to = [&](uint16_t port) {
    const iovec v{text.data(), text.size()};
    return sim[0].stack->udp().send(*from, {&v, 1}, {sim[0].v4(), 9}, {sim[1].v4(), port},
                                    sim[0].route_to(sim[1]), {}, sim.now);
  };
  for (int round = 0; round < 6; ++round)
    for (uint16_t i = 0; i < 1400; ++i) {
      ASSERT_TRUE(send_to(static_cast<uint16_t>(20000 + i)));
      if (i % 100 == 99) sim.run_for(1ms);
    }
  sim.run_for(100ms);
  uint64_t held = 0;
  for (const UdpPcb* u : unread) held += u->memory;
  EXPECT_LE(held, 1400ull * 5300);  // each its reserve, and the last datagram beyond it
  EXPECT_GT(sim[1].counter(Counter::drop_udp_memory), 0u);
  EXPECT_GE(sim[1].pool.available(), sim[1].pool.size() / 2);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(send_to(7));
    sim.run_for(20ms);
    ASSERT_TRUE(sim[1].stack->udp().front(*living)) << i;
    std::string into(2000, 0);
    const iovec v{into.data(), into.size()};
    EXPECT_EQ(sim[1].stack->udp().receive(*living, {&v, 1}, true), 1000u);
    ASSERT_TRUE(write(sim[0], tcp.a, std::string(5000, 't')));
    sim.run_for(50ms);
    auto r = read(sim[1], tcp.b);
    ASSERT_TRUE(r);
    EXPECT_EQ(r->size(), 5000u);
  }
  for (UdpPcb* u : unread) sim[1].stack->udp().close(u);
  sim[1].stack->udp().close(living);
  sim[0].stack->udp().close(from);
}

}  // namespace
}  // namespace accel::sim
