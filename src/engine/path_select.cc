// Which path a flow takes, and why: configuration, then the kernel's routing, then the port of the
// route's device.
#include <algorithm>
#include <cstring>

#include "base/config.h"
#include "engine/worker.h"

namespace accel {
namespace {

PathChoice kernel(Reason why) {
  PathChoice choice;
  choice.path = PathKind::kKernel;
  choice.reason = why;
  return choice;
}

}  // namespace

PathChoice Engine::Impl::by_configuration(Role role, const Endpoint& endpoint) const {
  if (config().misread) return kernel(Reason::misread);
  if (config().path_for(role, endpoint) != Path::kKernel) return {};
  return kernel(config().settings.path == Path::kKernel ? Reason::path_setting : Reason::rule);
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
    entry.mtu = interfaces.mtu_by(entry.interface, answer->mtu);
    entry.kind = answer->type == RouteType::kUnicast   ? RouteKind::kUnicast
                 : answer->type == RouteType::kLocal   ? RouteKind::kLocal
                 : answer->type == RouteType::kUnusual ? RouteKind::kOther
                                                       : RouteKind::kBroadcast;
  }
  stack->learn_route(question, entry);
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
  auto id = interfaces.of(answer->ifindex, &choice.reason, pass_now, opens ? Need::kIfItLives : Need::kNow);
  if (!id) return kernel(choice.reason);
  const PortInfo& port = *slots.info_of(*id);
  if (needs_all_queues && steering.barred()) return kernel(Reason::handler);
  if (needs_all_queues && port.queues_held < port.queues_total) return kernel(Reason::queues_elsewhere);
  choice.path = slots[*id].opened.kind;
  choice.reason = Reason::accelerated;
  choice.route.interface = *id;
  choice.route.next_hop = answer->gateway.is_any() ? to : answer->gateway;
  choice.route.mtu = interfaces.mtu_by(*id, answer->mtu);
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
    w.interfaces.give_up_barren(id, steered.error(), w.pass_now);
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
