// DDP segments (RFC 5041) and RDMAP messages (RFC 5040): codec and order. Pure.
#pragma once

#include <array>

#include "siw_fallback/bytes.h"
#include "siw_fallback/violation.h"

namespace accel::siw {

enum class Opcode : uint8_t {
  kWrite,
  kReadRequest,
  kReadResponse,
  kSend,
  kSendInvalidate,
  kSendSolicited,
  kSendSolicitedInvalidate,
  kTerminate,
};

constexpr bool is_tagged(Opcode op) { return op == Opcode::kWrite || op == Opcode::kReadResponse; }
constexpr bool is_send(Opcode op) { return op >= Opcode::kSend && op <= Opcode::kSendSolicitedInvalidate; }
constexpr bool invalidates(Opcode op) {
  return op == Opcode::kSendInvalidate || op == Opcode::kSendSolicitedInvalidate;
}

/// Untagged queues (RFC 5040 §4.2).
inline constexpr uint32_t kSendQueue = 0, kReadQueue = 1, kTerminateQueue = 2, kQueues = 3;

constexpr uint32_t queue_of(Opcode op) {
  return op == Opcode::kReadRequest ? kReadQueue : op == Opcode::kTerminate ? kTerminateQueue : kSendQueue;
}

inline constexpr size_t kTaggedHeader = 14;  // without MPA's length
inline constexpr size_t kUntaggedHeader = 18;
inline constexpr size_t kReadRequestSize = 28;

constexpr size_t header_size(Opcode op) { return is_tagged(op) ? kTaggedHeader : kUntaggedHeader; }

struct Segment {
  Opcode opcode = Opcode::kWrite;
  bool last = true;
  uint32_t stag = 0;    // tagged: where to; Send with Invalidate: what to invalidate
  uint64_t offset = 0;  // tagged: TO; untagged: MO
  uint32_t queue = 0, msn = 0;
  Bytes payload = {};
};

constexpr Violation parse_segment(Bytes ulpdu, Segment& out) {
  if (ulpdu.size() < kTaggedHeader) return Violation::fpdu_short;
  const bool tagged = ulpdu[0] & 0x80;
  if ((ulpdu[0] & 0x03) != 1) return tagged ? Violation::ddp_tagged_version : Violation::ddp_untagged_version;
  if ((ulpdu[1] & 0xc0) != 0x40) return Violation::rdmap_version;
  if ((ulpdu[1] & 0x0f) > 7) return Violation::rdmap_opcode;
  out.opcode = static_cast<Opcode>(ulpdu[1] & 0x0f);
  out.last = ulpdu[0] & 0x40;
  if (is_tagged(out.opcode) != tagged) return Violation::rdmap_opcode;
  out.stag = load_be<uint32_t>(ulpdu, 2);
  if (tagged) {
    out.queue = out.msn = 0;
    out.offset = load_be<uint64_t>(ulpdu, 6);
    out.payload = ulpdu.subspan(kTaggedHeader);
    // The last byte may be the last of the address space, not beyond it.
    if (!out.payload.empty() && out.offset + (out.payload.size() - 1) < out.offset)
      return Violation::ddp_wrap;
    return Violation::none;
  }
  if (ulpdu.size() < kUntaggedHeader) return Violation::fpdu_short;
  out.queue = load_be<uint32_t>(ulpdu, 6);
  out.msn = load_be<uint32_t>(ulpdu, 10);
  out.offset = load_be<uint32_t>(ulpdu, 14);
  out.payload = ulpdu.subspan(kUntaggedHeader);
  return out.queue == queue_of(out.opcode) ? Violation::none : Violation::ddp_queue;
}

/// MPA's length and the segment's headers; what fpdu_tail() calls the head.
struct SegmentHead {
  std::array<uint8_t, 2 + kUntaggedHeader> bytes{};
  size_t size = 0;
  constexpr Bytes view() const { return Bytes(bytes).first(size); }
};

constexpr SegmentHead build_head(const Segment& s, size_t payload) {
  SegmentHead h;
  const bool tagged = is_tagged(s.opcode);
  h.size = 2 + header_size(s.opcode);
  store_be(h.bytes, 0, static_cast<uint16_t>(header_size(s.opcode) + payload));
  h.bytes[2] = static_cast<uint8_t>((tagged ? 0x80 : 0) | (s.last ? 0x40 : 0) | 0x01);
  h.bytes[3] = static_cast<uint8_t>(0x40 | static_cast<uint8_t>(s.opcode));
  store_be(h.bytes, 4, s.stag);
  if (tagged) {
    store_be(h.bytes, 8, s.offset);
  } else {
    store_be(h.bytes, 8, s.queue);
    store_be(h.bytes, 12, s.msn);
    store_be(h.bytes, 16, static_cast<uint32_t>(s.offset));
  }
  return h;
}

/// RFC 5040 §4.4.
struct ReadRequest {
  uint32_t sink_stag = 0;
  uint64_t sink_offset = 0;
  uint32_t size = 0;
  uint32_t source_stag = 0;
  uint64_t source_offset = 0;
  bool operator==(const ReadRequest&) const = default;
};

constexpr Violation parse_read_request(Bytes in, ReadRequest& out) {
  if (in.size() != kReadRequestSize) return Violation::rdmap_read_size;
  out = {load_be<uint32_t>(in, 0), load_be<uint64_t>(in, 4), load_be<uint32_t>(in, 12),
         load_be<uint32_t>(in, 16), load_be<uint64_t>(in, 20)};
  return Violation::none;
}

constexpr std::array<uint8_t, kReadRequestSize> build_read_request(const ReadRequest& r) {
  std::array<uint8_t, kReadRequestSize> out{};
  store_be(out, 0, r.sink_stag);
  store_be(out, 4, r.sink_offset);
  store_be(out, 12, r.size);
  store_be(out, 16, r.source_stag);
  store_be(out, 20, r.source_offset);
  return out;
}

/// Holds arriving segments to their order: MSN and MO per queue (RFC 5041 §5.3); one tagged message at a
/// time, contiguous.
class InboundOrder {
 public:
  /// `limit` is the longest message that the segment's queue takes.
  constexpr Violation check(const Segment& s, size_t limit);

