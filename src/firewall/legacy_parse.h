// Tables of iptables-legacy as getsockopt(IPT_SO_GET_ENTRIES) gives them (net/ipv4/netfilter/ip_tables.c),
// into rules.h.
#pragma once

#include <array>

#include "firewall/attributes.h"
#include "firewall/rules.h"

namespace accel::firewall {

struct LegacyTable {
  bool v4 = true;
  std::string name;                 ///< "filter"
  uint32_t hooks = 0;               ///< bits of enum nf_inet_hooks
  std::array<uint32_t, 5> first{};  ///< offsets of each hook's first entry
  Bytes entries;                    ///< ipt_entry or ip6t_entry, one after the other
  bool operator==(const LegacyTable&) const = default;
};

/// Adds the table to `out`. A malformed one becomes a table that no flow is accepted by.
void parse_legacy(const LegacyTable& from, Ruleset& out);

}  // namespace accel::firewall
