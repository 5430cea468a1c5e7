#include "model/unit/rig.h"

namespace model::testing {
namespace {

TEST(FaultSpec, Reads) {
  const auto spec = parse_faults("loss=0.5,delay=0.25:500us,stall=1s:20ms,seed=7");
  ASSERT_TRUE(spec);
  EXPECT_EQ(spec->loss, 0.5);
  EXPECT_EQ(spec->delay_ns, 500'000u);
  EXPECT_EQ(spec->stall_every_ns, 1'000'000'000u);
  EXPECT_EQ(spec->seed, 7u);
  for (const char* bad :
       {"loss", "loss=2", "loss=x", "delay=0.1", "stall=1s", "loss=0.1:5us", "other=1", "stall=1:1"}) {
    EXPECT_FALSE(parse_faults(bad)) << bad;
  }
}

struct Passed {
  std::vector<Bytes> frames;
  Counters counters;

  void run(const char* spec, int count) {
    Impairment i(*parse_faults(spec), counters);
    const auto sink = [&](std::span<const uint8_t> f) { frames.emplace_back(f.begin(), f.end()); };
    for (int n = 0; n < count; ++n) {
      Bytes f(60);
      store32(f.data(), static_cast<uint32_t>(n));
      i.pass(f, static_cast<uint64_t>(n) * 1000, sink);
      i.due(static_cast<uint64_t>(n) * 1000, sink);
    }
    i.due(1'000'000'000'000, sink);
  }
};

TEST(Impairment, LosesAsManyAsItSays) {
  Passed p;
  p.run("loss=0.1,seed=3", 10000);
  EXPECT_EQ(p.frames.size() + p.counters.faults_loss, 10000u);
  EXPECT_NEAR(static_cast<double>(p.counters.faults_loss), 1000, 150);
}

TEST(Impairment, ASeedRepeats) {
  Passed a, b, c;
  a.run("loss=0.1,reorder=0.1,corrupt=0.1,duplicate=0.1,delay=0.1:10us,seed=3", 1000);
  b.run("loss=0.1,reorder=0.1,corrupt=0.1,duplicate=0.1,delay=0.1:10us,seed=3", 1000);
  c.run("loss=0.1,reorder=0.1,corrupt=0.1,duplicate=0.1,delay=0.1:10us,seed=4", 1000);
  EXPECT_EQ(a.frames, b.frames);
  EXPECT_NE(a.frames, c.frames);
}

TEST(Impairment, ReorderAndDelayLoseNothing) {
  for (const char* spec : {"reorder=0.2", "delay=0.2:50us"}) {
    Passed p;
    p.run(spec, 1000);
    std::vector<uint32_t> order;
    for (const Bytes& f : p.frames) order.push_back(load32(f.data()));
    EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
    std::sort(order.begin(), order.end());
    ASSERT_EQ(order.size(), 1000u) << spec;
    for (uint32_t i = 0; i < 1000; ++i) EXPECT_EQ(order[i], i);
  }
}

TEST(Faults, OverrunIsCountedAsTheHardwareCounts) {
  Rig r;
  r.device.set_faults(*parse_faults("overrun=1"));
  ASSERT_TRUE(r.device.add_flow(rule_for(kProtoUdp, 80, r.qp)));
  r.post_receive();
  r.device.rx(ipv4_frame(kProtoUdp, 100, 1, 80), 5);
  EXPECT_EQ(r.poll_receive(), nullptr);
  EXPECT_EQ(r.device.counters().rx_out_of_buffer, 1u);
}

TEST(Faults, AStallHoldsCompletionsAndLetsThemGoInOrder) {
  Rig r;
  r.device.stall_completions(true);
  for (int i = 0; i < 3; ++i) {
    r.send(ipv4_frame(kProtoUdp, 100));
    r.ring_doorbell();
  }
  EXPECT_EQ(r.cable.sent.size(), 3u);
  EXPECT_EQ(r.poll_send(), nullptr);
  r.device.stall_completions(false);
  ASSERT_TRUE(r.device.add_flow(rule_for(kProtoUdp, 80, r.qp)));
  r.post_receive();
  r.device.rx(ipv4_frame(kProtoUdp, 100, 1, 80), 5);
  EXPECT_EQ(r.poll_receive(), nullptr) << "behind what was held";
  r.device.step(10'000);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(be16toh(r.poll_send()->wqe_counter), i);
  EXPECT_NE(r.poll_receive(), nullptr);
}

TEST(Faults, ErrorsOfDescriptors) {
  Rig r;
  r.device.set_faults(*parse_faults("send_error=1"));
  r.send(ipv4_frame(kProtoUdp, 100));
  r.ring_doorbell();
  EXPECT_EQ(r.poll_send_error()->op_own >> 4, MLX5_CQE_REQ_ERR);
  EXPECT_EQ(r.violation(), "");
}

TEST(Faults, ADeviceThatIsGoneDoesNothing) {
  Rig r;
  ASSERT_TRUE(r.device.add_flow(rule_for(kProtoUdp, 80, r.qp)));
  r.post_receive();
  r.device.remove();
  r.send(ipv4_frame(kProtoUdp, 100));
  r.ring_doorbell();
  r.device.rx(ipv4_frame(kProtoUdp, 100, 1, 80), 5);
  EXPECT_TRUE(r.cable.sent.empty());
  EXPECT_EQ(r.poll_send(), nullptr);
  EXPECT_EQ(r.poll_receive(), nullptr);
}

}  // namespace
}  // namespace model::testing
