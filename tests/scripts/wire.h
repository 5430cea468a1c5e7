// IPv4 packets of TCP segments, made and read byte by byte.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "script.h"

namespace accel::scripts {

using Bytes = std::vector<uint8_t>;

constexpr uint32_t kOwnAddress = 0x0a000001;   ///< 10.0.0.1, of the stack under test
constexpr uint32_t kPeerAddress = 0x0a000002;  ///< 10.0.0.2, whom the script plays

/// A TCP segment as it is on the wire.
struct Segment {
  Duration at{0};  ///< since the script's beginning
  uint16_t from = 0, to = 0;
  uint32_t seq = 0, ack = 0, length = 0;
  uint8_t flags = 0, ecn = 0;
  uint16_t window = 0, urgent = 0;
  std::vector<OptionSpec> options;
  Bytes payload;
};

/// A packet from the peer.
Bytes packet_of(const Segment& s);
/// An ICMP error from the peer that quotes a segment's first bytes.
Bytes icmp_packet_of(const InjectIcmp& icmp, const Segment& quoted);
/// Nothing of what is not whole, or not TCP between the two addresses, from the stack under test.
std::optional<Segment> segment_of(std::span<const uint8_t> packet);

std::string text_of_flags(uint8_t flags);
/// In the script's language.
std::string text_of(const SegmentSpec& s);

/// Byte `i` of each stream, both ways.
inline uint8_t stream_byte(uint64_t i) { return static_cast<uint8_t>('a' + i % 23); }

}  // namespace accel::scripts
