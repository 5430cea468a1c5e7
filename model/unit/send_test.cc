#include "model/unit/rig.h"

namespace model::testing {
namespace {

TEST(Send, OneFrameCompletesWithItsIndex) {
  Rig r;
  const Bytes frame = ipv4_frame(kProtoUdp, 100);
  r.send(frame);
  r.ring_doorbell();
  ASSERT_EQ(r.cable.sent.size(), 1u);
  EXPECT_EQ(r.cable.sent[0], frame);
  const mlx5_cqe64* e = r.poll_send();
  ASSERT_NE(e, nullptr);
  EXPECT_EQ(mlx5dv_get_cqe_opcode(const_cast<mlx5_cqe64*>(e)), MLX5_CQE_REQ);
  EXPECT_EQ(be16toh(e->wqe_counter), 0);
  EXPECT_EQ(be32toh(e->srqn_uidx), 0x51u);
  EXPECT_EQ(be32toh(e->sop_drop_qpn), uint32_t{MLX5_OPCODE_SEND} << 24 | r.sq_number());
  EXPECT_EQ(r.poll_send(), nullptr);
  EXPECT_EQ(r.violation(), "");
}

TEST(Send, RunsAroundTheRingAndTheOwnershipBitTurns) {
  Rig r;
  for (int i = 0; i < 200; ++i) {
    r.send(ipv4_frame(kProtoUdp, 64));
    r.ring_doorbell();
    ASSERT_NE(r.poll_send(), nullptr) << i;
  }
  EXPECT_EQ(r.cable.sent.size(), 200u);
  EXPECT_EQ(r.violation(), "");
}

TEST(Send, ShortFramesArePadded) {
  Rig r;
  r.send(ipv4_frame(kProtoUdp, 1));
  r.ring_doorbell();
  ASSERT_EQ(r.cable.sent.size(), 1u);
  EXPECT_EQ(r.cable.sent[0].size(), kMinFrame);
}

TEST(Send, ChecksumsAreFilledIn) {
  for (const uint8_t proto : {kProtoTcp, kProtoUdp}) {
    Rig r;
    r.send(ipv4_frame(proto, 101), MLX5_ETH_WQE_L3_CSUM | MLX5_ETH_WQE_L4_CSUM);
    r.ring_doorbell();
    ASSERT_EQ(r.cable.sent.size(), 1u);
    const Verdict v = verify(r.cable.sent[0], parse(r.cable.sent[0]));
    EXPECT_TRUE(v.l3_ok && v.l4_ok);
    EXPECT_EQ(r.device.counters().tx_checksums, 2u);
  }
}

TEST(Send, WithoutTheFlagNothingIsFilledIn) {
  Rig r;
  r.send(ipv4_frame(kProtoTcp, 101));
  r.ring_doorbell();
  const Verdict v = verify(r.cable.sent.at(0), parse(r.cable.sent[0]));
  EXPECT_FALSE(v.l3_ok || v.l4_ok);
}

TEST(Send, InlineDataAcrossTheEndOfTheRing) {
  Rig r;
  for (uint32_t i = 0; i < Rig::kBlocks - 1; ++i) {
    r.begin(MLX5_OPCODE_NOP, 1);
    r.end(1);
    r.ring_doorbell();
    ASSERT_NE(r.poll_send(), nullptr);
  }
  const Bytes frame = ipv4_frame(kProtoUdp, 40);  // 82 bytes: 4 + 82 -> 6 units, 2 blocks with ctrl and eth
  uint8_t* w = r.begin(MLX5_OPCODE_SEND, 2 + 6);
  store32(w + 32, MLX5_INLINE_SEG | static_cast<uint32_t>(frame.size()));
  std::copy_n(frame.begin(), 28, w + 36);
  std::copy(frame.begin() + 28, frame.end(), r.sq.begin());
  r.end(2);
  r.ring_doorbell();
  ASSERT_EQ(r.cable.sent.size(), 1u);
  EXPECT_EQ(r.cable.sent[0], frame);
  EXPECT_EQ(r.violation(), "");
}

TEST(Send, InlineHeaderGoesBeforeTheData) {
  Rig r;
  const Bytes frame = ipv4_frame(kProtoUdp, 100);
  uint8_t* w = r.begin(MLX5_OPCODE_SEND, 4);
  auto* eth = reinterpret_cast<mlx5_wqe_eth_seg*>(w + 16);
  eth->inline_hdr_sz = htobe16(18);
  std::copy_n(frame.begin(), 18, eth->inline_hdr_start);
  std::copy(frame.begin() + 18, frame.end(), r.memory.begin());
  mlx5dv_set_data_seg(reinterpret_cast<mlx5_wqe_data_seg*>(w + 48), frame.size() - 18, r.mr,
                      reinterpret_cast<uintptr_t>(r.memory.data()));
  r.end(1);
  r.ring_doorbell();
  EXPECT_EQ(r.cable.sent.at(0), frame);
}

TEST(Send, BlueFieldIsCountedAndMustMatchTheRing) {
  Rig r;
  r.send(ipv4_frame(kProtoUdp, 100));
  r.ring_doorbell(64);
  EXPECT_EQ(r.device.counters().blueflame, 1u);
  EXPECT_EQ(r.violation(), "");
  const uint8_t* w = r.send(ipv4_frame(kProtoUdp, 100));
  Bytes copy(w, w + 64);
  copy[40] ^= 1;
  r.device.doorbell({Rig::kUar, copy});
  EXPECT_EQ(r.violation(), "blueflame-bytes");
}

TEST(Send, TsoCutsAndNumbers) {
  Rig r;
  Bytes frame = ipv4_frame(kProtoTcp, 3000);
  frame[14 + 20 + 13] = 0x19;  // FIN, PSH, ACK
  const size_t header = 54;
  uint8_t* w = r.sq.data();
  memset(w, 0, 128);
  // ctrl 16 + eth 14 + 54 -> 80 to a unit, + data 16 = 112 bytes: 7 units, 2 blocks
  mlx5dv_set_ctrl_seg(reinterpret_cast<mlx5_wqe_ctrl_seg*>(w), 0, MLX5_OPCODE_TSO, 0, r.sq_number(),
                      MLX5_WQE_CTRL_CQ_UPDATE, 7, 0, 0);
  auto* eth = reinterpret_cast<mlx5_wqe_eth_seg*>(w + 16);
  eth->cs_flags = MLX5_ETH_WQE_L3_CSUM | MLX5_ETH_WQE_L4_CSUM;
  eth->mss = htobe16(1400);
  eth->inline_hdr_sz = htobe16(header);
  memcpy(w + 30, frame.data(), header);
  std::copy(frame.begin() + header, frame.end(), r.memory.begin());
  mlx5dv_set_data_seg(reinterpret_cast<mlx5_wqe_data_seg*>(w + 96), 3000, r.mr,
                      reinterpret_cast<uintptr_t>(r.memory.data()));
  r.last = w;
  r.end(2);
  r.ring_doorbell();
  ASSERT_EQ(r.cable.sent.size(), 3u);
  size_t at = 0;
  for (size_t i = 0; i < 3; ++i) {
    const Bytes& f = r.cable.sent[i];
    const Parsed p = parse(f);
    ASSERT_EQ(p.l4, L4::kTcp);
    const Verdict v = verify(f, p);
    EXPECT_TRUE(v.l3_ok && v.l4_ok);
    EXPECT_EQ(load32(f.data() + p.l4_at + 4), at);
    EXPECT_EQ(load16(f.data() + 18), i);
    EXPECT_EQ(f[p.l4_at + 13], i == 2 ? 0x19 : 0x10);
    EXPECT_TRUE(std::equal(f.begin() + header, f.end(), frame.begin() + header + at));
    at += f.size() - header;
  }
  EXPECT_EQ(at, 3000u);
  EXPECT_EQ(be16toh(r.poll_send()->wqe_counter), 0);
  EXPECT_EQ(r.poll_send(), nullptr);
}

TEST(Send, MultiPacketSendsEachSegment) {
  Rig r;
  const Bytes a = ipv4_frame(kProtoUdp, 100);
  std::copy(a.begin(), a.end(), r.memory.begin());
  uint8_t* w = r.begin(0x29, 4);
  for (const int i : {2, 3}) {
    mlx5dv_set_data_seg(reinterpret_cast<mlx5_wqe_data_seg*>(w + i * 16), a.size(), r.mr,
                        reinterpret_cast<uintptr_t>(r.memory.data()));
  }
  r.end(1);
  r.ring_doorbell();
  EXPECT_EQ(r.cable.sent.size(), 2u);
  EXPECT_NE(r.poll_send(), nullptr);
  EXPECT_EQ(r.poll_send(), nullptr);
  EXPECT_EQ(r.violation(), "");
}

TEST(SendError, BadKeyEndsTheQueueAndFlushesTheRest) {
  Rig r;
  uint8_t* w = r.send(ipv4_frame(kProtoUdp, 100));
  store32(w + 36, r.mr + 0x100);
  r.send(ipv4_frame(kProtoUdp, 100));
  r.send(ipv4_frame(kProtoUdp, 100));
  r.ring_doorbell();
  EXPECT_TRUE(r.cable.sent.empty());
  const mlx5_err_cqe* e = r.poll_send_error();
  ASSERT_NE(e, nullptr);
  EXPECT_EQ(e->op_own >> 4, MLX5_CQE_REQ_ERR);
  EXPECT_EQ(e->syndrome, MLX5_CQE_SYNDROME_LOCAL_PROT_ERR);
  for (int i = 1; i <= 2; ++i) {
    e = r.poll_send_error();
    ASSERT_NE(e, nullptr);
    EXPECT_EQ(e->syndrome, MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
    EXPECT_EQ(be16toh(e->wqe_counter), i);
  }
  EXPECT_EQ(r.violation(), "wqe-lkey");
  // What is posted afterwards is flushed as well, until the queue is reset.
  r.send(ipv4_frame(kProtoUdp, 100));
  r.ring_doorbell();
  ASSERT_NE(r.poll_send_error(), nullptr);
  ASSERT_TRUE(r.device.set_state(r.qp, QueueState::kReset, QueueState::kReset));
  ASSERT_TRUE(r.device.set_state(r.qp, QueueState::kReady, QueueState::kReady));
  r.producer = 0;
  r.send(ipv4_frame(kProtoUdp, 100));
  r.ring_doorbell();
  EXPECT_EQ(r.cable.sent.size(), 1u);
}

TEST(SendError, InjectedErrorIsNoViolation) {
  Rig r;
  r.device.inject_send_error(r.qp, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR);
  r.send(ipv4_frame(kProtoUdp, 100));
  r.ring_doorbell();
  EXPECT_EQ(r.poll_send_error()->syndrome, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR);
  EXPECT_EQ(r.violation(), "");
}

// ---- the checker: each rule is broken once ----

TEST(SendRules, Index) {
  Rig r;
  uint8_t* w = r.send(ipv4_frame(kProtoUdp, 100));
  w[2] = 7;
  r.device.doorbell({Rig::kUar, {w, 8}});
  EXPECT_EQ(r.violation(), "doorbell-order");
  r.device.step(5);
  EXPECT_EQ(r.checker.violations().back().rule, "wqe-index");
}

TEST(SendRules, RecordBeforeDoorbell) {
  Rig r;
  r.send(ipv4_frame(kProtoUdp, 100));
  r.record[1] = 0;
  r.ring_doorbell();
  EXPECT_EQ(r.violation(), "doorbell-order");
  EXPECT_TRUE(r.cable.sent.empty());
}

TEST(SendRules, ForgottenDoorbell) {
  Rig r;
  r.send(ipv4_frame(kProtoUdp, 100));
  r.device.step(1'000);
  EXPECT_EQ(r.violation(), "");
  r.device.step(1'000'000'000);
  EXPECT_EQ(r.violation(), "doorbell-missing");
  EXPECT_TRUE(r.cable.sent.empty());
}

TEST(SendRules, DoorbellBeforeReady) {
  Rig r;
  ASSERT_TRUE(r.device.set_state(r.qp, QueueState::kReset, QueueState::kReset));
  r.send(ipv4_frame(kProtoUdp, 100));
  r.ring_doorbell();
  EXPECT_EQ(r.violation(), "doorbell-state");
}

TEST(SendRules, AnotherUar) {
  Rig r;
  r.send(ipv4_frame(kProtoUdp, 100));
  r.device.doorbell({Rig::kUar + 1, {r.last, 8}});
  EXPECT_EQ(r.violation(), "doorbell-queue");
}

TEST(SendRules, RecordBeyondTheRing) {
  Rig r;
  for (uint32_t i = 0; i <= Rig::kBlocks; ++i) r.send(ipv4_frame(kProtoUdp, 100));
  r.ring_doorbell();
  EXPECT_EQ(r.violation(), "sq-overrun");
}

TEST(SendRules, CompletionQueueOverrun) {
  Rig r;
  for (uint32_t i = 0; i <= Rig::kEntries; ++i) {
    r.send(ipv4_frame(kProtoUdp, 100));
    r.ring_doorbell();
  }
  EXPECT_EQ(r.violation(), "cq-overrun");
}

struct Broken {
  const char* rule;
  size_t at;
  uint8_t value;
};

class SendField : public ::testing::TestWithParam<Broken> {};

TEST_P(SendField, IsChecked) {
  Rig r({.min_inline = 0});
  uint8_t* w = r.send(ipv4_frame(kProtoUdp, 100));
  w[GetParam().at] = GetParam().value;
  r.ring_doorbell();
  EXPECT_EQ(r.checker.violations().back().rule, GetParam().rule);
  EXPECT_TRUE(r.cable.sent.empty());
  EXPECT_EQ(r.poll_send()->op_own >> 4, MLX5_CQE_REQ_ERR);
}

INSTANTIATE_TEST_SUITE_P(Rules, SendField,
                         ::testing::Values(Broken{"wqe-opcode", 3, 0x10}, Broken{"wqe-opcode", 0, 1},
                                           Broken{"wqe-queue", 5, 0xee}, Broken{"wqe-size", 7, 0},
                                           Broken{"wqe-size", 7, 9}, Broken{"wqe-reserved", 7, 0x43},
                                           Broken{"wqe-flags", 11, 0x80}, Broken{"wqe-reserved", 16, 1},
                                           Broken{"wqe-checksum", 20, 0x10}, Broken{"wqe-mss", 23, 1},
                                           Broken{"wqe-inline-header", 28, 1}, Broken{"wqe-lkey", 37, 0xee},
                                           Broken{"wqe-lkey", 40, 1}));

TEST(SendRules, MinimumInline) {
  Rig r({.min_inline = 18});
  r.send(ipv4_frame(kProtoUdp, 100));
  r.ring_doorbell();
  EXPECT_EQ(r.violation(), "wqe-inline-header");
}

TEST(SendRules, FrameLongerThanTheLink) {
  Rig r;
  r.send(ipv4_frame(kProtoUdp, 1473));
  r.ring_doorbell();
  EXPECT_EQ(r.violation(), "frame-size");
}

}  // namespace
}  // namespace model::testing
