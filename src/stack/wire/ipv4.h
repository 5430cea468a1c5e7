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
  return i;
}

}  // namespace accel
