// FPDUs: golden frames, every split, and what is refused.
#include "siw_fallback/fpdu.h"

#include <gtest/gtest.h>

#include "frame.h"
#include "hex.h"
#include "siw_fallback/crc32c.h"
#include "siw_fallback/rdmap.h"

namespace accel::siw {
namespace {

using test::copy;
using test::frame;
using test::hex;

/// Independent of ISA-L: bit by bit, reflected Castagnoli polynomial.
uint32_t slow_crc32c(Bytes b) {
  uint32_t crc = ~0u;
  for (uint8_t byte : b) {
    crc ^= byte;
    for (int i = 0; i < 8; i++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
  }
  return ~crc;
}

TEST(Crc32c, KnownAnswers) {  // RFC 3720 B.4
  EXPECT_EQ(Crc32c().add(hex("'123456789'")).value(), 0xe3069283u);
  EXPECT_EQ(Crc32c().add(std::vector<uint8_t>(32)).value(), 0x8a9136aau);
  EXPECT_EQ(Crc32c().add(std::vector<uint8_t>(32, 0xff)).value(), 0x62a8ab43u);
  EXPECT_EQ(Crc32c().add({}).value(), 0u);
}

TEST(Crc32c, PiecesAndLengths) {
  std::vector<uint8_t> data;
  for (size_t n = 0; n < 300; n++) {
    const uint32_t whole = slow_crc32c(data);
    EXPECT_EQ(Crc32c().add(data).value(), whole);
    EXPECT_EQ(Crc32c().add(Bytes(data).first(n / 3)).add(Bytes(data).subspan(n / 3)).value(), whole);
    data.push_back(static_cast<uint8_t>(n * 37 + 11));
  }
}

TEST(Fpdu, GoldenWithoutCrc) {
  // The zero-length RDMA Write that is siw's RTR and our kick: stag 1, TO 0.
  EXPECT_EQ(frame({.opcode = Opcode::kWrite, .stag = 1}, {}, false),
            hex("000e c140 00000001 0000000000000000 00000000"));
  // An rsocket's "credit 384" as the first Send: little-endian 0x80000180.
  EXPECT_EQ(frame({.opcode = Opcode::kSend, .msn = 1}, hex("80010080"), false),
            hex("0016 4143 00000000 00000000 00000001 00000000 80010080 00000000"));
  // Five bytes are padded: 2+14+5 = 21.
  EXPECT_EQ(frame({.opcode = Opcode::kWrite, .stag = 0x11223344, .offset = 0x1000}, hex("'hello'"), false),
            hex("0013 c140 11223344 0000000000001000 'hello' 000000 00000000"));
  const ReadRequest r{1, 0, 0, 1, 0};
  EXPECT_EQ(frame({.opcode = Opcode::kReadRequest, .queue = 1, .msn = 1}, build_read_request(r), false),
            hex("002e 4141 00000000 00000001 00000001 00000000"
                "00000001 0000000000000000 00000000 00000001 0000000000000000 00000000"));
}

TEST(Fpdu, CrcCoversLengthToPadAndIsLittleEndian) {
  for (size_t n = 0; n < 9; n++) {
    const std::vector<uint8_t> payload(n, 0xa5);
    const auto wire = frame({.opcode = Opcode::kWrite, .stag = 7}, payload, true);
    ASSERT_EQ(wire.size() % 4, 0u);
    ASSERT_EQ(wire.size(), fpdu_size(kTaggedHeader + n));
    const size_t covered = wire.size() - 4;
    const uint32_t crc = slow_crc32c(Bytes(wire).first(covered));
    for (size_t i = 0; i < 4; i++) EXPECT_EQ(wire[covered + i], static_cast<uint8_t>(crc >> (8 * i)));
  }
}

std::vector<uint8_t> three_frames(bool crc) {
  auto wire = frame({.opcode = Opcode::kWrite, .stag = 1}, {}, crc);
  for (const auto& more : {frame({.opcode = Opcode::kWrite, .stag = 2}, hex("'hello'"), crc),
                           frame({.opcode = Opcode::kSend, .msn = 1}, hex("80010080"), crc)}) {
    wire.insert(wire.end(), more.begin(), more.end());
  }
  return wire;
}

void take_all(FpduParser& parser, Bytes piece, std::vector<std::vector<uint8_t>>& got) {
  Bytes ulpdu;
  do {
    ASSERT_EQ(parser.take(piece, ulpdu), Violation::none);
    if (!ulpdu.empty()) got.push_back(copy(ulpdu));
  } while (!ulpdu.empty());
  EXPECT_TRUE(piece.empty());
}

TEST(Fpdu, EverySplitInTwoAndSingleBytes) {
  for (bool crc : {false, true}) {
    const auto wire = three_frames(crc);
    std::vector<std::vector<uint8_t>> whole;
    FpduParser one(crc);
    take_all(one, wire, whole);
    ASSERT_EQ(whole.size(), 3u);
    EXPECT_TRUE(one.between_frames());
    for (size_t cut = 0; cut <= wire.size(); cut++) {
      for (size_t second = cut; second <= wire.size(); second++) {
        FpduParser parser(crc);
        std::vector<std::vector<uint8_t>> got;
        take_all(parser, Bytes(wire).first(cut), got);
        take_all(parser, Bytes(wire).subspan(cut, second - cut), got);
        take_all(parser, Bytes(wire).subspan(second), got);
        ASSERT_EQ(got, whole) << cut << " " << second;
      }
    }
    FpduParser parser(crc);
    std::vector<std::vector<uint8_t>> got;
    for (size_t i = 0; i < wire.size(); i++) take_all(parser, Bytes(wire).subspan(i, 1), got);
    EXPECT_EQ(got, whole);
    EXPECT_TRUE(parser.between_frames());
  }
}

TEST(Fpdu, EveryBitIsCovered) {
  const auto wire = frame({.opcode = Opcode::kWrite, .stag = 2}, hex("'hello'"), true);
  for (size_t bit = 16; bit < wire.size() * 8; bit++) {  // the length itself would only ask for more bytes
    auto bad = wire;
    bad[bit / 8] = static_cast<uint8_t>(bad[bit / 8] ^ 1 << bit % 8);
    FpduParser parser(true);
    Bytes in = bad, ulpdu;
    EXPECT_EQ(parser.take(in, ulpdu), Violation::fpdu_crc) << bit;
    EXPECT_TRUE(ulpdu.empty());
    EXPECT_EQ(copy(parser.frame()), bad);  // kept for whoever has to explain it
  }
}

TEST(Fpdu, CrcFieldIsIgnoredWhenOff) {
  auto wire = frame({.opcode = Opcode::kWrite, .stag = 2}, {}, false);
  wire.back() = 0x55;
  FpduParser parser(false);
  Bytes in = wire, ulpdu;
  EXPECT_EQ(parser.take(in, ulpdu), Violation::none);
  EXPECT_EQ(ulpdu.size(), kTaggedHeader);
}

TEST(Fpdu, TooShortForAnyHeader) {
  for (uint16_t length = 0; length < kMinUlpdu; length++) {
    const std::vector<uint8_t> wire = {0, static_cast<uint8_t>(length)};
    FpduParser parser(true), bytewise(true);
    Bytes in = wire, ulpdu;
    EXPECT_EQ(parser.take(in, ulpdu), Violation::fpdu_short);
    Bytes first = Bytes(wire).first(1), second = Bytes(wire).last(1);
    EXPECT_EQ(bytewise.take(first, ulpdu), Violation::none);
    EXPECT_EQ(bytewise.take(second, ulpdu), Violation::fpdu_short);
  }
}

TEST(Fpdu, LargestInSmallPieces) {
  const std::vector<uint8_t> payload(kMaxUlpdu - kTaggedHeader, 0x5a);
  const auto wire = frame({.opcode = Opcode::kWrite, .stag = 2}, payload, true);
  FpduParser parser(true);
  std::vector<std::vector<uint8_t>> got;
  for (size_t at = 0; at < wire.size(); at += 1000) {
    EXPECT_EQ(parser.between_frames(), at == 0);
    take_all(parser, Bytes(wire).subspan(at, std::min<size_t>(1000, wire.size() - at)), got);
  }
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].size(), kMaxUlpdu);
}

}  // namespace
}  // namespace accel::siw
