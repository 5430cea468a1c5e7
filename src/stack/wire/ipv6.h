// RFC 8200.
#pragma once

#include <optional>
#include <span>

#include "stack/wire/be.h"

namespace accel {

struct Ipv6Header {
  Be<uint32_t> version_class_flow;  ///< version 4, traffic class 8, flow label 20
  Be<uint16_t> payload_length;
  uint8_t next_header;
  uint8_t hop_limit;
  std::array<uint8_t, 16> source, destination;
};
static_assert(sizeof(Ipv6Header) == 40 && alignof(Ipv6Header) == 1);

constexpr uint8_t kIpv6HopByHop = 0, kIpv6Routing = 43, kIpv6Fragment = 44, kIpv6DestinationOptions = 60;
/// More extension headers than this are nobody's honest packet.
constexpr int kMaxExtensionHeaders = 8;

struct Ipv6Info {
  uint32_t header_length = 0;  ///< extension headers included
  uint32_t total_length = 0;   ///< 40 + payload length
  uint8_t tos = 0, ttl = 0, protocol = 0;
  bool fragment = false;  ///< then the walk ended at the fragment header
};

/// Walks hop-by-hop and destination options, and routing headers that are used up (RFC 8200 section 4.4). `b`
/// may hold more or less than the packet (an ICMP error quotes less). nullopt: malformed.
constexpr std::optional<Ipv6Info> parse_ipv6(std::span<const uint8_t> b) {
  if (b.size() < 40 || b[0] >> 4 != 6) return {};
  Ipv6Info i;
  i.header_length = 40;
  i.total_length = 40u + get_be16(b, 4);
  i.tos = static_cast<uint8_t>(b[0] << 4 | b[1] >> 4);
  i.protocol = b[6];
  i.ttl = b[7];
  const size_t end = b.size() < i.total_length ? b.size() : i.total_length;
  for (int walked = 0;; ++walked) {
    const bool first = i.header_length == 40;
    if (i.protocol == kIpv6Fragment) {
      i.fragment = true;
      return i;
    }
    const bool skip = (i.protocol == kIpv6HopByHop && first) || i.protocol == kIpv6DestinationOptions ||
                      i.protocol == kIpv6Routing;
    if (!skip) return i;
    if (walked == kMaxExtensionHeaders || end < i.header_length + 8) return {};
    const size_t at = i.header_length;
    if (i.protocol == kIpv6Routing && b[at + 3] != 0) return {};  // segments left: we forward nothing
    i.protocol = b[at];
    i.header_length += (b[at + 1] + 1u) * 8;
    if (i.header_length > end) return {};
  }
}

}  // namespace accel
