// What ingress, TCP and egress hand to each other: a parsed segment on the way in, a header template on the
// way out.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/ip.h"
#include "stack/port.h"

namespace accel {

/// RFC 9293 section 3.1; CWR and ECE are RFC 3168's.
enum TcpFlags : uint8_t {
  kFin = 0x01,
  kSyn = 0x02,
  kRst = 0x04,
  kPsh = 0x08,
  kAck = 0x10,
  kUrg = 0x20,
  kEce = 0x40,
  kCwr = 0x80
};

/// A TCP segment whose lengths and checksum ingress has checked. Numbers in host order.
struct TcpSegmentInfo {
  Endpoint local;
  Endpoint remote;
  uint8_t interface = 0;
  uint8_t flags = 0;
  uint8_t ecn = 0;  ///< the two ECN bits of the IP header
  uint8_t tos = 0;
  uint8_t reserved = 0;    ///< the four bits behind the data offset
  uint16_t ip_header = 0;  ///< bytes of it, right before Packet::data()
  uint32_t seq = 0;
  uint32_t ack = 0;
  uint16_t window = 0;    ///< unscaled
  uint16_t segments = 1;  ///< that came, one right behind the other, and are one here (SegmentRun)
  uint16_t urgent = 0;
  std::span<const uint8_t> options;  ///< unparsed, inside the frame's first buffer
  uint32_t payload_offset =
      0;  ///< from Packet::data() of the first buffer; may lie beyond it only when payload is empty
  uint32_t payload_length =
      0;  ///< over the whole chain; bytes after it (padding of short frames) are already cut off
  uint32_t segment_length = 0;  ///< payload of the longest of `segments`
};

/// Ethernet (with 802.1Q) and IP header of a flow, ready to copy in front of each segment. Made by
/// Core::make_template(); output patches the IP length (and IPv4's ID and header checksum) through finish().
struct HeaderTemplate {
  std::array<uint8_t, 58> bytes{};  ///< Ethernet 14 + VLAN 4 + IPv6 40
  uint8_t length = 0;               ///< bytes in use: where the TCP or UDP header begins
  uint8_t ip_offset = 0;            ///< where the IP header begins
  bool v6 = false;
  uint32_t ip_sum = 0;      ///< IPv4: unfolded sum of the header with total length and ID 0
  uint32_t pseudo_sum = 0;  ///< unfolded sum of addresses and protocol; the L4 length is still to be added
};

}  // namespace accel
