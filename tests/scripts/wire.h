// IPv4 and IPv6 packets of TCP segments, made and read byte by byte.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ip.h"
#include "script.h"

namespace accel::scripts {

using Bytes = std::vector<uint8_t>;

/// The two ends of a conversation. Their family is the script's.
struct Addresses {
  IpAddress own;   ///< of the stack under test
  IpAddress peer;  ///< whom the script plays
  bool v6() const { return !own.is_v4(); }
  /// Bytes that an IP header has more than IPv4's: each MTU is larger by them, so that segments are the same.
  uint32_t longer_header() const { return v6() ? 20 : 0; }
};
constexpr Addresses kIpv4{IpAddress::v4(0x0a000001), IpAddress::v4(0x0a000002)};  // 10.0.0.1, 10.0.0.2
constexpr Addresses kIpv6{{{0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}},
                          {{0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2}}};  // fd00::1, fd00::2

/// A TCP segment as it is on the wire.
struct Segment {
  Duration at{0};  ///< since the script's beginning
  uint16_t from = 0, to = 0;
  uint32_t seq = 0, ack = 0, length = 0;
  uint8_t flags = 0, ecn = 0;
  uint16_t window = 0, urgent = 0;
  std::vector<OptionSpec> options;
  Bytes payload;
  IpAddress source, destination;
  Bytes packet;  ///< as it left
};

/// A packet between the segment's addresses.
Bytes packet_of(const Segment& s);
/// An ICMP error to who has sent `quoted`, from the other end, with its first bytes.
Bytes icmp_packet_of(const InjectIcmp& icmp, const Segment& quoted);
/// Nothing of what is not whole, or not TCP.
std::optional<Segment> segment_of(std::span<const uint8_t> packet);

std::string text_of_flags(uint8_t flags);
/// In the script's language.
std::string text_of(const SegmentSpec& s);

/// Byte `i` of each stream, both ways.
inline uint8_t stream_byte(uint64_t i) { return static_cast<uint8_t>('a' + i % 23); }

}  // namespace accel::scripts
