// Connections by the paths that are chosen for them, and the routes that the stack asks for.
#include <algorithm>
#include <cstring>

#include "engine/engine.h"
#include "engine/process.h"

namespace accel {

/// With policy routing the tables do not tell the way back, nor whether a source is one: the kernel is asked,
/// as it is for connect().
void Process::answer_route_questions(Instant now) {
  for (const auto& question : worker.stack->take_route_questions()) learn_route_of(question);
  worker.stack->resume(now);
}

void Process::learn_route_of(const Stack::RouteQuestion& question) {
  RouteQuestion asked{question.remote, question.local, 0, 0, 0};
  if (question.local.is_multicast()) asked.source = {};
  const auto answer = paths.route_to(asked);
  RouteEntry entry{question.remote, 128, kAnyInterface, {}, 0, RouteKind::kUnreachable};
  if (answer) {
    entry.interface = slots.find(answer->ifindex);
    entry.gateway = answer->gateway;
    entry.mtu = interfaces.mtu_by(entry.interface, answer->mtu);
    entry.kind = answer->type == RouteType::kUnicast   ? RouteKind::kUnicast
                 : answer->type == RouteType::kLocal   ? RouteKind::kLocal
                 : answer->type == RouteType::kUnusual ? RouteKind::kOther
                                                       : RouteKind::kBroadcast;
    interfaces.set_metrics(entry, answer->metrics);
  }
  worker.stack->learn_route(question, entry);
}

PathChoice Engine::choose(Pass& pass, const FlowRequest& request) {
  Process& p = Process::of(pass);
  p.paths.refresh_filter(p.pass_now());
  return p.paths.choose(request, request.role == Role::kTcpClient, p.pass_now());
}

PathChoice Engine::choose_udp_destination(Pass& pass, const FlowRequest& request) {
  Process& p = Process::of(pass);
  return p.paths.choose(request, false, p.pass_now());
}

bool Engine::is_of_our_network(int socket) const { return network_of(socket) == process_->own_network; }

bool Engine::has_address(Pass& pass, const IpAddress& address) const {
  return Process::of(pass).network.has_address(address);
}

Result<TcpConn*> Engine::connect(Pass& pass, PathChoice& choice, const Endpoint& local,
                                 const Endpoint& remote, const TcpSettings& settings, void* owner) {
  Process& p = Process::of(pass);
  const InterfaceId id = choice.route.interface;
  const FlowKey key{Protocol::kTcp, local, remote};
  if (auto steered = p.steer_connection(id, key, p.shown); !steered) {
    p.interfaces.give_up_barren(id, steered.error(), p.pass_now());
    choice = kernel_path(Reason::steering_failed);
    return steered.error();
  }
  auto conn = p.worker.stack->tcp().connect(local, remote, choice.route, settings, owner, pass.now());
  if (!conn) {
    p.steering.unsteer(id, key);
    choice = kernel_path(conn.is(EADDRINUSE) ? Reason::duplicate_tuple : Reason::resources);
    return conn.error();
  }
  p.note_numbers(id, key);
  p.counters.add(Counter::sockets_accelerated);
  return conn;
}

void Engine::forget(Pass& pass, TcpConn* conn) {
  Process& p = Process::of(pass);
  p.worker.stack->tcp().forget(conn);
  p.unsteer_closed();
}

bool Engine::replies_may_be_misdirected(Pass& pass, InterfaceId sent_by) const {
  Process& p = Process::of(pass);
  if (const PortLife* port = p.slots.life_of(sent_by); port && port->may_be_passed_by()) return true;
  const Network& network = p.network;
  return std::any_of(network.addresses.begin(), network.addresses.end(),
                     [&](const LocalAddress& a) ACCEL_REQUIRES(worker_lock) {
                       const Link* link = network.link(a.ifindex);
                       return a.usable && link && link->up && !link->loopback &&
                              a.ifindex != p.slots[sent_by].ifindex;
                     });
}

}  // namespace accel