 private:
  struct Queue {
    uint32_t msn = 1, offset = 0;
    Opcode opcode = Opcode::kSend;
  };
  std::array<Queue, kQueues> queues_;
  Segment tagged_{};  // the expected continuation, while !tagged_.last
};

constexpr Violation InboundOrder::check(const Segment& s, size_t limit) {
  if (is_tagged(s.opcode)) {
    const bool begun = !tagged_.last;
    if (begun && (s.opcode != tagged_.opcode || s.stag != tagged_.stag || s.offset != tagged_.offset)) {
      return Violation::ddp_tagged_interleave;
    }
    tagged_ = s;
    tagged_.offset += s.payload.size();
    tagged_.payload = {};
    return Violation::none;
  }
  if (s.queue >= kQueues) return Violation::ddp_queue;
  Queue& q = queues_[s.queue];
  if (s.msn != q.msn) return Violation::ddp_msn;
  if (s.offset != q.offset) return Violation::ddp_offset;
  if (q.offset != 0 && s.opcode != q.opcode) return Violation::rdmap_opcode;
  // An empty segment that is not the last would let a message go on for ever.
  if (s.payload.empty() && !s.last) return Violation::ddp_offset;
  if (s.payload.size() > limit || q.offset > limit - s.payload.size()) return Violation::ddp_too_long;
  q.opcode = s.opcode;
  q.offset = s.last ? 0 : q.offset + static_cast<uint32_t>(s.payload.size());
  if (s.last) q.msn++;
  return Violation::none;
}

/// What a Terminate tells; for logs only, since any Terminate ends the connection.
struct Terminate {
  TerminateCode code{};
  bool siw_form = false;  // nibbles and bits as the kernel's siw sends them on little-endian hosts
};

/// The control word, and behind it the segment that was wrong: its length and headers as they came (RFC 5040
/// §4.8).
inline constexpr size_t kTerminateMax = 4 + 2 + kUntaggedHeader;
struct TerminateMessage {
  std::array<uint8_t, kTerminateMax> bytes{};
  size_t size = 0;
  constexpr Bytes view() const { return Bytes(bytes).first(size); }
};

/// `culprit` is the ULPDU at fault, or empty where none is to blame or its headers cannot be trusted.
TerminateMessage build_terminate(Violation why, Bytes culprit);
Violation parse_terminate(Bytes in, Terminate& out);

}  // namespace accel::siw
