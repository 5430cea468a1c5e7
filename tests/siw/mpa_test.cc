// MPA set-up: frames byte by byte, and who agrees to what.
#include "siw_fallback/mpa.h"

#include <gtest/gtest.h>

#include <array>
#include <cctype>

#include "hex.h"

namespace accel::siw {
namespace {

using test::copy;
using test::hex;

constexpr MpaKind kReq = MpaKind::kRequest, kRep = MpaKind::kReply;

// Hostile input, refused at compile time.
constexpr uint8_t kNotMpa[] = {'M', 'P', 'A', ' ', 'I', 'D', '!'};
static_assert(parse_mpa(kReq, kNotMpa).violation == Violation::mpa_key);
static_assert(classify(kNotMpa) == FirstBytes::kPlain);
static_assert(classify(Bytes(kNotMpa).first(6)) == FirstBytes::kUndecided);
static_assert(classify({}) == FirstBytes::kUndecided);

std::vector<uint8_t> build(const MpaFrame& f) {
  std::vector<uint8_t> out(kMpaMaxFrame);
  out.resize(build_mpa(f, out));
  return out;
}

TEST(Mpa, RequestOfAnRsocketClient) {  // initiator_depth 1: IRD 0, ORD 1
  const auto wire = hex("'MPA ID Req Frame' 10 02 0006 0000 0001 'hi'");
  const MpaParsed p = parse_mpa(kReq, wire);
  ASSERT_EQ(p.violation, Violation::none);
  EXPECT_EQ(p.size, wire.size());
  EXPECT_TRUE(p.frame.enhanced);
  EXPECT_FALSE(p.frame.peer_to_peer || p.frame.crc || p.frame.markers || p.frame.rejected);
  EXPECT_EQ(p.frame.ird, 0);
  EXPECT_EQ(p.frame.ord, 1);
  EXPECT_EQ(copy(p.frame.private_data), hex("'hi'"));
  EXPECT_EQ(build(p.frame), wire);
}

TEST(Mpa, RequestOfAnRnic) {  // CRC, peer-to-peer, Read RTR
  const auto wire = hex("'MPA ID Req Frame' 50 02 0004 8020 4010");
  const MpaParsed p = parse_mpa(kReq, wire);
  ASSERT_EQ(p.violation, Violation::none);
  EXPECT_TRUE(p.frame.crc && p.frame.peer_to_peer);
  EXPECT_EQ(p.frame.rtr, kRtrRead);
  EXPECT_EQ(p.frame.ird, 32);
  EXPECT_EQ(p.frame.ord, 16);
  EXPECT_EQ(build(p.frame), wire);
  MpaFrame reply;
  const MpaAgreement a = answer_request(p.frame, {.crc = false}, {}, reply);
  EXPECT_EQ(a.violation, Violation::none);
  EXPECT_TRUE(a.crc);
  EXPECT_EQ(a.rtr, kRtrRead);
  EXPECT_EQ(build(reply), hex("'MPA ID Rep Frame' 50 02 0004 8001 4001"));
}

TEST(Mpa, OurRequest) {
  const auto data = hex("01 02");
  EXPECT_EQ(build(make_request({}, data)), hex("'MPA ID Req Frame' 50 02 0006 8001 c001 0102"));
  EXPECT_EQ(build(make_request({.crc = false, .peer_to_peer = false}, data)),
            hex("'MPA ID Req Frame' 10 02 0006 0001 0001 0102"));
  EXPECT_EQ(build(make_request({.rtr = kRtrSend}, {})), hex("'MPA ID Req Frame' 50 02 0004 c001 0001"));
}

TEST(Mpa, EveryPrefixWantsMore) {
  const auto wire = hex("'MPA ID Req Frame' 10 02 0006 0000 0001 'hi'");
  for (size_t n = 0; n < wire.size(); n++) {
    const MpaParsed p = parse_mpa(kReq, Bytes(wire).first(n));
    EXPECT_EQ(p.violation, Violation::none) << n;
    EXPECT_EQ(p.size, 0u) << n;
    EXPECT_EQ(classify(Bytes(wire).first(n)), n < 16 ? FirstBytes::kUndecided : FirstBytes::kMpa);
  }
}

TEST(Mpa, BrokenFrames) {
  struct {
    const char* wire;
    Violation violation;
    bool answerable;
  } cases[] = {
      {"'GET / HTTP/1.1'", Violation::mpa_key, false},
      {"'MPA ID Rep Frame' 10 02 0000", Violation::mpa_key, false},
      {"'MPA ID Req Frame' 00 03 0000", Violation::mpa_revision, false},
      {"'MPA ID Req Frame' 00 00 0000", Violation::mpa_revision, false},
      {"'MPA ID Req Frame' 00 02 0201", Violation::mpa_private_data, false},
      {"'MPA ID Req Frame' 10 02 0000", Violation::mpa_enhanced_short, true},
      {"'MPA ID Req Frame' 10 02 0003 000000", Violation::mpa_enhanced_short, true},
  };
  for (const auto& c : cases) {
    const auto wire = hex(c.wire);
    const MpaParsed p = parse_mpa(kReq, wire);
    EXPECT_EQ(p.violation, c.violation) << c.wire;
    EXPECT_EQ(p.size != 0, c.answerable) << c.wire;
  }
}

TEST(Mpa, RefusesWithAReply) {
  struct {
    const char* request;
    Violation violation;
    const char* reply;
  } cases[] = {
      {"'MPA ID Req Frame' 00 01 0000", Violation::mpa_revision, "'MPA ID Rep Frame' 20 01 0000"},
      {"'MPA ID Req Frame' 40 01 0000", Violation::mpa_revision, "'MPA ID Rep Frame' 60 01 0000"},
      {"'MPA ID Req Frame' 80 02 0000", Violation::mpa_markers, "'MPA ID Rep Frame' 20 02 0000"},
      {"'MPA ID Req Frame' 10 02 0004 8001 0001", Violation::mpa_no_rtr, "'MPA ID Rep Frame' 20 02 0000"},
  };
  for (const auto& c : cases) {
    const auto wire = hex(c.request);
    const MpaParsed p = parse_mpa(kReq, wire);
    ASSERT_EQ(p.violation, Violation::none) << c.request;
    MpaFrame reply;
    EXPECT_EQ(answer_request(p.frame, {}, {}, reply).violation, c.violation) << c.request;
    EXPECT_EQ(build(reply), hex(c.reply)) << c.request;
  }
}

TEST(Mpa, RepliesJudged) {
  const MpaFrame p2p = make_request({}, {}), plain = make_request({.crc = false, .peer_to_peer = false}, {});
  struct {
    const MpaFrame& request;
    const char* reply;
    Violation violation;
    bool crc;
    Rtr rtr;
  } cases[] = {
      {p2p, "'MPA ID Rep Frame' 50 02 0004 8001 8001", Violation::none, true, kRtrWrite},
      {p2p, "'MPA ID Rep Frame' 10 02 0004 8001 4001", Violation::none, true, kRtrRead},
      {plain, "'MPA ID Rep Frame' 10 02 0004 0001 0001", Violation::none, false, kRtrNone},
      {plain, "'MPA ID Rep Frame' 40 02 0000", Violation::none, true, kRtrNone},
      {p2p, "'MPA ID Rep Frame' 00 02 0000", Violation::none, true, kRtrNone},
      {p2p, "'MPA ID Rep Frame' 20 02 0000", Violation::mpa_rejected, false, kRtrNone},
      {p2p, "'MPA ID Rep Frame' 00 01 0000", Violation::mpa_revision, false, kRtrNone},
      {p2p, "'MPA ID Rep Frame' 80 02 0000", Violation::mpa_markers, false, kRtrNone},
      {p2p, "'MPA ID Rep Frame' 10 02 0004 8001 c001", Violation::mpa_no_rtr, false, kRtrNone},
      {p2p, "'MPA ID Rep Frame' 10 02 0004 c001 0001", Violation::mpa_no_rtr, false, kRtrNone},
      {p2p, "'MPA ID Rep Frame' 10 02 0004 8001 0001", Violation::mpa_no_rtr, false, kRtrNone},
      {plain, "'MPA ID Rep Frame' 10 02 0004 8001 8001", Violation::mpa_no_rtr, false, kRtrNone},
      {p2p, "'MPA ID Rep Frame' 10 02 0004 8000 4001", Violation::mpa_insufficient_ird, false, kRtrNone},
  };
  for (const auto& c : cases) {
    const auto wire = hex(c.reply);
    const MpaParsed p = parse_mpa(kRep, wire);
    ASSERT_EQ(p.violation, Violation::none) << c.reply;
    const MpaAgreement a = conclude(c.request, p.frame);
    EXPECT_EQ(a.violation, c.violation) << c.reply << " " << name_of(a.violation);
    if (a.violation != Violation::none) continue;
    EXPECT_EQ(a.crc, c.crc) << c.reply;
    EXPECT_EQ(a.rtr, c.rtr) << c.reply;
  }
}

TEST(Mpa, BothSidesAgreeInEveryCombination) {
  for (bool crc_a : {false, true})
    for (bool crc_b : {false, true})
      for (bool enhanced : {false, true})
        for (bool p2p : {false, true})
          for (uint8_t rtr_a = 1; rtr_a < 8; rtr_a++)
            for (uint8_t rtr_b = 1; rtr_b < 8; rtr_b++) {
              const MpaFrame request = make_request({crc_a, enhanced, p2p, rtr_a}, {});
              const auto wire = build(request);
              MpaFrame reply;
              const MpaAgreement b =
                  answer_request(parse_mpa(kReq, wire).frame, {.crc = crc_b, .rtr = rtr_b}, {}, reply);
              const auto back = build(reply);
              const MpaAgreement a = conclude(request, parse_mpa(kRep, back).frame);
              if (enhanced && p2p && !(rtr_a & rtr_b)) {
                EXPECT_EQ(b.violation, Violation::mpa_no_rtr);
                EXPECT_EQ(a.violation, Violation::mpa_rejected);
                continue;
              }
              ASSERT_EQ(a.violation, Violation::none);
              ASSERT_EQ(b.violation, Violation::none);
              EXPECT_EQ(a.crc, b.crc);
              EXPECT_EQ(a.crc, crc_a || crc_b);
              EXPECT_EQ(a.rtr, b.rtr);
              EXPECT_EQ(a.rtr != kRtrNone, enhanced && p2p);
            }
}

TEST(Mpa, DepthsAreLimitedAndUnnegotiatedStays) {
  MpaFrame request = make_request({}, {}), reply;
  request.ird = 500, request.ord = kMpaDepthUnnegotiated;
  answer_request(request, {}, {}, reply);
  EXPECT_EQ(reply.ord, 1);
  EXPECT_EQ(reply.ird, kMpaDepthUnnegotiated);
}

TEST(Mpa, LongFramesOnlyWhereBothSaySo) {
  for (const bool asks : {false, true})
    for (const bool answers : {false, true}) {
      const MpaFrame request = make_request({.long_frames = asks}, {});
      const auto wire = build(request);
      EXPECT_EQ(wire[16] & 0x08, asks ? 0x08 : 0);
      MpaFrame reply;
      const MpaAgreement b = answer_request(parse_mpa(kReq, wire).frame, {.long_frames = answers}, {}, reply);
      const auto back = build(reply);
      const MpaAgreement a = conclude(request, parse_mpa(kRep, back).frame);
      EXPECT_EQ(a.long_frames, asks && answers);
      EXPECT_EQ(b.long_frames, asks && answers);
    }
}

TEST(Mpa, TooLongIsNotBuilt) {
  const std::vector<uint8_t> data(kMpaMaxPrivate - kMpaEnhancedSize);
  std::array<uint8_t, kMpaMaxFrame> out;
  MpaFrame f = make_request({}, data);
  EXPECT_EQ(build_mpa(f, out), kMpaMaxFrame);
  EXPECT_EQ(build_mpa(f, MutableBytes(out).first(kMpaMaxFrame - 1)), 0u);
  const std::vector<uint8_t> more(data.size() + 1);
  f.private_data = more;
  EXPECT_EQ(build_mpa(f, out), 0u);
}

}  // namespace
}  // namespace accel::siw
