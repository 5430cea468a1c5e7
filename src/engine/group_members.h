// Which multicast groups sockets of this host are members of, by device.
#pragma once

#include <utility>
#include <vector>

#include "base/ip.h"
#include "firewall/netlink_dump.h"

namespace accel {

/// The kernel's lists (net/ipv4/igmp.c, net/ipv6/mcast.c), as of the question: each join and leave is queued
/// to our socket before the call that made it returns. A question is one recvfrom(), and a dump after a
/// change. Kernels before 6.15 tell of no changes, or have no dump for IPv4.
class GroupMembers {
 public:
  /// Whether a socket of this host may be a member: also where the kernel does not tell. `network`: as
  /// network_of(), which the calling thread may have left.
  bool may_have(int ifindex, const IpAddress& group, uint64_t network);
  /// In a forked child.
  void abandon() { changes_.close(); }
  /// Whether the kernel tells.
  static bool are_told();

 private:
  Result<void> begin(uint64_t network);
  Result<void> read();

  firewall::NetlinkSocket changes_;
  std::vector<std::pair<int, IpAddress>> members_;  ///< sorted
  bool known_ = false;                              ///< `members_` is what the kernel has
  const bool are_told_ = are_told();
};

}  // namespace accel
