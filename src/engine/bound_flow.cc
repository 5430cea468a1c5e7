// Listeners and bound UDP sockets: one stack socket, steered on every interface that its address covers.
#include <algorithm>
#include <utility>

#include "engine/engine.h"
#include "engine/process.h"
#include "stack/udp.h"

namespace accel {

/// One that was added a moment ago: who binds to it knows of it before housekeeping does.
void Process::learn_address(const IpAddress& address) {
  const auto is = [&](const LocalAddress& a) { return a.address == address && a.usable; };
  if (address.is_any() || std::any_of(network.addresses.begin(), network.addresses.end(), is)) return;
  std::vector<LocalAddress> fresh;
  if (netlink->ask_addresses(fresh)) network.addresses = std::move(fresh);
}

/// The stack knows interfaces, which come and go, the kernel devices.
void Process::tell_memberships(BoundFlow& flow) {
  if (flow.udp == nullptr) return;
  UdpMemberships known{{}, flow.groups.all_v4, flow.groups.all_v6};
  for (const GroupMembership& m : flow.groups.memberships)
    if (const InterfaceId id = slots.find(m.ifindex); id != kAnyInterface)
      known.list.push_back({m.group, id, m.exclude, m.sources});
  UdpLayer::set_memberships(*flow.udp, std::move(known));
}

PathSelector::Coverage Process::cover_again(BoundFlow& flow) {
  flow.uncovered = Reason::accelerated;
  if (flow.leaving) {
    tell_memberships(flow);
    return {};
  }
  auto covered = paths.coverage(flow, pass_now());
  const auto& wanted = covered.keys;
  flow.refused.reset();
  if (wanted.empty() && covered.why == Reason::firewall) flow.refused = covered.rule;
  if (flow.bound_ifindex && !wanted.empty()) {
    const InterfaceId device = wanted.front().interface;
    flow.listener ? worker.stack->tcp().set_device(*flow.listener, device)
                  : worker.stack->udp().set_device(*flow.udp, device);
  }
  std::vector<BoundFlow::Key> now;
  for (const auto& key : wanted) {
    const bool had = std::find(flow.keys.begin(), flow.keys.end(), key) != flow.keys.end();
    if (had) {
      now.push_back(key);
    } else if (auto steered = steering.steer(key.interface, key.key, flow.shared, flow.shadow)) {
      now.push_back(key);
    } else {
      const FlowSteering* port = slots.flows_of(key.interface);
      const bool by_rules = port != nullptr && port->by_device_rules();
      covered.why = !steered.is(EEXIST) ? Reason::steering_failed
                    : by_rules          ? Reason::address_taken
                                        : Reason::no_queue;
      interfaces.give_up_barren(key.interface, steered.error(), pass_now());
    }
  }
  for (const auto& key : flow.keys)
    if (std::find(now.begin(), now.end(), key) == now.end()) steering.unsteer(key.interface, key.key);
  flow.keys = std::move(now);
  tell_memberships(flow);  // of ports that have been opened for it
  flow.uncovered = flow.keys.empty() ? covered.why : Reason::accelerated;
  covered.keys = flow.keys;
  return covered;
}

Result<BoundFlow*> Process::admit(std::unique_ptr<BoundFlow> flow, PathChoice& choice) {
  BoundFlow* raw = flow.get();
  const bool later = raw->leaving;  // Taking::kNotYet
  const auto [keys, why, rule] = later ? paths.coverage(*raw, pass_now()) : cover_again(*raw);
  if (keys.empty() && why == Reason::port_opening) {
    raw->uncovered = why;
    choice = path_of(*raw);
    flows.push_back(std::move(flow));
    return raw;
  }
  if (keys.empty()) {
    if (raw->listener) worker.stack->tcp().close_listener(raw->listener);
    if (raw->udp) worker.stack->udp().close(raw->udp);
    choice = kernel_path(why, rule);
    return err(EOPNOTSUPP);
  }
  const InterfaceId id = keys.front().interface;
  choice = {slots[id].opened.kind, Reason::accelerated, {}};
  choice.route.interface = id;
  choice.route.source = keys.front().key.local.address;
  choice.route.mtu = worker.stack->interface(id).mtu;
  counters.add(Counter::sockets_accelerated);
  flows.push_back(std::move(flow));
  return raw;
}

Result<BoundFlow*> Engine::listen(Pass& pass, PathChoice& choice, const Endpoint& local, bool v6_only,
                                  bool reuse_port, uint32_t backlog, const TcpSettings& settings,
                                  int bound_ifindex, void* owner) {
  Process& p = Process::of(pass);
  choice = PathSelector::by_configuration(Role::kTcpServer, local);
  if (choice.reason == Reason::not_decided && p.steering.barred()) choice = kernel_path(Reason::handler);
  if (choice.reason != Reason::not_decided) return err(EOPNOTSUPP);
  p.learn_address(local.address);
  // Before the stack is told: with no interface there is no listener to undo.
  auto flow = std::make_unique<BoundFlow>();
  static_cast<BoundEnd&>(*flow) = {Protocol::kTcp, local, {}, v6_only, bound_ifindex, {}};
  const auto [keys, why, rule] = p.paths.coverage(*flow, p.pass_now());
  if (keys.empty() && why != Reason::port_opening) {
    choice = kernel_path(why, rule);
    return err(EOPNOTSUPP);
  }
  flow->shared = true;  // by fork() it may become so at any time
  flow->shadow = p.shown;
  auto listener =
      p.worker.stack->tcp().listen(local, v6_only, reuse_port, backlog, settings, owner,
                                   bound_ifindex && !keys.empty() ? keys.front().interface : kAnyInterface);
  if (!listener) {
    choice = kernel_path(listener.is(EADDRINUSE) ? Reason::duplicate_tuple : Reason::resources);
    return listener.error();
  }
  flow->listener = *listener;
  return p.admit(std::move(flow), choice);
}

Result<BoundFlow*> Engine::bind_udp(Pass& pass, PathChoice& choice, const Endpoint& local,
                                    const Endpoint& remote, bool v6_only, Taking taking, int bound_ifindex,
                                    void* owner, const Groups& groups) {
  Process& p = Process::of(pass);
  const bool connected = remote.port != 0;
  choice = PathSelector::by_configuration(connected ? Role::kUdpConnect : Role::kUdpReceiver,
                                          connected ? remote : local);
  if (choice.reason == Reason::not_decided && p.steering.barred()) choice = kernel_path(Reason::handler);
  if (choice.reason != Reason::not_decided) return err(EOPNOTSUPP);
  p.learn_address(local.address);
  auto flow = std::make_unique<BoundFlow>();
  static_cast<BoundEnd&>(*flow) = {Protocol::kUdp, local, remote, v6_only, bound_ifindex, groups};
  const auto [keys, why, rule] = p.paths.coverage(*flow, p.pass_now());
  if (keys.empty() && why != Reason::port_opening) {
    choice = kernel_path(why, rule);
    return err(EOPNOTSUPP);
  }
  flow->shared = taking == Taking::kShared;
  flow->leaving = taking == Taking::kNotYet;
  flow->shadow = p.shown;
  auto pcb = p.worker.stack->udp().open(local, remote, v6_only, owner);
  if (!pcb) {
    choice = kernel_path(Reason::resources);
    return pcb.error();
  }
  flow->udp = *pcb;
  return p.admit(std::move(flow), choice);
}

void Engine::set_groups(Pass& pass, BoundFlow& flow, Groups groups) {
  flow.groups = std::move(groups);
  (void)Process::of(pass).cover_again(flow);
}

bool Engine::takes_groups(Pass&, const BoundFlow& flow) const { return flow.groups.taken; }

bool Engine::brings_groups(Pass&, const BoundFlow& flow) const {
  return std::any_of(flow.keys.begin(), flow.keys.end(),
                     [](const BoundFlow::Key& k) { return k.key.local.address.is_multicast(); });
}

TcpListener* Engine::listener(BoundFlow& flow) { return flow.listener; }
UdpPcb* Engine::udp(BoundFlow& flow) { return flow.udp; }

void Engine::reconnect_udp(Pass& pass, BoundFlow& flow, const Endpoint& local, const Endpoint& remote) {
  Process& p = Process::of(pass);
  flow.local = local;
  flow.remote = remote;
  p.worker.stack->udp().connect(*flow.udp, local, remote);
  // Without an interface the kernel's shadow receives; the socket's own route decides what it sends.
  (void)p.cover_again(flow);
}

void Process::drop_flow(BoundFlow* flow) {
  for (const auto& key : flow->keys) steering.unsteer(key.interface, key.key);
  end_pause(*flow);
  if (flow->listener) worker.stack->tcp().close_listener(flow->listener);
  if (flow->udp) worker.stack->udp().close(flow->udp);
  std::erase_if(flows, [flow](const auto& f) { return f.get() == flow; });
}

void Engine::stop_taking(Pass& pass, BoundFlow& flow) {
  Process& p = Process::of(pass);
  flow.leaving = true;
  // Frames of its handshakes are on their way: their connections are steered yet.
  for (const auto& key : flow.keys) p.steering.unsteer(key.interface, key.key, true);
  flow.paused = std::exchange(flow.keys, {});
  if (flow.listener != nullptr) p.worker.stack->tcp().set_stopped(*flow.listener, true);
  // A listener with nothing under way has SYNs in the rings at most, which are the kernel's. The program may
  // close idle connections next (nginx at a reload): text that it cannot know of would reset them. Where
  // nothing else is steered the port may go next, and with it what has come.
  const TcpLayer& tcp = p.worker.stack->tcp();
  const TcpListener* l = flow.listener;
  const bool idle = l != nullptr && tcp.handshakes_under_way(*l) + tcp.accept_queue_length(*l) == 0;
  if (!idle || p.steering.count() == 0) p.poll(clock_now());
}

void Process::end_pause(BoundFlow& flow) {
  for (const auto& [id, key] : std::exchange(flow.paused, {})) steering.end_pause(id, key);
}

void Engine::begin_taking(Pass& pass, BoundFlow& flow) {
  Process& p = Process::of(pass);
  flow.leaving = false;
  if (flow.listener != nullptr) p.worker.stack->tcp().set_stopped(*flow.listener, false);
  (void)p.cover_again(flow);
  p.end_pause(flow);
}

bool Engine::is_taking(const BoundFlow& flow) const { return !flow.leaving; }

void Engine::close(Pass& pass, BoundFlow* flow) {
  Process& p = Process::of(pass);
  p.drop_flow(flow);
}

bool Process::has_unaccepted() const {
  return std::any_of(flows.begin(), flows.end(), [this](const auto& f) ACCEL_REQUIRES(worker_lock) {
    return f->listener && worker.stack->tcp().accept_queue_length(*f->listener) > 0;
  });
}

bool Engine::serves_only(Pass& pass, size_t count) const {
  Process& p = Process::of(pass);
  size_t keys = 0;
  for (const auto& flow : p.flows) keys += flow->keys.size();
  return p.flows.size() == count && p.steering.count() <= keys;
}

void Engine::release_queues(Pass& pass, std::span<BoundFlow* const> flows) {
  Process& p = Process::of(pass);
  for (BoundFlow* flow : flows) p.drop_flow(flow);
  p.forget_requests();
  auto& slots = p.slots;
  std::array<bool, kMaxInterfaces> needed{};
  for (InterfaceId id = 0; id < slots.count(); ++id)
    if (p.steering.any(id)) needed[id] = needed[slots.carrier_id(id)] = true;
  for (InterfaceId id = 0; id < slots.count(); ++id)
    if (!needed[id] && !slots[id].lost && slots.info_of(id)) p.interfaces.close(id, p.pass_now());
}

PathChoice Engine::covers(Pass& pass, const FlowRequest& request, bool v6_only) {
  Process& p = Process::of(pass);
  PathChoice choice = PathSelector::by_configuration(request.role, request.local);
  if (choice.reason != Reason::not_decided) return choice;
  const bool tcp = request.role == Role::kTcpServer || request.role == Role::kTcpClient;
  const auto [keys, why, rule] = p.paths.coverage(
      {tcp ? Protocol::kTcp : Protocol::kUdp, request.local, {}, v6_only, request.bound_ifindex, {}},
      p.pass_now());
  if (keys.empty()) return kernel_path(why, rule);
  if (p.opening.keeps_ready()) p.steering.keep_ends(keys);
  choice.path = p.slots[keys.front().interface].opened.kind;
  choice.reason = Reason::accelerated;
  choice.route.interface = keys.front().interface;
  choice.route.source = keys.front().key.local.address;
  choice.route.mtu = p.worker.stack->interface(keys.front().interface).mtu;
  return choice;
}

}  // namespace accel
