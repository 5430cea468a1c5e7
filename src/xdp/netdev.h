// What must be known of a netdev before sockets are bound to its queues.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/module_fd.h"
#include "stack/port.h"

namespace accel::xdp {

struct Netdev {
  PortInfo info;  ///< name, ifindex, mac, mtu, queues_total (receive queues); tso, tso_max: of a
                  ///< SegmentSocket beside AF_XDP; kernel_has_stamps
  /// The generic hook is faster than the driver's own. A veth device gets its frames as skbs: its own XDP
  /// makes a page of each, which then has to be freed, and shows a burst's frames only when the last is
  /// through.
  bool generic_is_faster = false;
  bool veth = false;
};

/// Errors: ENOENT, ENOTSUP (not Ethernet), the kernel's.
Result<Netdev> describe_netdev(const std::string& name, std::string* why);

/// The devices' counts of the thread's network namespace. It stays open, since a thread of the library's that
/// opened it each time would have the program's lowest free number meanwhile.
Fd open_device_table();
/// By the device, as it counts them itself. {}: not to be found out.
std::optional<uint64_t> frames_received(const Fd& table, const std::string& name);

}  // namespace accel::xdp
