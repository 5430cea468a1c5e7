// Reading the rules of the network namespace that the calling thread is in.
#pragma once

#include <vector>

#include "base/result.h"
#include "firewall/legacy_parse.h"
#include "firewall/netlink_dump.h"

namespace accel::firewall {

/// Whether the kernel has the other end of a netlink protocol: to ask for one that is not there would have it
/// load a module.
bool netlink_protocol_exists(int protocol);

/// The messages of parse_nft(); none where no chain hangs on a hook. Errors: EPERM without CAP_NET_ADMIN.
Result<Bytes> read_nft(NetlinkSocket& netfilter);

/// All tables of iptables-legacy, those without rules included; counters are 0. Errors: EPERM, EACCES.
Result<std::vector<LegacyTable>> read_legacy();

}  // namespace accel::firewall
