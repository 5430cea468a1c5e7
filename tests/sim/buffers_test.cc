// Buffers that grow with what a path takes, as tcp_rmem and tcp_wmem let them.
#include <gtest/gtest.h>

#include "sim.h"

namespace accel::sim {
namespace {

HostOptions plenty() {
  HostOptions options;
  options.frames = 32768;
  options.buffer_size = 4096;
  return options;
}

/// Seconds that `bytes` take from host 0 to host 1, over 200 Mb/s and a round trip of 100 ms.
double transfer(Sim& sim, uint64_t bytes, TcpSettings sender = {}, TcpSettings receiver = {}) {
  sim.links([](Link& l) {
    l.delay = 50ms;
    l.bits_per_second = 200'000'000;
    l.queue_frames = 4000;
  });
  End client(sim[0], 1, 2, bytes), server(sim[1], 2, 1, 0);
  Acceptor acceptor(sim[1], {sim[1].v4(), 80}, 128, receiver);
  acceptor.accepted = [&](TcpConn* c) { server.attach(c); };
  const Instant begin = sim.now;
  client.attach(*sim[0].stack->tcp().connect({sim[0].v4(), 4000}, {sim[1].v4(), 80}, sim[0].route_to(sim[1]),
                                             sender, static_cast<Actor*>(&client), sim.now));
  EXPECT_TRUE(sim.run_until([&] { return client.finished() && server.finished(); }, 300s));
  EXPECT_EQ(server.read, bytes);
  EXPECT_FALSE(server.wrong);
  EXPECT_EQ(sim[1].counter(Counter::drop_tcp_memory), 0u);
  return std::chrono::duration<double>(sim.now - begin).count();
}

TEST(Buffers, GrowWithTheirPath) {
  Sim sim(1, 2, plenty());
  EXPECT_LT(transfer(sim, 60'000'000), 4.5);  // of which the wire takes 2.5; with 1 MiB each way it is 9.2
}

TEST(Buffers, StayWhereTheProgramPutsThem) {
  TcpSettings fixed;
  fixed.receive_buffer = 100'000;
  Sim sim(1, 2, plenty());
  EXPECT_GT(transfer(sim, 5'000'000, {}, fixed), 4.5);  // 100 kB a round trip
}

TEST(Buffers, StayWithinTcpRmem) {
  HostOptions options = plenty();
  options.config.tcp_receive_most = 262'144;
  Sim sim(1, 2, options);
  EXPECT_GT(transfer(sim, 5'000'000), 2.4);  // 197 kB a round trip
}

TEST(Buffers, DoNotGrowForAReaderThatSleeps) {
  Sim sim(1, 2, plenty());
  sim.links([](Link& l) { l.delay = 20ms; });
  Pairs pairs(sim);
  const Pair p = pairs.connect();
  for (int i = 0; i < 200; ++i) {
    (void)write(sim[0], p.a, std::string(50'000, 'x'));
    sim.run_for(20ms);
  }
  EXPECT_LE(sim[1].stack->tcp().readable_bytes(*p.b), 70'000u);
  EXPECT_GE(sim[1].stack->tcp().readable_bytes(*p.b), 60'000u);
}

TEST(Buffers, DoNotGrowWhileMemoryIsShort) {
  HostOptions options = plenty();
  options.config.tcp_memory = {1, 1, 1 << 30};
  Sim sim(1, 2, options);
  EXPECT_GT(transfer(sim, 3'000'000),
            4.0);  // 5840 bytes of window while it is like that: slow, but it goes on
}

TEST(Buffers, ASenderBeginsWithTenSegmentsTwice) {
  Sim sim(1, 2, plenty());
  Pairs pairs(sim);
  const Pair p = pairs.connect();
  // tcp_sndbuf_expand(): ten segments of an MSS of 1460 take buffers of 4 KiB and 256 bytes each.
  EXPECT_EQ(*write(sim[0], p.a, std::string(1'000'000, 'x')), 87'040u);
  EXPECT_TRUE(write(sim[0], p.a, "x").is(EAGAIN));
}

TEST(Buffers, ASenderIsToldOfRoomWhenAThirdIsFree) {
  Sim sim(1, 2, plenty());
  PairOptions small;
  small.a.send_buffer = 90'000;
  Pairs pairs(sim, small);
  const Pair p = pairs.connect();
  ASSERT_EQ(*write(sim[0], p.a, std::string(200'000, 'x')), 90'000u);
  ASSERT_TRUE(write(sim[0], p.a, "x").is(EAGAIN));
  Recorder& told = pairs.recorder(p.a);
  told.edges = 0;
  uint32_t left = 0;
  sim.run_until(
      [&] {
        if (!(told.edges & kWritable)) left = p.a->send_queue.size();
        return (told.edges & kWritable) != 0;
      },
      1s);
  EXPECT_TRUE(told.edges & kWritable);
  EXPECT_GT(left, 60'000u);  // before that ACK less than a third was free
  EXPECT_LE(p.a->send_queue.size(), 60'000u);
}

}  // namespace
}  // namespace accel::sim
