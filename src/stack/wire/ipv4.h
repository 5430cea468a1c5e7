// RFC 791.
#pragma once

#include <optional>
#include <span>

#include "stack/wire/be.h"

namespace accel {

struct Ipv4Header {
  uint8_t version_ihl;
  uint8_t tos;  ///< DSCP 6, ECN 2 (RFC 2474, RFC 3168)
  Be<uint16_t> total_length;
  Be<uint16_t> id;
  Be<uint16_t> fragment;  ///< flags 3, offset 13 in units of 8
  uint8_t ttl;
  uint8_t protocol;
  Be<uint16_t> checksum;
  std::array<uint8_t, 4> source, destination;
};
static_assert(sizeof(Ipv4Header) == 20 && alignof(Ipv4Header) == 1);

constexpr uint16_t kIpDontFragment = 0x4000;
constexpr uint16_t kIpMoreFragments = 0x2000;
constexpr uint16_t kIpOffsetMask = 0x1fff;

struct Ipv4Info {
  uint8_t header_length = 0;
  uint8_t tos = 0, ttl = 0, protocol = 0;
  uint16_t total_length = 0;
  bool fragment = false;
  bool more_fragments = false;
  uint16_t id = 0;
  uint16_t fragment_offset = 0;  ///< bytes
};

/// Version and lengths of the header alone; whether total_length bytes are there is the caller's to check,
/// since an ICMP error quotes less. nullopt: malformed.
constexpr std::optional<Ipv4Info> parse_ipv4(std::span<const uint8_t> b) {
  if (b.size() < 20 || b[0] >> 4 != 4) return {};
  Ipv4Info i;
  i.header_length = static_cast<uint8_t>((b[0] & 15) * 4);
  i.total_length = get_be16(b, 2);
  if (i.header_length < 20 || i.header_length > b.size() || i.total_length < i.header_length) return {};
  i.tos = b[1];
  i.ttl = b[8];
  i.protocol = b[9];
  i.fragment = (get_be16(b, 6) & (kIpMoreFragments | kIpOffsetMask)) != 0;
  i.more_fragments = (get_be16(b, 6) & kIpMoreFragments) != 0;
  i.fragment_offset = static_cast<uint16_t>((get_be16(b, 6) & kIpOffsetMask) * 8);
  i.id = get_be16(b, 4);
  return i;
}

enum class Ipv4Options : uint8_t { kPlain, kSourceRoute, kMalformed };

/// RFC 791 section 3.1: the bytes behind the first 20 of a header. kSourceRoute: LSRR or SSRR is among them.
constexpr Ipv4Options look_at_ipv4_options(std::span<const uint8_t> options) {
  constexpr uint8_t kEnd = 0, kNothing = 1, kLoose = 131, kStrict = 137;
  bool source_route = false;
  for (size_t at = 0; at < options.size() && options[at] != kEnd;) {
    if (options[at] == kNothing) {
      ++at;
      continue;
    }
    if (options.size() - at < 2) return Ipv4Options::kMalformed;
    const uint8_t length = options[at + 1];
    if (length < 2 || length > options.size() - at) return Ipv4Options::kMalformed;
    source_route |= options[at] == kLoose || options[at] == kStrict;
    at += length;
  }
  return source_route ? Ipv4Options::kSourceRoute : Ipv4Options::kPlain;
}

}  // namespace accel
