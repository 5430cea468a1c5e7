// nf_tables' rules as the kernel tells them by netlink (include/uapi/linux/netfilter/nf_tables.h), into
// rules.h.
#pragma once

#include "firewall/attributes.h"
#include "firewall/rules.h"

namespace accel::firewall {

/// Messages of dumps of tables, chains, sets, elements and rules, in this order, are added to `out`. Whatever
/// is malformed or not known becomes something that no flow is accepted by.
void parse_nft(View messages, Ruleset& out);

/// The names of all sets, to ask for their elements.
struct SetName {
  uint8_t family;  ///< NFPROTO_*
  std::string table, set;
};
std::vector<SetName> sets_in(View messages);
/// Whether there is a chain that the kernel calls by itself: without one no packet meets a rule.
bool has_base_chain(View messages);

}  // namespace accel::firewall
