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
constexpr uint32_t kLeastMtuV6 = 1280;  ///< section 5: of every link
/// More extension headers than this are nobody's honest packet.
constexpr int kMaxExtensionHeaders = 8;

/// Options other than padding that a header may have, and bytes of padding in a row:
/// net.ipv6.max_dst_opts_number, max_hbh_opts_number; RFC 8504 section 5.3.
constexpr int kMaxIpv6Options = 8, kMaxIpv6Padding = 7;

struct Ipv6Info {
  uint32_t header_length = 0;  ///< extension headers included
  uint32_t total_length = 0;   ///< 40 + payload length
  uint8_t tos = 0, ttl = 0, protocol = 0;
  bool fragment =
      false;  ///< then the walk ended behind the fragment header, and `protocol` is what that says
  bool more_fragments = false;
  uint16_t fragment_offset = 0;  ///< bytes
  uint32_t id = 0;
};

/// RFC 8200 section 4.2, as net/ipv6/exthdrs.c ip6_parse_tlv(): the options of a hop-by-hop or destination
/// options header. False: malformed, too many, or one that the sender wants the packet dropped for where it
/// is not known.
constexpr bool ipv6_options_pass(std::span<const uint8_t> options) {
  constexpr uint8_t kPad1 = 0, kPadN = 1, kUnknownAction = 0xc0;
  int known = 0, padding = 0;
  for (size_t at = 0; at < options.size();) {
    if (options[at] == kPad1) {
      ++at;
      if (++padding > kMaxIpv6Padding) return false;
      continue;
    }
    if (options.size() - at < 2) return false;
    const size_t length = options[at + 1] + size_t{2};
    if (length > options.size() - at) return false;
    if (options[at] == kPadN) {
      padding += static_cast<int>(length);
      if (padding > kMaxIpv6Padding) return false;
      for (size_t i = 2; i < length; ++i)
        if (options[at + i] != 0) return false;
    } else {
      padding = 0;
      if ((options[at] & kUnknownAction) != 0 || ++known > kMaxIpv6Options) return false;
    }
    at += length;
  }
  return true;
}

/// Walks hop-by-hop and destination options, atomic fragments (RFC 6946), and routing headers that are used
/// up (RFC 8200 section 4.4). `b` may hold more or less than the packet (an ICMP error quotes less). nullopt:
/// malformed, or to be dropped for its options.
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
    const bool options = (i.protocol == kIpv6HopByHop && first) || i.protocol == kIpv6DestinationOptions;
    const bool fragment = i.protocol == kIpv6Fragment;
    if (!options && !fragment && i.protocol != kIpv6Routing) return i;
    if (walked == kMaxExtensionHeaders || end < i.header_length + 8) return {};
    const size_t at = i.header_length;
    if (i.protocol == kIpv6Routing && b[at + 3] != 0) return {};  // segments left: we forward nothing
    i.protocol = b[at];
    i.header_length += fragment ? 8 : (b[at + 1] + 1u) * 8;
    if (i.header_length > end) return {};
    if (options && !ipv6_options_pass(b.subspan(at + 2, i.header_length - at - 2))) return {};
    if (!fragment) continue;
    const uint16_t where = get_be16(b, at + 2);
    i.fragment_offset = where & 0xfff8;
    i.more_fragments = (where & 1) != 0;
    i.id = get_be32(b, at + 4);
    i.fragment = i.fragment_offset != 0 || i.more_fragments;
    if (i.fragment) return i;
  }
}

}  // namespace accel
