#include <infiniband/verbs.h>

#include "model/unit/rig.h"

namespace model::testing {
namespace {

Bytes good_frame(uint8_t proto, size_t payload, uint16_t port) {
  Bytes f = ipv4_frame(proto, payload, 1000, port);
  const Parsed p = parse(f);
  fill_ip_checksum(f, p);
  fill_transport_checksum(f, p);
  return f;
}

TEST(Receive, ScattersAndDescribes) {
  Rig r;
  ASSERT_TRUE(r.device.add_flow(rule_for(kProtoTcp, 80, r.qp, 0x1234)));
  r.post_receive();
  const Bytes frame = good_frame(kProtoTcp, 100, 80);
  r.device.rx(frame, 5);
  mlx5_cqe64* e = r.poll_receive();
  ASSERT_NE(e, nullptr);
  EXPECT_EQ(mlx5dv_get_cqe_opcode(e), MLX5_CQE_RESP_SEND);
  EXPECT_EQ(be32toh(e->byte_cnt), frame.size());
  EXPECT_EQ(be32toh(e->sop_drop_qpn), 0x1234u);
  EXPECT_EQ(be32toh(e->srqn_uidx), 0x52u);
  EXPECT_EQ(e->hds_ip_ext, MLX5_CQE_L2_OK | MLX5_CQE_L3_OK | MLX5_CQE_L4_OK);
  EXPECT_EQ(e->l4_hdr_type_etc >> 2 & 3, MLX5_CQE_L3_HDR_TYPE_IPV4);
  EXPECT_EQ(e->l4_hdr_type_etc >> 4 & 7, 1);
  EXPECT_TRUE(std::equal(frame.begin(), frame.end(), r.memory.begin() + 65536));
  EXPECT_EQ(r.violation(), "");
}

TEST(Receive, VerdictsAreComputed) {
  Rig r;
  ASSERT_TRUE(r.device.add_flow(rule_for(kProtoTcp, 80, r.qp)));
  for (const size_t wrong : {size_t{14 + 10}, size_t{14 + 20 + 16}, size_t{14 + 20 + 25}}) {
    r.post_receive();
    Bytes f = good_frame(kProtoTcp, 100, 80);
    f[wrong] ^= 1;
    r.device.rx(f, 5);
    const mlx5_cqe64* e = r.poll_receive();
    ASSERT_NE(e, nullptr);
    EXPECT_EQ((e->hds_ip_ext & MLX5_CQE_L3_OK) != 0, wrong != 24) << wrong;
    EXPECT_EQ((e->hds_ip_ext & MLX5_CQE_L4_OK) != 0, wrong == 24) << wrong;
  }
  EXPECT_EQ(r.device.counters().rx_bad_checksum, 3u);
}

TEST(Receive, WithoutRuleOrDescriptor) {
  Rig r;
  r.device.rx(good_frame(kProtoTcp, 100, 80), 5);
  EXPECT_EQ(r.device.counters().rx_no_rule, 1u);
  ASSERT_TRUE(r.device.add_flow(rule_for(kProtoTcp, 80, r.qp)));
  r.device.rx(good_frame(kProtoTcp, 100, 80), 5);
  EXPECT_EQ(r.device.counters().rx_out_of_buffer, 1u);
  EXPECT_EQ(r.poll_receive(), nullptr);
  EXPECT_EQ(r.violation(), "");
}

/// A listener's source ports, divided by a mask.
TEST(Receive, SourcePortsByMask) {
  Rig r;
  FlowRule rule = rule_for(kProtoTcp, 80, r.qp);
  store16(rule.mask.src_port.data(), 0x3e);
  store16(rule.value.src_port.data(), 1000 & 0x3e);  // what good_frame() has
  ASSERT_TRUE(r.device.add_flow(rule));
  r.post_receive();
  r.device.rx(good_frame(kProtoTcp, 100, 80), 5);
  EXPECT_NE(r.poll_receive(), nullptr);
  Bytes other = good_frame(kProtoTcp, 100, 80);
  other[14 + 20 + 1] ^= 2;
  r.device.rx(other, 5);
  other[14 + 20 + 1] ^= 3;  // the lowest bit is not compared
  r.post_receive();
  r.device.rx(other, 5);
  EXPECT_EQ(r.device.counters().rx_no_rule, 1u);
  EXPECT_EQ(r.device.counters().rx_packets, 2u);
  EXPECT_EQ(r.violation(), "");
}

/// One steering table is the NIC's: another process's rule is before ours, after it, or a mistake.
TEST(Receive, AnotherProcesssRuleOfTheSamePriority) {
  Rig r;
  FlowRule ours = rule_for(kProtoTcp, 80, r.qp), other = ours;
  ours.priority = 1;
  store16(other.mask.src_port.data(), 0xffff);
  store16(other.value.src_port.data(), 1000);
  ASSERT_TRUE(r.device.add_flow(ours));
  r.device.set_others({other});
  r.post_receive();
  r.device.rx(good_frame(kProtoTcp, 100, 80), 5);
  EXPECT_EQ(r.device.counters().rx_packets, 1u);
  EXPECT_EQ(r.violation(), "");
  other.priority = 1;  // which of the two has the frame is the hardware's affair
  r.device.set_others({other});
  r.post_receive();
  r.device.rx(good_frame(kProtoTcp, 100, 80), 5);
  EXPECT_EQ(r.violation(), "flow-ambiguous");
}

TEST(Flow, ValueOutsideItsMaskIsRefused) {
  ibv_flow_spec_tcp_udp ports{};
  ports.type = IBV_FLOW_SPEC_TCP;
  ports.size = sizeof ports;
  ports.val.src_port = htobe16(0x3f);
  ports.mask.src_port = htobe16(0x3e);
  const std::span bytes(reinterpret_cast<const uint8_t*>(&ports), sizeof ports);
  EXPECT_TRUE(parse_flow(IBV_FLOW_ATTR_NORMAL, 0, 1, bytes).is(EINVAL));
  ports.val.src_port = htobe16(0x3e);
  EXPECT_TRUE(parse_flow(IBV_FLOW_ATTR_NORMAL, 0, 1, bytes));
}

TEST(Receive, FragmentsMatchNoPort) {
  Rig r;
  FlowRule rule = rule_for(kProtoUdp, 80, r.qp);
  rule.value.l4 = static_cast<uint8_t>(L4::kUdp);
  rule.mask.l4 = 0xff;
  ASSERT_TRUE(r.device.add_flow(rule));
  Bytes f = good_frame(kProtoUdp, 100, 80);
  store16(f.data() + 14 + 6, 0x2000);
  r.device.rx(f, 5);
  EXPECT_EQ(r.device.counters().rx_no_rule, 1u);
}

TEST(Receive, RecordBeyondTheRing) {
  Rig r;
  ASSERT_TRUE(r.device.add_flow(rule_for(kProtoTcp, 80, r.qp)));
  for (uint32_t i = 0; i <= Rig::kReceives; ++i) r.post_receive();
  r.device.rx(good_frame(kProtoTcp, 100, 80), 5);
  EXPECT_EQ(r.violation(), "rq-overrun");
}

TEST(Receive, ForeignBufferIsAnErrorAndFlushes) {
  Rig r;
  ASSERT_TRUE(r.device.add_flow(rule_for(kProtoTcp, 80, r.qp)));
  r.post_receive();
  store32(r.rq.data() + 4, r.mr + 0x100);
  r.post_receive();
  r.device.rx(good_frame(kProtoTcp, 100, 80), 5);
  const auto* e = reinterpret_cast<mlx5_err_cqe*>(r.poll_receive());
  ASSERT_NE(e, nullptr);
  EXPECT_EQ(e->op_own >> 4, MLX5_CQE_RESP_ERR);
  EXPECT_EQ(e->syndrome, MLX5_CQE_SYNDROME_LOCAL_PROT_ERR);
  e = reinterpret_cast<mlx5_err_cqe*>(r.poll_receive());
  ASSERT_NE(e, nullptr);
  EXPECT_EQ(e->syndrome, MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
  EXPECT_EQ(r.violation(), "rq-lkey");
}

TEST(Receive, AFrameTooLongForItsBufferIsAnErrorOfItsEntryOnly) {
  Rig r;
  ASSERT_TRUE(r.device.add_flow(rule_for(kProtoTcp, 80, r.qp)));
  r.post_receive(64);
  r.post_receive();
  r.device.rx(good_frame(kProtoTcp, 100, 80), 5);
  r.device.rx(good_frame(kProtoTcp, 100, 80), 6);
  const auto* e = reinterpret_cast<mlx5_err_cqe*>(r.poll_receive());
  ASSERT_NE(e, nullptr);
  EXPECT_EQ(e->op_own >> 4, MLX5_CQE_RESP_ERR);
  EXPECT_EQ(e->syndrome, MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR);
  EXPECT_EQ(be16toh(e->wqe_counter), 0u);
  const auto* next = reinterpret_cast<mlx5_cqe64*>(r.poll_receive());
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(next->op_own >> 4, MLX5_CQE_RESP_SEND);
  EXPECT_EQ(be16toh(next->wqe_counter), 1u);
}

TEST(Receive, AReadOnlyRegionIsNotWritten) {
  Rig r;
  const uint32_t key = *r.device.create_mr({.pd = r.pd,
                                            .start = reinterpret_cast<uint64_t>(r.memory.data()),
                                            .length = r.memory.size(),
                                            .iova = reinterpret_cast<uint64_t>(r.memory.data())});
  ASSERT_TRUE(r.device.add_flow(rule_for(kProtoTcp, 80, r.qp)));
  r.post_receive();
  store32(r.rq.data() + 4, key);
  r.device.rx(good_frame(kProtoTcp, 100, 80), 5);
  EXPECT_EQ(r.violation(), "rq-lkey");
}

TEST(Receive, ErrorStateFlushesWhatIsPosted) {
  Rig r;
  r.post_receive();
  r.post_receive();
  ASSERT_TRUE(r.device.set_state(r.qp, QueueState::kError, QueueState::kError));
  r.device.step(5);
  for (int i = 0; i < 2; ++i) {
    const auto* e = reinterpret_cast<mlx5_err_cqe*>(r.poll_receive());
    ASSERT_NE(e, nullptr);
    EXPECT_EQ(e->syndrome, MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
  }
}

TEST(Receive, TwoDevicesOnACable) {
  Rig a, b;
  a.cable.peer = &b.device;
  ASSERT_TRUE(b.device.add_flow(rule_for(kProtoUdp, 2000, b.qp)));
  for (int i = 0; i < 100; ++i) {
    b.post_receive();
    a.send(ipv4_frame(kProtoUdp, 200), MLX5_ETH_WQE_L3_CSUM | MLX5_ETH_WQE_L4_CSUM);
    a.ring_doorbell();
    ASSERT_NE(a.poll_send(), nullptr);
    const mlx5_cqe64* e = b.poll_receive();
    ASSERT_NE(e, nullptr);
    EXPECT_EQ(e->hds_ip_ext, 7);
    EXPECT_EQ(be16toh(e->wqe_counter), i);
  }
  EXPECT_EQ(a.violation() + b.violation(), "");
}

// ---- events ----

void arm(Rig& r, uint32_t serial, uint32_t index) {
  r.receive_cq_record[1] = htobe32(serial << 28 | index);
  r.device.arm_written(Rig::kUar, uint64_t{serial << 28 | index} << 32 | r.receive_cq);
}

TEST(Events, OneAnArm) {
  Rig r;
  ASSERT_TRUE(r.device.add_flow(rule_for(kProtoTcp, 80, r.qp)));
  for (int i = 0; i < 4; ++i) r.post_receive();
  r.device.rx(good_frame(kProtoTcp, 100, 80), 5);
  EXPECT_TRUE(r.cable.events.empty());
  arm(r, 0, 1);
  EXPECT_TRUE(r.cable.events.empty());
  r.device.rx(good_frame(kProtoTcp, 100, 80), 5);
  EXPECT_EQ(r.cable.events, std::vector<uint32_t>{r.receive_cq});
  r.device.rx(good_frame(kProtoTcp, 100, 80), 5);
  EXPECT_EQ(r.cable.events.size(), 1u);
}

TEST(Events, AnEntryAlreadyThereFiresAtOnce) {
  Rig r;
  ASSERT_TRUE(r.device.add_flow(rule_for(kProtoTcp, 80, r.qp)));
  r.post_receive();
  r.device.rx(good_frame(kProtoTcp, 100, 80), 5);
  arm(r, 0, 0);
  EXPECT_EQ(r.cable.events.size(), 1u);
}

TEST(Events, TheSameSerialIsTheArmAlreadyAnswered) {
  Rig r;
  ASSERT_TRUE(r.device.add_flow(rule_for(kProtoTcp, 80, r.qp)));
  r.post_receive();
  r.device.rx(good_frame(kProtoTcp, 100, 80), 5);
  arm(r, 0, 0);
  arm(r, 0, 0);
  EXPECT_EQ(r.cable.events.size(), 1u);
  arm(r, 1, 0);
  EXPECT_EQ(r.cable.events.size(), 2u);
}

TEST(Events, TheRegisterSaysWhatTheRecordDoes) {
  const auto after = [](Rig& r, uint64_t ns) { r.device.step(r.now += ns); };
  constexpr uint64_t kPatience = DeviceLimits{}.doorbell_patience;
  {
    Rig r;  // a newer record may be there before its register
    r.receive_cq_record[1] = htobe32(0);
    r.device.arm_written(Rig::kUar, uint64_t{3} << 60 | r.receive_cq);
    r.device.arm_written(Rig::kUar, r.receive_cq);
    after(r, 2 * kPatience);
    EXPECT_EQ(r.violation(), "");
  }
  for (const uint64_t wrong : {uint64_t{1} << 32, uint64_t{1} << 60}) {  // index, serial
    Rig r;
    r.receive_cq_record[1] = htobe32(0);
    r.device.arm_written(Rig::kUar, wrong | r.receive_cq);
    after(r, kPatience / 2);
    EXPECT_EQ(r.violation(), "");
    after(r, kPatience);
    EXPECT_EQ(r.violation(), "arm-register");
  }
  for (const uint32_t queue : {0u, 0x7fffu}) {
    Rig r;
    r.receive_cq_record[1] = htobe32(0);
    r.device.arm_written(Rig::kUar, queue);
    EXPECT_EQ(r.violation(), "arm-queue");
  }
}

TEST(Events, QueuesThatWereNotArmedStaySo) {
  Rig r;
  arm(r, 0, 0);
  EXPECT_EQ(r.device.counters().arms, 1u);  // not the send queue's, whose record still has what was planted
  arm(r, 1, 5);
  EXPECT_EQ(r.violation(), "arm-ahead");
}

// ---- objects ----

TEST(Objects, AreBusyWhileUsed) {
  Rig r;
  EXPECT_TRUE(r.device.destroy_pd(r.pd).is(EBUSY));
  EXPECT_TRUE(r.device.destroy_cq(r.send_cq).is(EBUSY));
  const uint32_t flow = *r.device.add_flow(rule_for(kProtoTcp, 80, r.qp));
  EXPECT_TRUE(r.device.destroy_qp(r.qp).is(EBUSY));
  EXPECT_TRUE(r.device.remove_flow(flow));
  EXPECT_TRUE(r.device.destroy_qp(r.qp));
  EXPECT_TRUE(r.device.destroy_qp(r.qp).is(EINVAL));
  EXPECT_TRUE(r.device.destroy_cq(r.send_cq));
  EXPECT_TRUE(r.device.destroy_cq(r.receive_cq));
  EXPECT_TRUE(r.device.destroy_pd(r.pd).is(EBUSY));
  EXPECT_TRUE(r.device.destroy_mr(r.mr));
  EXPECT_TRUE(r.device.destroy_pd(r.pd));
}

TEST(Flows, SameMatchWithAnotherTag) {
  Rig r;
  ASSERT_TRUE(r.device.add_flow(rule_for(kProtoTcp, 80, r.qp, 1)));
  EXPECT_TRUE(r.device.add_flow(rule_for(kProtoTcp, 80, r.qp, 2)).is(EEXIST));
  FlowRule wide = rule_for(kProtoTcp, 80, r.qp, 2);
  wide.priority = 1;
  EXPECT_TRUE(r.device.add_flow(wide));
}

TEST(Flows, TwoMatchesOfOnePriorityAreAmbiguous) {
  Rig r;
  FlowRule narrow = rule_for(kProtoTcp, 80, r.qp, 1);
  store16(narrow.value.src_port.data(), 1000);
  store16(narrow.mask.src_port.data(), 0xffff);
  ASSERT_TRUE(r.device.add_flow(narrow));
  ASSERT_TRUE(r.device.add_flow(rule_for(kProtoTcp, 80, r.qp, 2)));
  for (int i = 0; i < 2; ++i) r.post_receive();
  Bytes other = ipv4_frame(kProtoTcp, 100, 1001, 80);
  r.device.rx(other, 5);
  EXPECT_EQ(r.violation(), "");
  r.device.rx(good_frame(kProtoTcp, 100, 80), 5);
  EXPECT_EQ(r.violation(), "flow-ambiguous");
}

TEST(Flows, TheLowerPriorityNumberWins) {
  Rig r;
  FlowRule wide = rule_for(kProtoTcp, 80, r.qp, 2), narrow = rule_for(kProtoTcp, 80, r.qp, 1);
  wide.priority = 1;
  store16(narrow.value.src_port.data(), 1000);
  store16(narrow.mask.src_port.data(), 0xffff);
  ASSERT_TRUE(r.device.add_flow(wide));
  ASSERT_TRUE(r.device.add_flow(narrow));
  r.post_receive();
  r.device.rx(good_frame(kProtoTcp, 100, 80), 5);
  EXPECT_EQ(be32toh(r.poll_receive()->sop_drop_qpn), 1u);
}

}  // namespace
}  // namespace model::testing
