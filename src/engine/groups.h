// Multicast as a UDP socket has joined it. The kernel's socket below has the memberships: IGMP and MLD are
// the kernel's, and it says what there is.
#pragma once

#include <vector>

#include "base/ip.h"

namespace accel {

/// A group on a device, with its source filter (RFC 3376 section 3.1).
struct GroupMembership {
  IpAddress group;
  int ifindex = 0;
  bool exclude = true;             ///< else `sources` alone may send
  std::vector<IpAddress> sources;  ///< that may not
};

struct Groups {
  std::vector<GroupMembership> memberships;
  bool all_v4 = true, all_v6 = true;  ///< IP_MULTICAST_ALL, IPV6_MULTICAST_ALL
  bool taken = false;                 ///< the devices are to bring them; else the kernel's socket has them
};

}  // namespace accel
