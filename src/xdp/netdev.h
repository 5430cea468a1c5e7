// What must be known of a netdev before sockets are bound to its queues.
#pragma once

#include <string>

#include "stack/port.h"

namespace accel::xdp {

/// name, ifindex, mac, mtu, queues_total (receive queues); tso, tso_max: of a SegmentSocket beside AF_XDP.
/// Errors: ENOENT, ENOTSUP (not Ethernet), the kernel's.
Result<PortInfo> describe_netdev(const std::string& name, std::string* why);

}  // namespace accel::xdp
