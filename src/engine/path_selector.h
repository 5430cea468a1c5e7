// Which path a flow takes, and why: configuration, then the kernel's routing, the host's packet filters, and
// the port of the route's device.
#pragma once

#include <vector>

#include "base/instant.h"
#include "engine/group_members.h"
#include "engine/groups.h"
#include "engine/interfaces.h"
#include "engine/lock.h"
#include "engine/netlink.h"
#include "engine/packet_filter.h"
#include "engine/path.h"
#include "engine/route_cache.h"
#include "engine/steering.h"

namespace accel {

/// What a listener or bound UDP socket is bound to.
struct BoundEnd {
  Protocol protocol = Protocol::kTcp;
  Endpoint local, remote;
  bool v6_only = false;
  int bound_ifindex = 0;  ///< SO_BINDTODEVICE
  Groups groups;          ///< of a UDP socket
};

/// `rule`: with Reason::firewall, as PathChoice::detail.
PathChoice kernel_path(Reason why, uint8_t rule = 0);

class PathSelector {
 public:
  PathSelector(const Network& network, PacketFilter& filter, Interfaces& interfaces, PortSlots& slots,
               Steering& steering)
      : network_(network), filter_(filter), interfaces_(interfaces), slots_(slots), steering_(steering) {}
  /// `own_network`: network_of().
  void begin(Netlink& netlink, uint64_t own_network) {
    netlink_ = &netlink;
    own_network_ = own_network;
  }
  void abandon_in_child() ACCEL_REQUIRES(worker_lock) { members_.abandon(); }

  /// Reason::not_decided: it leaves the choice to the rest.
  static PathChoice by_configuration(Role role, const Endpoint& endpoint);
  /// `needs_all_queues`: answers may come by any queue of the device.
  PathChoice choose(const FlowRequest& request, bool needs_all_queues, Instant now)
      ACCEL_REQUIRES(worker_lock);
  /// The kernel's path with the rule, or `accelerated`. Devices that cannot have a port are not asked about.
  PathChoice filtered(const FilteredFlow& flow, Instant now) ACCEL_REQUIRES(worker_lock);
  /// Before new flows are judged.
  void refresh_filter(Instant now, Duration between_looks = 1s) ACCEL_REQUIRES(worker_lock);

  struct Coverage {
    std::vector<SteeredKey> keys;
    Reason why = Reason::no_port;  ///< there are no more of them
    uint8_t rule = 0;
  };
  /// Local addresses that a socket is reached at, with their interfaces.
  Coverage coverage(const BoundEnd& end, Instant now) ACCEL_REQUIRES(worker_lock);

  Result<RouteAnswer> route_to(const RouteQuestion& question) ACCEL_REQUIRES(worker_lock) {
    return routes_.route_to(question, *netlink_);
  }
  /// The network has changed.
  void forget_routes() ACCEL_REQUIRES(worker_lock) { routes_.clear(); }

 private:
  bool routes_groups(int ifindex, Instant now);
  void cover_groups(const BoundEnd& end, Instant now, Coverage& so_far) ACCEL_REQUIRES(worker_lock);
  /// Others than this host's sockets are to have what comes to groups by the device.
  bool others_have_groups(const Link& link) const ACCEL_REQUIRES(worker_lock);
  void cover(const BoundEnd& end, int ifindex, const IpAddress& address, Instant now, Coverage& so_far)
      ACCEL_REQUIRES(worker_lock);

  const Network& network_;
  PacketFilter& filter_;
  Interfaces& interfaces_;
  PortSlots& slots_;
  Steering& steering_;
  Netlink* netlink_ = nullptr;
  uint64_t own_network_ = 0;
  RouteCache routes_;
  GroupMembers members_ ACCEL_GUARDED_BY(worker_lock);
  struct {
    int ifindex = 0;
    bool is_one = false;
    Instant until{};
  } router_;  ///< the device that was asked about last
};

}  // namespace accel
