#include "engine/path_selector.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/config.h"
#include "base/own_table.h"
#include "base/proc.h"

namespace accel {
namespace {

/// Would a socket bound to `local` take what is sent to `address`?
bool takes(const IpAddress& local, bool v6_only, const IpAddress& address) {
  if (local == IpAddress::any_v4()) return address.is_v4();
  if (local == IpAddress::any_v6()) return !address.is_v4() || !v6_only;
  return local == address;
}

bool forwards_groups(const std::string& device) {
  bool forwards = false;
  in_own_table([&] {
    for (const char* family : {"ipv4", "ipv6"}) {
      const std::string path = std::string("/proc/sys/net/") + family + "/conf/" + device + "/mc_forwarding";
      forwards |= sysctl(path.c_str(), 0) != 0;
    }
  });
  return forwards;
}

}  // namespace

PathChoice kernel_path(Reason why, uint8_t rule) {
  PathChoice choice;
  choice.path = PathKind::kKernel;
  choice.reason = why;
  if (why == Reason::firewall) choice.detail = rule;
  return choice;
}

PathChoice PathSelector::by_configuration(Role role, const Endpoint& endpoint) {
  if (config().misread) return kernel_path(Reason::misread);
  if (config().path_for(role, endpoint) != Path::kKernel) return {};
  return kernel_path(config().settings.path == Path::kKernel ? Reason::path_setting : Reason::rule);
}

PathChoice PathSelector::filtered(const FilteredFlow& flow, Instant now) {
  if (!filter_.accepts_all(flow.ifindex) && interfaces_.may_have_port(flow.ifindex))
    return filter_.judge(flow, now);
  PathChoice choice;
  choice.reason = Reason::accelerated;
  return choice;
}

void PathSelector::refresh_filter(Instant now, Duration between_looks) {
  if (interfaces_.barred() == Reason::accelerated) filter_.refresh(now, between_looks);
}

PathChoice PathSelector::choose(const FlowRequest& request, bool needs_all_queues, Instant now) {
  const IpAddress& to = request.remote.address;
  if (auto ruled = by_configuration(request.role, request.remote); ruled.reason != Reason::not_decided)
    return ruled;
  if (to.is_loopback() || to.is_any()) return kernel_path(Reason::loopback);
  const bool to_group = to.is_multicast() && request.role == Role::kUdpSender;
  if (to.is_multicast() && !to_group) return kernel_path(Reason::multicast);
  const IpAddress from = request.local.address.is_any() ? IpAddress{} : request.local.address;
  auto answer = route_to({to, from, request.bound_ifindex, request.mark, request.tos});
  if (!answer) return kernel_path(Reason::no_route);
  switch (answer->type) {
    case RouteType::kUnicast:
      break;
    case RouteType::kLocal:
      return kernel_path(Reason::local_address);
    case RouteType::kBroadcast:
      return kernel_path(Reason::broadcast);
    case RouteType::kMulticast:
      if (!to_group || routes_groups(answer->ifindex, now)) return kernel_path(Reason::multicast);
      break;
    case RouteType::kUnusual:
      return kernel_path(Reason::route_unusual);
  }
  const auto metrics = interfaces_.metrics_by(answer->metrics);
  const uint8_t hops = answer->metrics.hop_limit;
  // UDP's is the socket's, or the default.
  if (!metrics || (request.role != Role::kTcpClient && hops != 0 && hops != kDefaultHopLimit))
    return kernel_path(Reason::route_unusual);
  PathChoice choice;
  choice.route.source = request.local.address.is_any() ? answer->source : request.local.address;
  FilteredFlow flow;
  flow.protocol = request.role == Role::kTcpClient ? Protocol::kTcp : Protocol::kUdp;
  flow.local = {choice.route.source, request.local.port};
  flow.remote = request.remote;
  flow.active = request.role != Role::kUdpConnect;
  flow.routed = true;
  flow.ifindex = answer->ifindex;
  flow.mark = request.mark;
  if (PathChoice refused = filtered(flow, now); refused.reason != Reason::accelerated) return refused;
  const bool opens = request.role == Role::kTcpClient || request.role == Role::kUdpConnect ||
                     request.role == Role::kUdpSender;
  auto id = interfaces_.of(answer->ifindex, &choice.reason, now,
                           opens ? PortOpening::Need::kIfItLives : PortOpening::Need::kNow);
  if (!id) return kernel_path(choice.reason);
  const PortInfo& port = *slots_.info_of(*id);
  if (needs_all_queues && steering_.barred()) return kernel_path(Reason::handler);
  if (needs_all_queues && port.queues_held < port.queues_total) return kernel_path(Reason::queues_elsewhere);
  if (request.looped && members_.may_have(port.ifindex, to, own_network_))
    return kernel_path(Reason::multicast);
  choice.path = slots_[*id].opened.kind;
  choice.reason = Reason::accelerated;
  choice.route.interface = *id;
  choice.route.next_hop = to_group || answer->gateway.is_any() ? to : answer->gateway;
  choice.route.mtu = interfaces_.mtu_by(*id, answer->mtu);
  choice.route.mtu_locked = answer->mtu_locked;
  choice.route.metrics = *metrics;
  return choice;
}

/// What `address` on the device brings.
void PathSelector::cover(const BoundEnd& end, int ifindex, const IpAddress& address, Instant now,
                         Coverage& so_far) {
  if (end.bound_ifindex && end.bound_ifindex != ifindex) return;
  // Before the device's port is opened: it would hold queues that no flow uses.
  FilteredFlow flow;
  flow.protocol = end.protocol;
  flow.local = {address, end.local.port};
  flow.remote = end.remote;
  flow.ifindex = ifindex;
  if (const PathChoice refused = filtered(flow, now); refused.reason != Reason::accelerated) {
    if (so_far.why != Reason::port_opening) so_far.why = refused.reason;
    so_far.rule = refused.detail;
    return;
  }
  Reason reason = Reason::no_port;
  auto id = interfaces_.of(ifindex, &reason, now);
  if (!id) {
    const bool known = so_far.why == Reason::port_opening || so_far.why == Reason::firewall;
    const bool tells = reason != Reason::no_port && reason != Reason::loopback;
    if (reason == Reason::port_opening || (tells && !known)) so_far.why = reason;
    return;
  }
  const PortInfo& port = *slots_.info_of(*id);
  FlowKey key{end.protocol, {address, end.local.port}, {}};
  // A connected key holds on all queues of the device, also those whose frames we would not see.
  if (port.queues_held == port.queues_total) key.remote = end.remote;
  const SteeredKey entry{*id, key};
  if (std::find(so_far.keys.begin(), so_far.keys.end(), entry) == so_far.keys.end())
    so_far.keys.push_back(entry);
}

/// A multicast router's device. Asked for each datagram, so the answer is kept for a second.
bool PathSelector::routes_groups(int ifindex, Instant now) {
  if (router_.ifindex != ifindex || now >= router_.until) {
    const Link* link = network_.link(ifindex);
    router_ = {ifindex, link == nullptr || forwards_groups(link->name), now + 1s};
  }
  return router_.is_one;
}

/// A multicast router passes them on, and the devices above with MAC addresses of their own (macvlan) have
/// copies.
bool PathSelector::others_have_groups(const Link& link) const {
  if (forwards_groups(link.name)) return true;
  return std::any_of(network_.links.begin(), network_.links.end(), [&](const auto& other) {
    return other.second.lower == link.ifindex && other.second.kind != "vlan";
  });
}

void PathSelector::cover_groups(const BoundEnd& end, Instant now, Coverage& so_far) {
  int looked_at = 0;
  bool usable = false;
  for (const GroupMembership& m : end.groups.memberships) {
    if (!takes(end.local.address, end.v6_only, m.group)) continue;
    if (end.bound_ifindex != 0 && end.bound_ifindex != m.ifindex) continue;
    if (m.ifindex != std::exchange(looked_at, m.ifindex)) {
      const Link* link = network_.link(m.ifindex);
      usable = link && carries_frames(*link) && !others_have_groups(*link);
    }
    if (usable) cover(end, m.ifindex, m.group, now, so_far);
  }
}

PathSelector::Coverage PathSelector::coverage(const BoundEnd& end, Instant now) {
  Coverage covered;
  const IpAddress& local = end.local.address;
  if (local.is_loopback()) {
    covered.why = Reason::loopback;
    return covered;
  }
  refresh_filter(now);
  if (local.is_multicast()) {
    covered.why = Reason::multicast;
    if (end.groups.taken) cover_groups(end, now, covered);
    return covered;
  }
  bool elsewhere = false;  // an address of this host that is on no device with frames (lo, dummy)
  for (const LocalAddress& a : network_.addresses) {
    if (!a.usable || !takes(local, end.v6_only, a.address) || a.address.is_loopback()) continue;
    const Link* link = network_.link(a.ifindex);
    if (link && carries_frames(*link))
      cover(end, a.ifindex, a.address, now, covered);
    else if (!local.is_any())
      elsewhere = true;
  }
  if (elsewhere && covered.keys.empty())  // frames to it may come in anywhere
    for (const auto& [ifindex, link] : network_.links)
      if (link.up && carries_frames(link)) cover(end, ifindex, local, now, covered);
  if (end.groups.taken) cover_groups(end, now, covered);
  return covered;
}

}  // namespace accel
