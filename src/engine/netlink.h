// What the kernel knows of the network, by rtnetlink (libnl-3): snapshots, changes as they happen, single
// questions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ip.h"
#include "base/result.h"
#include "stack/stack.h"

struct nl_sock;

namespace accel {

struct Link {
  int ifindex = 0;
  std::string name;
  std::string kind;  ///< "veth", "vlan", "bond" ...; "" for a physical device
  MacAddress mac{};
  uint32_t mtu = 1500;
  int master = 0;
  int lower =
      0;  ///< of a VLAN or macvlan: the device that carries its frames, where that is in this namespace
  uint16_t vlan =
      0;  ///< of a VLAN: the tag that makes its frames; 0: none, or it takes more (802.1ad, priorities)
  bool up = false;
  bool loopback = false;
  bool ethernet = false;
  bool passed_by = false;  ///< the worker's: frames come to it past the generic XDP hook (Reason::redirected)
  bool operator==(const Link&) const = default;
};

struct LocalAddress {
  int ifindex = 0;
  IpAddress address;
  bool usable = true;  ///< not tentative, not a duplicate (RFC 4862)
  bool operator==(const LocalAddress&) const = default;
};

struct Neighbour {
  std::optional<MacAddress> mac;
  bool stale = false;  ///< the kernel would probe it when it is used
};
using NeighbourKey = std::pair<int, IpAddress>;  ///< ifindex, address

/// A next hop of a route of the main table, or a row of the local one.
struct KernelRoute {
  IpAddress prefix;
  uint8_t prefix_length = 0;  ///< of the 128 bits, as RouteEntry
  int ifindex = 0;
  IpAddress gateway;
  uint32_t mtu = 0;  ///< 0: the device's
  uint32_t priority = 0;
  RouteKind kind = RouteKind::kUnicast;
  RouteMetrics metrics;
  bool operator==(const KernelRoute&) const = default;
};

/// The tables as last read. Under the worker's lock.
struct Network {
  std::map<int, Link> links;
  std::vector<LocalAddress> addresses;
  std::vector<KernelRoute> routes;
  std::map<NeighbourKey, Neighbour> neighbours;
  bool policy_routing =
      false;              ///< rules beyond the kernel's own, or routes by source: the tables do not tell all
  bool own_first = true;  ///< no rule stands before that of the kernel's local table

  const Link* link(int ifindex) const {
    auto found = links.find(ifindex);
    return found == links.end() ? nullptr : &found->second;
  }
  /// One of the host's own that may be sent from, on whatever device.
  bool has_address(const IpAddress& address) const {
    return std::any_of(addresses.begin(), addresses.end(),
                       [&](const LocalAddress& a) { return a.usable && a.address == address; });
  }
  /// One that sockets are reached at from beyond the link.
  bool has_address(int ifindex) const {
    return std::any_of(addresses.begin(), addresses.end(), [ifindex](const LocalAddress& a) {
      return a.ifindex == ifindex && a.usable && !a.address.is_link_local();
    });
  }
};

/// A question as connect(2) would ask it.
struct RouteQuestion {
  IpAddress destination;
  IpAddress source;  ///< any(): the kernel chooses
  int ifindex = 0;
  uint32_t mark = 0;
  uint8_t tos = 0;
  auto operator<=>(const RouteQuestion&) const = default;
};

enum class RouteType : uint8_t { kUnicast, kLocal, kBroadcast, kMulticast, kUnusual };

struct RouteAnswer {
  RouteType type = RouteType::kUnicast;
  int ifindex = 0;
  IpAddress gateway;  ///< any(): on link
  IpAddress source;
  uint32_t mtu = 0;         ///< 0: the device's
  bool mtu_locked = false;  ///< "mtu lock"
  RouteMetrics metrics;
};

struct NeighbourEvent {
  int ifindex = 0;
  IpAddress address;
  Neighbour now;
  bool failed = false;  ///< the kernel tried and got no answer
};

/// What read_changes() found.
struct NetworkChanges {
  bool links = false;
  bool addresses = false;
  bool routes = false;
  bool neighbours = false;  ///< events were lost: read them all again
  bool source_rules = false;
  std::vector<NeighbourEvent> events;
  bool any() const { return links || addresses || routes || neighbours || source_rules || !events.empty(); }
};

/// What stands for the network namespace of a socket; 0: not to be known.
uint64_t network_of(int socket);

class Netlink {
 public:
  static Result<std::unique_ptr<Netlink>> open();
  ~Netlink();

  // ---- snapshots; by one thread at a time: the opener, then housekeeping ----
  Result<void> read_links(std::map<int, Link>& out);
  Result<void> read_addresses(std::vector<LocalAddress>& out);
  Result<void> read_routes(std::vector<KernelRoute>& out, bool& policy_routing, bool& own_first);
  Result<void> read_neighbours(std::map<NeighbourKey, Neighbour>& out);
  Result<void> read_all(Network& out);

  // ---- changes; housekeeping ----
  int event_fd() const;
  NetworkChanges read_changes();

  // ---- questions; under the worker's lock ----
  /// The kernel's answer for a flow. Errors: what connect(2) would say (ENETUNREACH, EHOSTUNREACH, EACCES
  /// ...).
  Result<RouteAnswer> ask_route(const RouteQuestion& question);
  /// The addresses as of now: housekeeping is a little behind.
  Result<void> ask_addresses(std::vector<LocalAddress>& out);
  /// Has the kernel resolve or probe a neighbour; the answer comes as a change.
  void resolve(int ifindex, const IpAddress& address);

  /// In a forked child: the descriptors are closed, nothing else.
  void abandon_in_child();

 private:
  Netlink() = default;
  nl_sock* questions_ = nullptr;
  nl_sock* snapshots_ = nullptr;
  nl_sock* events_ = nullptr;
  uint32_t asked_ = 0;  ///< questions so far
};

}  // namespace accel
