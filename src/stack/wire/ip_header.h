// A whole IP header without options, of either version, for packets that the kernel or a raw socket routes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ip.h"

namespace accel {

/// What goes before a packet's transport header.
struct IpFields {
  IpAddress from, to;
  uint8_t protocol;
  uint8_t tos = 0, ttl = 64;
};

/// Returns the header's size, 20 or 40. `payload`: bytes behind it. IPv4's total length, ID and checksum stay
/// 0.
size_t put_ip_header(uint8_t* out, const IpFields& fields, size_t payload);

/// The checksum of a packet's transport header, whose own field is 0, in memory order (checksum.h): over the
/// pseudo header of `fields` (RFC 9293 section 3.1, RFC 8200 section 8.1) and all that follows the IP header.
uint16_t transport_checksum(std::span<const uint8_t> packet, const IpFields& fields);

}  // namespace accel
