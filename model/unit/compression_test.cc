// Compressed sessions, taken apart as the mlx5 kernel driver does it.
#include "model/unit/rig.h"

namespace model::testing {
namespace {

struct Compressed : Rig {
  explicit Compressed(uint8_t format) {
    device.cq(receive_cq)->compress = true;
    device.cq(receive_cq)->mini_format = format;
    EXPECT_TRUE(device.add_flow(rule_for(kProtoUdp, 80, qp, 5)));
    EXPECT_TRUE(device.add_flow(rule_for(kProtoUdp, 81, qp, 6)));
  }

  void frames(unsigned count, uint16_t port = 80) {
    for (unsigned i = 0; i < count; ++i) {
      post_receive();
      sent.push_back(static_cast<uint32_t>(42 + 100 + sent.size() % 50));
      device.rx(ipv4_frame(kProtoUdp, sent.back() - 42, 1, port), now);
    }
  }

  mlx5_cqe64* slot(uint32_t index) {
    return reinterpret_cast<mlx5_cqe64*>(receive_ring.data() + index % kEntries * 64);
  }

  /// Reads everything there is; returns lengths. Slots of a session get the owner of the lap behind, as
  /// software must.
  std::vector<uint32_t> read() {
    std::vector<uint32_t> lengths;
    device.step(++now);
    while (true) {
      mlx5_cqe64* e = slot(receive_consumed);
      if (mlx5dv_get_cqe_opcode(e) == MLX5_CQE_INVALID) break;
      if (mlx5dv_get_cqe_owner(e) != ((receive_consumed & kEntries) != 0)) break;
      if (mlx5dv_get_cqe_format(e) != 3) {
        lengths.push_back(be32toh(e->byte_cnt));
        ++receive_consumed;
      } else {
        read_session(*e, lengths);
      }
      receive_cq_record[0] = htobe32(receive_consumed & 0xffffff);
    }
    return lengths;
  }

  void read_session(const mlx5_cqe64& title, std::vector<uint32_t>& lengths) {
    ++sessions;
    const uint32_t count = be32toh(title.byte_cnt), start = receive_consumed;
    const uint16_t counter = be16toh(title.wqe_counter);
    uint8_t array[64];
    memcpy(array, slot(start + 1), 64);
    for (uint32_t i = 0; i < count; ++i) {
      if (i != 0 && i % 8 == 0) memcpy(array, slot(start + i), 64);
      lengths.push_back(load32(array + i % 8 * 8 + 4));
      if (device.cq(receive_cq)->mini_format != MLX5DV_CQE_RES_FORMAT_HASH) {
        EXPECT_EQ(load16(array + i % 8 * 8 + 2), static_cast<uint16_t>(counter + i));
      }
    }
    for (uint32_t i = start; i < start + count; ++i) slot(i)->op_own = (i & kEntries) != 0;
    receive_consumed += count;
  }

  std::vector<uint32_t> sent;
  unsigned sessions = 0;
};

TEST(Compression, SessionsOfEveryLengthAroundTheRing) {
  for (const uint8_t format : {MLX5DV_CQE_RES_FORMAT_HASH, MLX5DV_CQE_RES_FORMAT_CSUM}) {
    Compressed r(format);
    std::vector<uint32_t> got;
    for (unsigned round = 0; round < 200; ++round) {
      r.frames(1 + round % Rig::kReceives);
      for (const uint32_t length : r.read()) got.push_back(length);
    }
    EXPECT_EQ(got, r.sent);
    EXPECT_GT(r.sessions, 150u);
    EXPECT_EQ(r.violation(), "");
  }
}

TEST(Compression, LongSessions) {
  Compressed r(MLX5DV_CQE_RES_FORMAT_CSUM);
  for (unsigned round = 0; round < 40; ++round) {
    for (unsigned part = 0; part < 3; ++part) r.frames(Rig::kReceives);  // 24: three arrays
    const auto got = r.read();
    ASSERT_EQ(got.size(), 24u);
  }
  EXPECT_EQ(r.sessions, 40u);
}

TEST(Compression, WhatDiffersDoesNotJoin) {
  Compressed r(MLX5DV_CQE_RES_FORMAT_HASH);
  r.frames(2, 80);
  r.frames(2, 81);  // another flow tag
  EXPECT_EQ(r.read(), r.sent);
  EXPECT_EQ(r.sessions, 2u);
}

}  // namespace
}  // namespace model::testing
