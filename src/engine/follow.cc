// Following the kernel's network: links, addresses, routes and neighbours as they change.
#include <algorithm>
#include <tuple>
#include <utility>

#include "base/log.h"
#include "engine/process.h"
#include "engine/source_rules.h"

namespace accel {
namespace {

/// Between two looks at neighbours and source rules, of which nothing tells.
constexpr Duration kKeepNeighbours = 5s;
/// Nothing tells that a redirect has gone; a change of links or addresses has it tried again before.
constexpr Duration kNotSoon = 1h;

}  // namespace

/// Housekeeping's, without the lock: it reads the kernel's tables first, then lets the worker have them.
bool Process::follow(NetworkChanges& changes) {
  Network fresh;
  bool links = false, addresses = false, routes = false, resolved = false;
  if (changes.links) links = netlink->read_links(fresh.links).ok();
  if (changes.addresses) addresses = netlink->read_addresses(fresh.addresses).ok();
  // A device that goes takes routes with it without an event for each.
  if (changes.routes || changes.links || changes.addresses)
    routes = netlink->read_routes(fresh.routes, fresh.policy_routing, fresh.own_first).ok();
  if (changes.neighbours) resolved = netlink->read_neighbours(fresh.neighbours).ok();

  const Locked held_here(*this);
  set_pass_now(clock_now());
  if (links) network.links = std::move(fresh.links);
  if (addresses) {
    const auto before = std::exchange(network.addresses, std::move(fresh.addresses));
    follow_addresses(before);
  }
  // With policy routing there are tables that are not read.
  const bool changed = routes && (fresh.policy_routing ||
                                  std::tie(network.routes, network.policy_routing, network.own_first) !=
                                      std::tie(fresh.routes, fresh.policy_routing, fresh.own_first));
  if (routes) {
    network.routes = std::move(fresh.routes);
    network.policy_routing = fresh.policy_routing;
    network.own_first = fresh.own_first;
  }
  if (resolved) {
    network.neighbours = std::move(fresh.neighbours);
    for (InterfaceId id = 0; id < slots.count(); ++id) interfaces.tell_stack_of(id);
  }
  if (links || addresses || routes) paths.forget_routes();
  if (links || addresses || routes) filter.forget_judgements();
  if (links) follow_links();
  if (links || changed) interfaces.tell_routes();  // a device's MTU is its routes', too
  if (links || addresses || changed) follow_routes();
  const bool lost = interfaces.any_lost();
  // Another port of the same device takes rules only once those of the lost one are gone.
  cover_after_loss |= lost;
  if (links || addresses) opening.forget_failures();
  if ((links || addresses) && !lost) cover_flows();
  if (changes.source_rules) follow_source_rules();
  neighbours.follow(changes);
  if (PacketQueue& frames = worker.stack->frames_for_kernel(); !frames.empty()) give_to_kernel(frames);
  work(pass_now());
  return lost;
}

/// Open connections follow their routes, as ip_queue_xmit() looks for one again: to another next hop at once.
/// A connection whose way leads by another device is the kernel's from here on, which has all devices.
/// Without a route it waits for one. So does a connection whose device is down or whose address is gone.
void Process::follow_routes() {
  auto look = [](TcpConn& conn, void* self) ACCEL_REQUIRES(worker_lock) {
    auto& p = *static_cast<Process*>(self);
    p.follow_route(conn);
  };
  worker.stack->tcp().for_each(look, this);
}

void Process::follow_route(TcpConn& conn) {
  // A handshake that cannot go on is tried again by whoever wants it.
  if (!worker.is_open(conn)) return;
  const Endpoint local = worker.stack->tcp().local(conn), remote = worker.stack->tcp().remote(conn);
  const InterfaceId id = worker.stack->tcp().interface(conn);
  const Link* link = network.link(slots[id].ifindex);
  if (!slots.port_of(id) || slots[id].lost || link == nullptr || !link->up ||
      !network.has_address(local.address))
    return;
  auto followed = worker.stack->tcp().follow_route(conn);
  if (followed == Followed::kQuestion) {
    learn_route_of({remote.address, local.address});
    followed = worker.stack->tcp().follow_route(conn);
  }
  if (followed == Followed::kLeaves) hand_backs.add({Protocol::kTcp, local, remote}, Reason::rerouted);
}

void Process::cover_flows() {
  for (auto& flow : flows) (void)cover_again(*flow);
}

/// Connections from an address that the host has lost hear nothing until it is back, as the kernel's. An
/// address that was never the host's own (IP_FREEBIND, a local route) is none that can be lost.
void Process::follow_addresses(const std::vector<LocalAddress>& before) {
  const auto has = [](const std::vector<LocalAddress>& all, const IpAddress& address) {
    return std::any_of(all.begin(), all.end(),
                       [&](const LocalAddress& a) { return a.usable && a.address == address; });
  };
  // The device goes on bringing its frames: the kernel would reset it once the address is back.
  for (InterfaceId id = 0; id < slots.count(); ++id) {
    if (!slots.port_of(id)) continue;
    steering.for_each_connection(id, [&](const FlowKey& key) ACCEL_REQUIRES(worker_lock) {
      const bool here = has(network.addresses, key.local.address);
      if (here || has(before, key.local.address)) worker.stack->tcp().set_deaf(key, !here);
    });
  }
}

void Process::tell_of_link(InterfaceId id, const Link& link) {
  if (PortLife* port = slots[id].life()) port->address_changed(link.mac);
  interfaces.tell_stack_of(id);
}

void Process::follow_links() {
  for (InterfaceId id = 0; id < slots.count(); ++id) {
    if (!slots.port_of(id)) continue;
    const Link* link = network.link(slots[id].ifindex);
    if (!link || link->name != slots.info_of(id)->name)
      interfaces.lose(id, "the netdev is gone", pass_now());
    else if (link->mtu > slots[id].mtu_most())
      interfaces.lose(id, "its MTU has grown beyond its buffers, it is opened anew", pass_now());
    else if (slots[id].vlan && !interfaces.has_address_of_below(*link))
      interfaces.lose(id, "it has another MAC address than the device below", pass_now());
    else
      tell_of_link(id, *link);
  }
}

/// The kernel tells of rp_filter's changes alone (RTNLGRP_IPV4_NETCONF), of the others it does not.
void Process::follow_source_rules() {
  for (InterfaceId id = 0; id < slots.count(); ++id)
    if (slots.port_of(id) &&
        read_source_rules(slots.info_of(id)->name) != worker.stack->interface(id).sources)
      interfaces.tell_stack_of(id);
}

void Process::look_at_ports() {
  for (InterfaceId id = 0; id < slots.count(); ++id) {
    PortLife* port = slots[id].life();
    if (!port) continue;
    port->count(counters);
    if (!port->alive())
      interfaces.lose(id, port->failure().c_str(), pass_now());
    else if (look_for_passing_by(id); slots[id].lost)
      continue;
    else if (worker.stack->interface(id).tso && !slots[id].port()->info().tso)
      interfaces.tell_stack_of(id);
  }
}

/// What the XDP program does not see the kernel gets, which would reset each connection. So they are the
/// kernel's from here on; a device whose generic hook is passed by is tried with the driver's.
void Process::look_for_passing_by(InterfaceId id) {
  PortSlot& slot = slots[id];
  if (!slot.life()->is_passed_by()) {
    slot.passed_by = 0;
    return;
  }
  if (++slot.passed_by < 2) return housekeeping.needed();
  slot.passed_by = 0;
  cover_after_loss = redirected = true;
  if (opening.note_passed_by(slot.ifindex))
    return interfaces.lose(id, "frames come past its generic XDP hook (a tc redirect), native XDP is tried",
                           pass_now());
  opening.note_failure(slot.ifindex, Reason::redirected, pass_now() + kNotSoon);
  interfaces.lose(id, "frames come past its XDP hook (a tc redirect), its traffic stays on the kernel",
                  pass_now());
}

void Process::tick(Instant now, bool chores) {
  set_pass_now(now);
  if (chores) {
    look_at_ports();
    look_for_misdirected(now);
    follow_firewall();
  }
  // A thread that is asleep may not be the one that watches the deadlines.
  if (next_deadline() <= now) {
    counters.add(Counter::housekeeping_polls);
    poll(now);
  }
  sleepers.end_overdue_charge(now);
  if (now - neighbours_kept >= kKeepNeighbours) {
    neighbours_kept = now;
    follow_source_rules();
    neighbours.keep();
  }
  work(now);
}

}  // namespace accel
