// Completions as a device writes them, lap after lap.
#include "mlx5/cqe.h"

#include <gtest/gtest.h>

#include "tests/mlx5/rings.h"

namespace accel::mlx5 {
namespace {

using Kind = Completion::Kind;
using test::CompletionMemory;

TEST(Completions, NoneAtFirst) {
  CompletionMemory memory(4);
  auto reader = memory.reader();
  Completion c;
  EXPECT_FALSE(reader.ready());
  EXPECT_FALSE(reader.next(&c));
}

TEST(Completions, OwnerBitChangesWithTheLap) {
  CompletionMemory memory(4);
  auto reader = memory.reader();
  Completion c;
  for (uint32_t i = 0; i < 40; ++i) {
    ASSERT_FALSE(reader.next(&c)) << "entry " << i << " is the last lap's";
    memory.write(i, MLX5_CQE_REQ).wqe_counter = htobe16(static_cast<uint16_t>(i * 3));
    ASSERT_TRUE(reader.next(&c));
    EXPECT_EQ(c.kind, Kind::kSend);
    EXPECT_EQ(c.wqe_counter, i * 3);
  }
  uint32_t record[2] = {};
  reader.publish(DoorbellRecord(record));
  EXPECT_EQ(be32toh(record[0]), 40u);
}

/// Of a compressed session the first one tells of all.
TEST(Completions, DropsAreToldOnce) {
  CompletionMemory memory(16);
  auto reader = memory.reader();
  Completion c;
  memory.write(0, MLX5_CQE_RESP_SEND).sop_drop_qpn = htobe32(0xff000000u | 9);
  ASSERT_TRUE(reader.next(&c));
  EXPECT_EQ(c.dropped, 255);
  EXPECT_EQ(c.flow_tag, 9u);
  memory.write(1, MLX5_CQE_REQ).sop_drop_qpn = htobe32(uint32_t{MLX5_OPCODE_SEND} << 24 | 9);
  ASSERT_TRUE(reader.next(&c));
  EXPECT_EQ(c.dropped, 0) << "an opcode is there";
  mlx5_cqe64& title = memory.write(2, MLX5_CQE_RESP_SEND);
  title.sop_drop_qpn = htobe32(2 << 24 | 9);
  title.byte_cnt = htobe32(3);
  title.op_own |= kFormatCompressed << 2;
  uint32_t dropped = 0;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(reader.next(&c));
    EXPECT_EQ(c.flow_tag, 9u);
    dropped += c.dropped;
  }
  EXPECT_EQ(dropped, 2u);
}

TEST(Completions, SecondHalfOf128ByteEntries) {
  alignas(64) uint8_t memory[4 * 128] = {};
  for (size_t i = 0; i < 4; ++i) memory[i * 128 + 127] = kUnwritten;
  CompletionReader reader(memory, 4, 128);
  Completion c;
  EXPECT_FALSE(reader.next(&c));
  memory[128 - 1] = MLX5_CQE_REQ << 4;
  memory[128 - 3] = 7;  // wqe_counter's low byte
  ASSERT_TRUE(reader.next(&c));
  EXPECT_EQ(c.wqe_counter, 7);
  EXPECT_FALSE(reader.next(&c));
}

TEST(Completions, ReceivedFrame) {
  // An entry in bytes, from the PRM's table: L3 and L4 verified, IPv4 with TCP, tag 0xabcdef.
  CompletionMemory memory(4);
  uint8_t bytes[64] = {};
  bytes[28] = 0x07;                                // hds_ip_ext
  bytes[29] = 2 << 2 | 1 << 4;                     // l4_hdr_type_etc
  bytes[44] = 0, bytes[46] = 5, bytes[47] = 0xee;  // byte_cnt 1518
  bytes[55] = 9;                                   // timestamp
  bytes[56] = 0xff, bytes[57] = 0xab, bytes[58] = 0xcd, bytes[59] = 0xef;
  bytes[60] = 0x12, bytes[61] = 0x34;
  bytes[63] = 0x20;
  std::memcpy(memory.cqes.data(), bytes, 64);
  auto reader = memory.reader();
  Completion c;
  ASSERT_TRUE(reader.next(&c));
  EXPECT_EQ(c.kind, Kind::kReceive);
  EXPECT_TRUE(c.checksum_good);
  EXPECT_EQ(c.length, 1518u);
  EXPECT_EQ(c.flow_tag, 0xabcdefu);
  EXPECT_EQ(c.wqe_counter, 0x1234);
  EXPECT_EQ(c.timestamp, 9u);
}

TEST(Completions, ChecksumVerdicts) {
  struct Case {
    uint8_t ok, l3;
    bool good;
  } cases[] = {
      {7, 2, true},  {6, 2, true},                  // L2 is the FCS: without it no frame comes at all
      {6, 1, true},                                 // IPv6
      {4, 2, false}, {2, 2, false},                 // one layer only
      {1, 2, false}, {0, 2, false}, {7, 0, false},  // not IP
  };
  for (const Case& each : cases) {
    CompletionMemory memory(2);
    mlx5_cqe64& cqe = memory.write(0, MLX5_CQE_RESP_SEND);
    cqe.hds_ip_ext = each.ok;
    cqe.l4_hdr_type_etc = static_cast<uint8_t>(each.l3 << 2);
    EXPECT_EQ(decode(cqe).checksum_good, each.good) << int{each.ok} << ' ' << int{each.l3};
  }
}

TEST(Completions, Errors) {
  for (auto [opcode, kind] :
       {std::pair{MLX5_CQE_REQ_ERR, Kind::kSendError}, std::pair{MLX5_CQE_RESP_ERR, Kind::kReceiveError}}) {
    CompletionMemory memory(2);
    auto* bytes = reinterpret_cast<uint8_t*>(&memory.write(0, static_cast<uint8_t>(opcode)));
    bytes[54] = 0x68;
    bytes[55] = 0x04;
    bytes[61] = 3;
    auto reader = memory.reader();
    Completion c;
    ASSERT_TRUE(reader.next(&c));
    EXPECT_EQ(c.kind, kind);
    EXPECT_EQ(c.syndrome, 4);
    EXPECT_EQ(c.vendor_syndrome, 0x68);
    EXPECT_EQ(c.wqe_counter, 3);
    EXPECT_EQ(c.timestamp, 0u) << "those bytes are the syndrome";
  }
  EXPECT_STREQ(syndrome_text(4), "memory key or address not allowed");
  EXPECT_STREQ(syndrome_text(5), "flushed after an earlier error");
  EXPECT_STREQ(syndrome_text(0x77), "unknown");
}

TEST(Completions, OtherKindsAreConsumed) {
  CompletionMemory memory(2);
  memory.write(0, MLX5_CQE_NO_PACKET);
  auto reader = memory.reader();
  Completion c;
  ASSERT_TRUE(reader.next(&c));
  EXPECT_EQ(c.kind, Kind::kOther);
  EXPECT_FALSE(reader.next(&c));
}

/// Writes a compressed session of `lengths` as the device does: title, then arrays; the other entries keep
/// what they had.
void compress(CompletionMemory& memory, uint32_t at, uint16_t counter, const std::vector<uint32_t>& lengths) {
  mlx5_cqe64& title = memory.write(at, MLX5_CQE_RESP_SEND, kFormatCompressed);
  title.byte_cnt = htobe32(static_cast<uint32_t>(lengths.size()));
  title.wqe_counter = htobe16(counter);
  title.hds_ip_ext = 7;
  title.l4_hdr_type_etc = 2 << 2;
  title.sop_drop_qpn = htobe32(0x42);
  for (uint32_t i = 0; i < lengths.size(); ++i) {
    const uint32_t slot = i < 8 ? at + 1 : at + i / 8 * 8;
    auto* array = reinterpret_cast<MiniCqe*>(&memory.cqes[slot & (memory.entries - 1)]);
    array[i % 8] = {{0}, htobe32(lengths[i])};
  }
}

TEST(CompressedCompletions, EveryLengthOfSession) {
  for (uint32_t n = 2; n <= 40; ++n) {
    CompletionMemory memory(64);
    auto reader = memory.reader();
    Completion c;
    uint32_t at = 0;
    for (int lap = 0; lap < 9; ++lap) {  // over the ring's end, whatever was left in the holes
      std::vector<uint32_t> lengths;
      for (uint32_t i = 0; i < n; ++i) lengths.push_back(60 + i);
      compress(memory, at, static_cast<uint16_t>(0xfff0 + at), lengths);
      for (uint32_t i = 0; i < n; ++i) {
        ASSERT_TRUE(reader.ready());
        ASSERT_TRUE(reader.next(&c)) << n << ' ' << i;
        EXPECT_EQ(c.kind, Kind::kReceive);
        EXPECT_EQ(c.length, 60 + i);
        EXPECT_EQ(c.wqe_counter, static_cast<uint16_t>(0xfff0 + at + i));
        EXPECT_EQ(c.flow_tag, 0x42u);
        EXPECT_TRUE(c.checksum_good);
      }
      at += n;
      ASSERT_EQ(reader.consumer(), at);
      ASSERT_FALSE(reader.next(&c)) << "a hole of session " << n << " looks valid";
      memory.write(at, MLX5_CQE_RESP_SEND).byte_cnt = htobe32(1000);  // a plain one between
      ASSERT_TRUE(reader.next(&c));
      EXPECT_EQ(c.length, 1000u);
      ++at;
    }
  }
}

TEST(CompressedCompletions, AnImpossibleCountIsNotFollowed) {
  CompletionMemory memory(8);
  for (uint32_t count : {0u, 9u, 0xffffffffu}) {
    auto reader = memory.reader();
    memory.write(0, MLX5_CQE_RESP_SEND, kFormatCompressed).byte_cnt = htobe32(count);
    Completion c;
    ASSERT_TRUE(reader.next(&c));
    EXPECT_EQ(c.kind, Kind::kOther);
    EXPECT_EQ(reader.consumer(), 1u);
  }
}

}  // namespace
}  // namespace accel::mlx5
