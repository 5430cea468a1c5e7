// Connections by the paths that are chosen for them, and the routes that the stack asks for.
#include <algorithm>
#include <cstring>

#include "engine/engine.h"
#include "engine/worker.h"

namespace accel {

/// With policy routing the tables do not tell the way back, nor whether a source is one: the kernel is asked,
/// as it is for connect().
void Worker::answer_route_questions(Instant now) {
  for (const auto& question : stack->take_route_questions()) learn_route_of(question);
  stack->resume(now);
}

void Worker::learn_route_of(const Stack::RouteQuestion& question) {
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
  }
  stack->learn_route(question, entry);
}

PathChoice Engine::choose(Pass& pass, const FlowRequest& request) {
  Worker& w = Worker::of(pass);
  w.paths.refresh_filter(w.pass_now);
  return w.paths.choose(request, request.role == Role::kTcpClient, w.pass_now);
}

PathChoice Engine::choose_udp_destination(Pass& pass, const FlowRequest& request) {
  Worker& w = Worker::of(pass);
  return w.paths.choose(request, false, w.pass_now);
}

bool Engine::is_of_our_network(int socket) const { return network_of(socket) == worker_->own_network; }

bool Engine::has_address(Pass& pass, const IpAddress& address) const {
  return Worker::of(pass).network.has_address(address);
}

Result<TcpConn*> Engine::connect(Pass& pass, PathChoice& choice, const Endpoint& local,
                                 const Endpoint& remote, const TcpSettings& settings, void* owner) {
  Worker& w = Worker::of(pass);
  const InterfaceId id = choice.route.interface;
  const FlowKey key{Protocol::kTcp, local, remote};
  if (auto steered = w.steer_connection(id, key, w.shown); !steered) {
    w.interfaces.give_up_barren(id, steered.error(), w.pass_now);
    choice = kernel_path(Reason::steering_failed);
    return steered.error();
  }
  auto conn = w.stack->tcp().connect(local, remote, choice.route, settings, owner, pass.now());
  if (!conn) {
    w.steering.unsteer(id, key);
    choice = kernel_path(conn.is(EADDRINUSE) ? Reason::duplicate_tuple : Reason::resources);
    return conn.error();
  }
  w.note_numbers(id, key);
  w.counters.add(Counter::sockets_accelerated);
  return conn;
}

void Engine::forget(Pass& pass, TcpConn* conn) {
  Worker& w = Worker::of(pass);
  w.stack->tcp().forget(conn);
  w.unsteer_closed();
}

bool Engine::replies_may_be_misdirected(Pass& pass, InterfaceId sent_by) const {
  Worker& w = Worker::of(pass);
  if (const PortLife* port = w.slots.life_of(sent_by); port && port->may_be_passed_by()) return true;
  const Network& network = w.network;
  return std::any_of(network.addresses.begin(), network.addresses.end(),
                     [&](const LocalAddress& a) ACCEL_REQUIRES(worker_lock) {
                       const Link* link = network.link(a.ifindex);
                       return a.usable && link && link->up && !link->loopback &&
                              a.ifindex != w.slots[sent_by].ifindex;
                     });
}

}  // namespace accel
