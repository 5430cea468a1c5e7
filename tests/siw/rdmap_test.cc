// DDP segments and RDMAP messages: codec, order, Terminate; the negative table of the wire.
#include "siw_fallback/rdmap.h"

#include <gtest/gtest.h>

#include "hex.h"

namespace accel::siw {
namespace {

using test::copy;
using test::hex;

// Hostile input, refused at compile time.
constexpr uint8_t kShort[] = {0xc1, 0x40, 0, 0};
constexpr Violation parsed(Bytes in) {
  Segment s;
  return parse_segment(in, s);
}
static_assert(parsed(kShort) == Violation::fpdu_short);
static_assert(parsed({}) == Violation::fpdu_short);

TEST(Rdmap, HeadsOfAllOpcodes) {
  struct {
    Opcode opcode;
    const char* head;
  } cases[] = {
      {Opcode::kWrite, "0012 c140 01020304 1122334455667788"},
      {Opcode::kReadResponse, "0012 c142 01020304 1122334455667788"},
      {Opcode::kReadRequest, "0016 4141 01020304 00000001 00000009 55667788"},
      {Opcode::kSend, "0016 4143 01020304 00000000 00000009 55667788"},
      {Opcode::kSendInvalidate, "0016 4144 01020304 00000000 00000009 55667788"},
      {Opcode::kSendSolicited, "0016 4145 01020304 00000000 00000009 55667788"},
      {Opcode::kSendSolicitedInvalidate, "0016 4146 01020304 00000000 00000009 55667788"},
      {Opcode::kTerminate, "0016 4147 01020304 00000002 00000009 55667788"},
  };
  for (const auto& c : cases) {
    const Segment s{.opcode = c.opcode,
                    .stag = 0x01020304,
                    .offset = 0x1122334455667788,
                    .queue = queue_of(c.opcode),
                    .msn = 9};
    const SegmentHead h = build_head(s, 4);
    EXPECT_EQ(copy(h.view()), hex(c.head)) << c.head;
    auto ulpdu = copy(h.view().subspan(2));
    ulpdu.resize(ulpdu.size() + 4);
    Segment back;
    ASSERT_EQ(parse_segment(ulpdu, back), Violation::none) << c.head;
    EXPECT_EQ(back.opcode, c.opcode);
    EXPECT_EQ(back.stag, s.stag);
    EXPECT_EQ(back.offset, is_tagged(c.opcode) ? s.offset : s.offset & 0xffffffff);
    EXPECT_EQ(back.msn, is_tagged(c.opcode) ? 0u : 9u);
    EXPECT_TRUE(back.last);
    EXPECT_EQ(back.payload.size(), 4u);
  }
  EXPECT_EQ(build_head({.last = false}, 0).bytes[2], 0x81);
}

TEST(Rdmap, BrokenSegments) {
  struct {
    const char* ulpdu;
    Violation violation;
  } cases[] = {
      {"c140 00000001 00000000000000", Violation::fpdu_short},
      {"4143 00000000 00000000 00000001 000000", Violation::fpdu_short},
      {"c240 00000001 0000000000000000", Violation::ddp_tagged_version},
      {"c040 00000001 0000000000000000", Violation::ddp_tagged_version},
      {"4243 00000000 00000000 00000001 00000000", Violation::ddp_untagged_version},
      {"c180 00000001 0000000000000000", Violation::rdmap_version},
      {"4103 00000000 00000000 00000001 00000000", Violation::rdmap_version},
      {"4148 00000000 00000000 00000001 00000000", Violation::rdmap_opcode},
      {"c143 00000001 0000000000000000", Violation::rdmap_opcode},            // a Send, tagged
      {"4140 00000000 00000000 00000001 00000000", Violation::rdmap_opcode},  // a Write, untagged
      {"4143 00000000 00000001 00000001 00000000", Violation::ddp_queue},
      {"4143 00000000 00000007 00000001 00000000", Violation::ddp_queue},
      {"4141 00000000 00000000 00000001 00000000", Violation::ddp_queue},
      {"c140 00000001 fffffffffffffffd 'wrap'", Violation::ddp_wrap},
      {"c140 00000001 fffffffffffffffc 'wrap'", Violation::none},
      {"c140 00000001 ffffffffffffffff", Violation::none},
  };
  for (const auto& c : cases) EXPECT_EQ(name_of(parsed(hex(c.ulpdu))), name_of(c.violation)) << c.ulpdu;
}

TEST(Rdmap, MessageNumbersPerQueue) {
  InboundOrder order;
  const std::vector<uint8_t> four(4);
  const auto send = [&](uint32_t msn, uint32_t mo, bool last, Opcode op = Opcode::kSend) {
    return order.check(
        {.opcode = op, .last = last, .offset = mo, .queue = queue_of(op), .msn = msn, .payload = four}, 8);
  };
  EXPECT_EQ(send(0, 0, true), Violation::ddp_msn);
  EXPECT_EQ(send(2, 0, true), Violation::ddp_msn);
  EXPECT_EQ(send(1, 4, true), Violation::ddp_offset);
  EXPECT_EQ(send(1, 0, true), Violation::none);
  EXPECT_EQ(send(1, 0, true), Violation::ddp_msn);
  EXPECT_EQ(send(1, 0, true, Opcode::kReadRequest), Violation::none);  // its own numbers
  EXPECT_EQ(send(1, 0, true, Opcode::kTerminate), Violation::none);
  EXPECT_EQ(send(2, 0, false), Violation::none);
  EXPECT_EQ(send(2, 0, true), Violation::ddp_offset);
  EXPECT_EQ(send(3, 4, true), Violation::ddp_msn);
  EXPECT_EQ(send(2, 4, true, Opcode::kSendSolicited), Violation::rdmap_opcode);
  EXPECT_EQ(send(2, 4, false), Violation::none);
  EXPECT_EQ(send(2, 8, true), Violation::ddp_too_long);
}

TEST(Rdmap, EmptySegmentsDoNotGoOnForEver) {
  InboundOrder order;
  EXPECT_EQ(order.check({.opcode = Opcode::kSend, .last = false, .msn = 1}, 8), Violation::ddp_offset);
  EXPECT_EQ(order.check({.opcode = Opcode::kSend, .msn = 1}, 0), Violation::none);
}

TEST(Rdmap, TaggedMessagesOneAtATime) {
  InboundOrder order;
  const std::vector<uint8_t> four(4);
  const auto tagged = [&](Opcode op, uint32_t stag, uint64_t to, bool last) {
    return order.check({.opcode = op, .last = last, .stag = stag, .offset = to, .payload = four}, 0);
  };
  EXPECT_EQ(tagged(Opcode::kWrite, 5, 100, false), Violation::none);
  EXPECT_EQ(order.check({.opcode = Opcode::kSend, .msn = 1, .payload = four}, 4),
            Violation::none);  // may come between
  EXPECT_EQ(tagged(Opcode::kWrite, 6, 104, false), Violation::ddp_tagged_interleave);
  EXPECT_EQ(tagged(Opcode::kWrite, 5, 100, false), Violation::ddp_tagged_interleave);
  EXPECT_EQ(tagged(Opcode::kReadResponse, 5, 104, false), Violation::ddp_tagged_interleave);
  EXPECT_EQ(tagged(Opcode::kWrite, 5, 104, true), Violation::none);
  EXPECT_EQ(tagged(Opcode::kReadResponse, 9, 0, true), Violation::none);
}

TEST(Rdmap, ReadRequest) {
  const ReadRequest r{0x11223344, 0x0102030405060708, 16, 0x55667788, 0xa0b0c0d0e0f00010};
  const auto wire = build_read_request(r);
  EXPECT_EQ(copy(wire), hex("11223344 0102030405060708 00000010 55667788 a0b0c0d0e0f00010"));
  ReadRequest back;
  EXPECT_EQ(parse_read_request(wire, back), Violation::none);
  EXPECT_EQ(back, r);
  EXPECT_EQ(parse_read_request(Bytes(wire).first(27), back), Violation::rdmap_read_size);
}

TEST(Rdmap, TerminateIsSentAsTheRfcSays) {
  const auto culprit = hex("4143 00000000 00000007 00000001 00000000 80010080");
  EXPECT_EQ(copy(build_terminate(Violation::ddp_queue, culprit).view()),
            hex("1201 c000 0016 4143 00000000 00000007 00000001 00000000"));
  const auto tagged = hex("c140 00000001 0000000000000000");
  EXPECT_EQ(copy(build_terminate(Violation::ddp_stag, tagged).view()),
            hex("1100 c000 000e c140 00000001 0000000000000000"));
  EXPECT_EQ(copy(build_terminate(Violation::fpdu_crc, {}).view()), hex("2002 0000"));
  EXPECT_EQ(copy(build_terminate(Violation::rdmap_version, hex("41")).view()), hex("0205 0000"));
}

TEST(Rdmap, TerminateOfTheKernelsSiwIsUnderstood) {
  // First two bytes as seen from a kernel's siw, and what they mean; the reference's table.
  struct {
    const char* siw;
    TerminateCode code;
  } cases[] = {
      {"1100", {1, 1, 0}}, {"1101", {1, 1, 1}}, {"0100", {1, 0, 0}}, {"0202", {2, 0, 2}},
      {"0203", {2, 0, 3}}, {"2101", {1, 2, 1}}, {"2102", {1, 2, 2}}, {"2103", {1, 2, 3}},
      {"2106", {1, 2, 6}}, {"2005", {0, 2, 5}}, {"2006", {0, 2, 6}},
  };
  for (const auto& c : cases) {
    auto wire = hex(c.siw);
    wire.insert(wire.end(), {0x03, 0x00});  // M and D where siw puts them
    Terminate t;
    EXPECT_EQ(parse_terminate(wire, t), Violation::none);
    EXPECT_TRUE(t.siw_form) << c.siw;
    EXPECT_EQ(t.code, c.code) << c.siw;
  }
  Terminate t;
  EXPECT_EQ(parse_terminate(hex("2101 0000"), t), Violation::none);  // no such RFC code: siw's
  EXPECT_TRUE(t.siw_form);
  EXPECT_EQ(parse_terminate(hex("210100"), t), Violation::fpdu_short);
}

TEST(Rdmap, EveryTerminateOfOursIsReadBack) {
  const auto culprit = hex("c140 00000001 0000000000000000");
#define VIOLATION(name, layer, type, number, help)                                                    \
  {                                                                                                   \
    Terminate t;                                                                                      \
    EXPECT_EQ(parse_terminate(build_terminate(Violation::name, culprit).view(), t), Violation::none); \
    EXPECT_FALSE(t.siw_form) << #name;                                                                \
    EXPECT_EQ(t.code, terminate_code(Violation::name)) << #name;                                      \
    EXPECT_EQ(name_of(Violation::name), #name);                                                       \
  }
#include "siw_fallback/violations.def"
#undef VIOLATION
}

}  // namespace
}  // namespace accel::siw
