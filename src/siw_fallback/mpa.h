// MPA connection set-up: RFC 5044 §7.1, enhanced by RFC 6581. Pure: bytes in, agreement out.
#pragma once

#include <string_view>

#include "siw_fallback/bytes.h"
#include "siw_fallback/violation.h"

namespace accel::siw {

inline constexpr size_t kMpaKeySize = 16;
inline constexpr size_t kMpaHeaderSize = 20;
inline constexpr size_t kMpaEnhancedSize = 4;
inline constexpr size_t kMpaMaxPrivate = 512;
inline constexpr size_t kMpaMaxFrame = kMpaHeaderSize + kMpaMaxPrivate;
inline constexpr uint8_t kMpaRevision = 2;
inline constexpr uint16_t kMpaDepthMask = 0x3fff;
inline constexpr uint16_t kMpaDepthUnnegotiated = 0x3fff;  // RFC 6581 §9: the program settles it
inline constexpr uint16_t kMaxReadDepth = 1;  // nothing of ours is readable: one empty Read at a time

enum class MpaKind : uint8_t { kRequest, kReply };

/// The first message of a peer-to-peer connection, "ready to receive" (RFC 6581 §4). A set of these is an OR.
enum Rtr : uint8_t { kRtrNone = 0, kRtrWrite = 1, kRtrRead = 2, kRtrSend = 4, kRtrAll = 7 };

struct MpaFrame {
  MpaKind kind = MpaKind::kRequest;
  bool markers = false, crc = false, rejected = false, enhanced = false;
  bool long_frames =
      false;  // siw's own bit (iwarp.h MPA_RR_FLAG_GSO_EXP): software that takes FPDUs of any size
  uint8_t revision = kMpaRevision;
  // With `enhanced` only. In a request `rtr` is what may be chosen from, in a reply the choice.
  bool peer_to_peer = false;
  uint8_t rtr = kRtrNone;
  uint16_t ird = 0, ord = 0;
  Bytes private_data = {};  // without the enhanced head; points into the parsed bytes
};

/// size 0 and no violation: more bytes are needed. A violation with a size: the frame is whole, so a request
/// may be refused by a reply; without one, the connection can only be closed.
struct MpaParsed {
  Violation violation = Violation::none;
  size_t size = 0;
  MpaFrame frame;
};

constexpr std::string_view mpa_key(MpaKind kind) {
  return kind == MpaKind::kRequest ? "MPA ID Req Frame" : "MPA ID Rep Frame";
}

enum class FirstBytes : uint8_t { kUndecided, kMpa, kPlain };

/// What a client's first bytes say: plain at the first byte that is not of the request's key.
constexpr FirstBytes classify(Bytes in) {
  const std::string_view key = mpa_key(MpaKind::kRequest);
  for (size_t i = 0; i < in.size() && i < key.size(); i++) {
    if (in[i] != static_cast<uint8_t>(key[i])) return FirstBytes::kPlain;
  }
  return in.size() < key.size() ? FirstBytes::kUndecided : FirstBytes::kMpa;
}

constexpr MpaParsed parse_mpa(MpaKind kind, Bytes in) {
  MpaParsed out;
  const std::string_view key = mpa_key(kind);
  for (size_t i = 0; i < in.size() && i < key.size(); i++) {
    if (in[i] != static_cast<uint8_t>(key[i])) return out.violation = Violation::mpa_key, out;
  }
  if (in.size() < kMpaHeaderSize) return out;
  MpaFrame& f = out.frame;
  const uint8_t flags = in[16];  // the rest is reserved and not looked at
  f.kind = kind;
  f.markers = flags & 0x80, f.crc = flags & 0x40, f.rejected = flags & 0x20;
  f.long_frames = flags & 0x08;
  f.revision = in[17];
  f.enhanced = f.revision >= 2 && (flags & 0x10);
  if (f.revision == 0 || f.revision > kMpaRevision) return out.violation = Violation::mpa_revision, out;
  const size_t length = load_be<uint16_t>(in, 18);
  if (length > kMpaMaxPrivate) return out.violation = Violation::mpa_private_data, out;
  if (in.size() < kMpaHeaderSize + length) return out;
  out.size = kMpaHeaderSize + length;
  f.private_data = in.subspan(kMpaHeaderSize, length);
  if (!f.enhanced) return out;
  if (length < kMpaEnhancedSize) return out.violation = Violation::mpa_enhanced_short, out;
  const auto ird = load_be<uint16_t>(f.private_data, 0), ord = load_be<uint16_t>(f.private_data, 2);
  f.ird = ird & kMpaDepthMask, f.ord = ord & kMpaDepthMask;
  f.peer_to_peer = ird & 0x8000;
  f.rtr = static_cast<uint8_t>((ord & 0x8000 ? kRtrWrite : 0) | (ord & 0x4000 ? kRtrRead : 0) |
                               (ird & 0x4000 ? kRtrSend : 0));
  f.private_data = f.private_data.subspan(kMpaEnhancedSize);
  return out;
}

/// Returns the frame's size; 0 when it does not fit `out` or MPA's limit.
constexpr size_t build_mpa(const MpaFrame& f, MutableBytes out) {
  const size_t length = (f.enhanced ? kMpaEnhancedSize : 0) + f.private_data.size();
  if (length > kMpaMaxPrivate || out.size() < kMpaHeaderSize + length) return 0;
  const std::string_view key = mpa_key(f.kind);
  for (size_t i = 0; i < key.size(); i++) out[i] = static_cast<uint8_t>(key[i]);
  out[16] = static_cast<uint8_t>((f.markers ? 0x80 : 0) | (f.crc ? 0x40 : 0) | (f.rejected ? 0x20 : 0) |
                                 (f.enhanced ? 0x10 : 0) | (f.long_frames ? 0x08 : 0));
  out[17] = f.revision;
  store_be(out, 18, static_cast<uint16_t>(length));
  size_t at = kMpaHeaderSize;
  if (f.enhanced) {
    const int ird = (f.ird & kMpaDepthMask) | (f.peer_to_peer ? 0x8000 : 0) | (f.rtr & kRtrSend ? 0x4000 : 0);
    const int ord =
        (f.ord & kMpaDepthMask) | (f.rtr & kRtrWrite ? 0x8000 : 0) | (f.rtr & kRtrRead ? 0x4000 : 0);
    store_be(out, at, static_cast<uint16_t>(ird));
    store_be(out, at + 2, static_cast<uint16_t>(ord));
    at += kMpaEnhancedSize;
  }
  for (uint8_t byte : f.private_data) out[at++] = byte;
  return at;
}

/// What we would like.
struct MpaOffer {
  bool crc = true;
  bool enhanced = true;
  bool peer_to_peer = true;
  uint8_t rtr =
      kRtrWrite | kRtrRead;  // a Send takes a message number from the program, so it is not offered unasked
  bool long_frames = false;
};

/// What both sides will do.
struct MpaAgreement {
  Violation violation = Violation::none;
  bool crc = false;
  bool long_frames = false;
  Rtr rtr = kRtrNone;  // what the initiator sends first; none: not peer-to-peer
  uint16_t ird = 0, ord = 0;
};

MpaFrame make_request(const MpaOffer& offer, Bytes private_data);

/// As responder: judges a whole request and fills the reply. With a violation the reply refuses.
MpaAgreement answer_request(const MpaFrame& request, const MpaOffer& offer, Bytes private_data,
                            MpaFrame& reply);

/// As initiator: judges the reply to our request.
MpaAgreement conclude(const MpaFrame& request, const MpaFrame& reply);

/// The reply that refuses a request.
MpaFrame make_refusal(const MpaFrame& request);

}  // namespace accel::siw
