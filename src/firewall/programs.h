// BPF programs, filters and qdiscs beside the packet filter: those of the process's cgroup, and of tc on a
// device. Programs cannot be read, so a flow that one may see is the kernel's.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "firewall/netlink_dump.h"
#include "firewall/packet.h"

namespace accel::firewall {

/// The hooks of the cgroup that have programs that an accelerated socket would pass by. bind() and socket()
/// are made on the kernel's socket all the same, so their programs run.
struct CgroupPrograms {
  bool packets = false;     ///< ingress, egress
  bool connect = false;     ///< connect, getpeername, getsockname; of either family
  bool datagrams = false;   ///< sendmsg, recvmsg
  bool tcp_events = false;  ///< sock_ops
  bool options = false;     ///< getsockopt, setsockopt
  bool operator==(const CgroupPrograms&) const = default;
};

/// The effective programs of this process's cgroup, its ancestors' included. Errors: EPERM. A process that
/// sees no cgroup2 file system is taken to have none.
Result<CgroupPrograms> cgroup_programs();

/// The hook that the flow's packets or calls would meet; nullptr: none.
const char* cgroup_hook_for(const CgroupPrograms& programs, const Question& question);

/// What tc(8) has put on a device that accelerated frames would pass by.
struct TrafficControl {
  bool filters = false;  ///< of clsact or ingress, or programs of tcx
  bool shapes = false;   ///< a qdisc that limits the rate, delays or drops (tbf, htb, netem, ...)
  bool any() const { return filters || shapes; }
  bool operator==(const TrafficControl&) const = default;
};

/// `route`: of NETLINK_ROUTE. Errors: EPERM, where programs of tcx cannot be asked for.
Result<TrafficControl> traffic_control(NetlinkSocket& route, int ifindex);

}  // namespace accel::firewall
