// Ethernet II and 802.1Q.
#pragma once

#include <optional>
#include <span>

#include "stack/wire/be.h"

namespace accel {

struct EthHeader {
  std::array<uint8_t, 6> destination, source;
  Be<uint16_t> type;
};
static_assert(sizeof(EthHeader) == 14 && alignof(EthHeader) == 1);

struct VlanTag {         ///< behind the EtherType kEtherVlan
  Be<uint16_t> control;  ///< priority 3, DEI 1, VLAN 12
  Be<uint16_t> type;
};
static_assert(sizeof(VlanTag) == 4 && alignof(VlanTag) == 1);

constexpr uint16_t kEtherIpv4 = 0x0800;
constexpr uint16_t kEtherIpv6 = 0x86dd;
constexpr uint16_t kEtherVlan = 0x8100;

struct EthInfo {
  uint16_t type = 0;   ///< of what follows
  uint8_t length = 0;  ///< 14 or 18
  uint16_t vlan = 0;   ///< 0: untagged, or tagged for priority only
};

/// nullopt: too short.
constexpr std::optional<EthInfo> parse_eth(std::span<const uint8_t> b) {
  if (b.size() < 14) return {};
  EthInfo e{get_be16(b, 12), 14, 0};
  if (e.type == kEtherVlan) {
    if (b.size() < 18) return {};
    e = {get_be16(b, 16), 18, static_cast<uint16_t>(get_be16(b, 14) & 0xfff)};
  }
  return e;
}

}  // namespace accel
