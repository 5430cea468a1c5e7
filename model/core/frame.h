// Where the headers of a frame are, as the NIC's parser sees them; the Internet checksum.
#pragma once

#include <cstdint>
#include <span>

namespace model {

enum class L3 : uint8_t { kNone = 0, kIpv6 = 1, kIpv4 = 2 };  // the CQE's numbers (MLX5_CQE_L3_HDR_TYPE_*)
enum class L4 : uint8_t { kNone = 0, kTcp = 1, kUdp = 2 };

inline constexpr size_t kEthernetHeader = 14;
inline constexpr size_t kVlanTag = 4;
inline constexpr size_t kMinFrame = 60;  // without FCS
inline constexpr uint16_t kTypeIpv4 = 0x0800, kTypeIpv6 = 0x86dd, kTypeVlan = 0x8100;
inline constexpr uint8_t kProtoTcp = 6, kProtoUdp = 17;

struct Parsed {
  bool vlan = false;
  uint16_t vlan_tci = 0;
  uint16_t type = 0;   // EtherType behind the tag
  uint16_t l3_at = 0;  // offset of the network header
  uint16_t l4_at = 0;  // offset of the transport header, when l4 is not none
  uint32_t end = 0;    // where the IP packet ends; padding follows
  L3 l3 = L3::kNone;
  L4 l4 = L4::kNone;
  uint8_t proto = 0;
  bool fragment = false;  // any fragment: no L4 parse
};

Parsed parse(std::span<const uint8_t> frame);

/// Ones' complement sum of big-endian words, folded to 16 bits; `start` carries an earlier sum.
uint16_t ones_sum(std::span<const uint8_t> bytes, uint32_t start = 0);

/// The transport checksum's sum over pseudo header and segment: 0xffff when the checksum in it is right.
uint16_t transport_sum(std::span<const uint8_t> frame, const Parsed& p);

/// Header checksum of IPv4, and checksum of TCP or UDP, written in place; false where there is none.
bool fill_ip_checksum(std::span<uint8_t> frame, const Parsed& p);
bool fill_transport_checksum(std::span<uint8_t> frame, const Parsed& p);

struct Verdict {
  bool l3_ok = false, l4_ok = false;
};

/// Computed, never assumed. IPv6 has no header checksum: its L3 is good when it parses.
Verdict verify(std::span<const uint8_t> frame, const Parsed& p);

}  // namespace model
