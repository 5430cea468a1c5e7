// Which path a flow takes, and why: configuration, then the kernel's routing, then the port of the
// route's device.
#include <algorithm>
#include <cstring>

#include "base/config.h"
#include "base/log.h"
#include "engine/source_rules.h"
#include "engine/worker.h"

namespace accel {
namespace {

PathChoice kernel(Reason why) {
  PathChoice choice;
  choice.path = PathKind::kKernel;
  choice.reason = why;
  return choice;
}

void log_failure(const Link& link, const OpenedPort& opened) {
  const Settings& settings = config().settings;
  const bool wanted = settings.path == Path::kStack || settings.require != Require::kOff;
  log(wanted ? LogLevel::kWarning : LogLevel::kInfo, "%s: no %s port, its traffic stays on the kernel: %s",
      link.name.c_str(), path_name(opened.kind), opened.detail.c_str());
}

}  // namespace

PathChoice Engine::Impl::by_configuration(Role role, const Endpoint& endpoint) const {
  if (config().misread) return kernel(Reason::misread);
  if (config().path_for(role, endpoint) != Path::kKernel) return {};
  return kernel(config().settings.path == Path::kKernel ? Reason::path_setting : Reason::rule);
}

/// The answer is what is known before a port is opened.
bool Engine::Impl::may_have_port(int ifindex) const {
  const Link* link = network.link(ifindex);
  return ports_barred == Reason::accelerated && link && !link->loopback && link->up &&
         carries_frames(*link) && config().device_allowed(link->name);
}

/// Of those that could have a port.
bool Engine::Impl::some_device_allowed() const {
  return std::any_of(network.links.begin(), network.links.end(), [](const auto& entry) {
    return carries_frames(entry.second) && config().device_allowed(entry.second.name);
  });
}

Result<InterfaceId> Engine::Impl::interface_of(int ifindex, Reason* why, Need need) {
  if (const InterfaceId id = slots.find(ifindex); id != kAnyInterface) return id;
  auto refuse = [&](Reason reason, int number) -> Result<InterfaceId> {
    *why = reason;
    return err(number);
  };
  if (ports_barred != Reason::accelerated) return refuse(ports_barred, EPERM);
  const Link* link = network.link(ifindex);
  if (link && link->loopback) return refuse(Reason::loopback, EOPNOTSUPP);
  if (!link || !link->up || !carries_frames(*link)) return refuse(Reason::no_port, EOPNOTSUPP);
  if (!config().device_allowed(link->name))
    return refuse(some_device_allowed() ? Reason::device_setting : Reason::no_such_device, EOPNOTSUPP);
  if (const auto failed = opening.failure(ifindex, pass_now)) return refuse(*failed, EOPNOTSUPP);
  if (auto lower = port_below(*link))
    if (auto id = slots.free_slot(ifindex)) return install_vlan(*id, *link, *lower);
  if (Engine::in_handler()) return refuse(Reason::handler, EOPNOTSUPP);
  if (!waits_for_ports()) {
    request_port(ifindex, need);
    return refuse(Reason::port_opening, EAGAIN);
  }
  // The kernel takes no XDP program on a device below one that has one, so that one's port comes first.
  if (Reason ignored; link->lower != 0 && network.has_address(link->lower))
    (void)interface_of(link->lower, &ignored);
  const auto id = slots.free_slot(ifindex);
  if (!id) return refuse(Reason::resources, ENFILE);

  OpenedPort opened = opening.open(*link, *pool);
  if (!opened.port) {
    note_failure(*link, opened);
    return refuse(opened.reason, EOPNOTSUPP);
  }
  install(*id, std::move(opened), ifindex);
  return *id;
}

void Engine::Impl::note_failure(const Link& link, const OpenedPort& opened) {
  opening.note_failure(link.ifindex, opened.reason, pass_now);
  log_failure(link, opened);
  give_up_memory();
}

void Engine::Impl::install(InterfaceId id, OpenedPort opened, int ifindex) {
  slots.set_port(id, std::move(opened), ifindex);
  steering.begin(id);
  tell_stack_of(id);
  tell_routes();
  sleepers.add_port(id, pass_now);
}

InterfaceId Engine::Impl::install_vlan(InterfaceId id, const Link& link, InterfaceId lower) {
  slots.set_vlan(id, link, lower);
  steering.begin(id);
  tell_stack_of(id);
  tell_routes();
  return id;
}

std::optional<InterfaceId> Engine::Impl::port_below(const Link& vlan) {
  const Link* lower = vlan.vlan != 0 ? network.link(vlan.lower) : nullptr;
  // Frames to an address of its own are another host's to the lower port.
  if (!lower || !lower->up || !carries_frames(*lower) || !has_address_of_below(vlan)) return {};
  for (InterfaceId id = 0; id < slots.count(); ++id)
    if (slots[id].ifindex == vlan.lower && slots[id].port())
      return slots[id].port()->info().vlan_tags ? std::optional(id) : std::nullopt;
  const auto id = slots.free_slot(vlan.lower);
  if (!id) return {};
  OpenedPort opened = open_tagging_port(*lower, *pool);
  if (!opened.port) return {};
  install(*id, std::move(opened), vlan.lower);
  return id;
}

void Engine::Impl::tell_stack_of(InterfaceId id) {
  if (!slots.port_of(id)) return;
  const PortInfo& port = slots.port_of(id)->info();
  const Link* link = network.link(slots[id].ifindex);
  Interface info;
  info.mac = link ? link->mac : port.mac;
  info.mtu = link ? std::min(link->mtu, slots[id].opened.mtu_most) : port.mtu;
  info.tx_checksum = port.tx_checksum;
  info.tso = port.tso && config().settings.tso;
  info.tso_max = port.tso_max;
  info.kernel_sees_errors = port.kernel_sees_errors;
  info.up = link && link->up;
  if (const auto& vlan = slots[id].vlan) {
    info.lower = vlan->lower;
    info.vlan = vlan->tag;
  }
  info.sources = read_source_rules(slots.info_of(id)->name);
  stack->set_interface(id, info);
  for (const auto& [key, neighbour] : network.neighbours)
    if (key.first == slots[id].ifindex && neighbour.mac) stack->set_neighbour(id, key.second, neighbour.mac);
}

/// `route`: the route's own MTU, 0: it has none.
uint32_t Engine::Impl::mtu_by(InterfaceId id, uint32_t route) const {
  const uint32_t device = id != kAnyInterface ? stack->interface(id).mtu : 0;
  return route ? std::min(route, device) : device;
}

void Engine::Impl::tell_routes() {
  std::vector<RouteEntry> table;
  table.reserve(network.routes.size());
  for (const KernelRoute& r : network.routes) {
    if (!network.own_first) break;  // a rule may lead to another host with an address of this one
    RouteEntry entry{r.prefix, r.prefix_length, slots.find(r.ifindex), r.gateway, 0, r.kind};
    entry.mtu = mtu_by(entry.interface, r.mtu);
    table.push_back(entry);
  }
  stack->set_routes(std::move(table), network.policy_routing);
}

/// With policy routing the tables do not tell the way back, nor whether a source is one: the kernel is asked,
/// as it is for connect().
void Engine::Impl::answer_route_questions(Instant now) {
  for (const auto& question : stack->take_route_questions()) learn_route_of(question);
  stack->resume(now);
}

void Engine::Impl::learn_route_of(const Stack::RouteQuestion& question) {
  RouteQuestion asked{question.remote, question.local, 0, 0, 0};
  if (question.local.is_multicast()) asked.source = {};
  const auto answer = route_cache.route_to(asked, *netlink);
  RouteEntry entry{question.remote, 128, kAnyInterface, {}, 0, RouteKind::kUnreachable};
  if (answer) {
    entry.interface = slots.find(answer->ifindex);
    entry.gateway = answer->gateway;
    entry.mtu = mtu_by(entry.interface, answer->mtu);
    entry.kind = answer->type == RouteType::kUnicast   ? RouteKind::kUnicast
                 : answer->type == RouteType::kLocal   ? RouteKind::kLocal
                 : answer->type == RouteType::kUnusual ? RouteKind::kOther
                                                       : RouteKind::kBroadcast;
  }
  stack->learn_route(question, entry);
}

void Engine::Impl::lose_port(InterfaceId id, const char* why) {
  PortSlot& slot = slots[id];
  log(LogLevel::kWarning, "%s: port lost: %s", slots.info_of(id)->name.c_str(), why);
  counters.add(Counter::port_errors);
  if (!slot.vlan) sleepers.remove_port(id, pass_now);
  for (InterfaceId above = 0; above < slots.count(); ++above)
    if (slots[above].vlan && slots[above].vlan->lower == id && !slots[above].lost) lose_port(above, why);
  // The port stays with its rules until the connections are the kernel's.
  slot.lost = true;
  lost_untold = true;
}

void Engine::Impl::close_port(InterfaceId id) {
  if (slots[id].opened.port) sleepers.remove_port(id, pass_now);
  stack->remove_interface(id);
  slots.clear(id);
  tell_routes();
  give_up_memory();
}

/// Its queues would bring nothing, and cost memory and polls; it is tried again as one that could not be
/// opened.
void Engine::Impl::give_up_barren(InterfaceId id, Errno why) {
  if (why == err(EEXIST) || !slots[id].port() || steering.has_steered(id)) return;
  log(LogLevel::kWarning, "%s: its only flow rule is refused (%s): its queues are given back",
      slots[id].opened.port->info().name.c_str(), strerrordesc_np(static_cast<int>(why)));
  opening.note_failure(slots[id].ifindex, Reason::steering_failed, pass_now);
  close_port(id);
}

PathChoice Engine::Impl::choose(const FlowRequest& request, bool needs_all_queues) {
  const IpAddress& to = request.remote.address;
  if (auto ruled = by_configuration(request.role, request.remote); ruled.reason != Reason::not_decided)
    return ruled;
  if (to.is_loopback() || to.is_any()) return kernel(Reason::loopback);
  if (to.is_multicast()) return kernel(Reason::multicast);
  const IpAddress from = request.local.address.is_any() ? IpAddress{} : request.local.address;
  auto answer = route_cache.route_to({to, from, request.bound_ifindex, request.mark, request.tos}, *netlink);
  if (!answer) return kernel(Reason::no_route);
  switch (answer->type) {
    case RouteType::kUnicast:
      break;
    case RouteType::kLocal:
      return kernel(Reason::local_address);
    case RouteType::kBroadcast:
      return kernel(Reason::broadcast);
    case RouteType::kMulticast:
      return kernel(Reason::multicast);
    case RouteType::kUnusual:
      return kernel(Reason::route_unusual);
  }
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
  if (PathChoice refused = filtered(flow); refused.reason != Reason::accelerated) return refused;
  const bool opens = request.role == Role::kTcpClient || request.role == Role::kUdpConnect ||
                     request.role == Role::kUdpSender;
  auto id = interface_of(answer->ifindex, &choice.reason, opens ? Need::kIfItLives : Need::kNow);
  if (!id) return kernel(choice.reason);
  const PortInfo& port = *slots.info_of(*id);
  if (needs_all_queues && steering.barred()) return kernel(Reason::handler);
  if (needs_all_queues && port.queues_held < port.queues_total) return kernel(Reason::queues_elsewhere);
  choice.path = slots[*id].opened.kind;
  choice.reason = Reason::accelerated;
  choice.route.interface = *id;
  choice.route.next_hop = answer->gateway.is_any() ? to : answer->gateway;
  choice.route.mtu = mtu_by(*id, answer->mtu);
  choice.route.mtu_locked = answer->mtu_locked;
  return choice;
}

PathChoice Engine::choose(Pass& pass, const FlowRequest& request) {
  Impl& w = Impl::of(pass);
  w.refresh_filter();
  return w.choose(request, request.role == Role::kTcpClient);
}

PathChoice Engine::choose_udp_destination(Pass& pass, const FlowRequest& request) {
  Impl& w = Impl::of(pass);
  return w.choose(request, false);
}

bool Engine::is_of_our_network(int socket) const { return network_of(socket) == impl_->own_network; }

bool Engine::has_address(Pass& pass, const IpAddress& address) const {
  return Impl::of(pass).network.has_address(address);
}

Result<TcpConn*> Engine::connect(Pass& pass, PathChoice& choice, const Endpoint& local,
                                 const Endpoint& remote, const TcpSettings& settings, void* owner) {
  Impl& w = Impl::of(pass);
  const InterfaceId id = choice.route.interface;
  const FlowKey key{Protocol::kTcp, local, remote};
  if (auto steered = w.steer_connection(id, key, w.shown); !steered) {
    w.give_up_barren(id, steered.error());
    choice = kernel(Reason::steering_failed);
    return steered.error();
  }
  auto conn = w.stack->tcp_connect(local, remote, choice.route, settings, owner, pass.now());
  if (!conn) {
    w.steering.unsteer(id, key);
    choice = kernel(conn.is(EADDRINUSE) ? Reason::duplicate_tuple : Reason::resources);
    return conn.error();
  }
  w.note_numbers(id, key);
  w.counters.add(Counter::sockets_accelerated);
  return conn;
}

void Engine::forget(Pass& pass, TcpConn* conn) {
  Impl& w = Impl::of(pass);
  w.stack->tcp_forget(conn);
  w.unsteer_closed();
}

bool Engine::replies_may_stray(Pass& pass, InterfaceId sent_by) const {
  Impl& w = Impl::of(pass);
  if (Port* port = w.slots.port_of(sent_by); port && may_be_passed_by(*port)) return true;
  const Network& network = w.network;
  return std::any_of(network.addresses.begin(), network.addresses.end(),
                     [&](const LocalAddress& a) ACCEL_REQUIRES(worker_lock) {
                       const Link* link = network.link(a.ifindex);
                       return a.usable && link && link->up && !link->loopback &&
                              a.ifindex != w.slots[sent_by].ifindex;
                     });
}

}  // namespace accel
