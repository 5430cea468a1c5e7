// Which flows the devices bring to us: keys of listeners, bound and connected sockets, counted.
#include <algorithm>
#include <set>

#include "engine/housekeeping.h"
#include "engine/shown_socket.h"
#include "engine/worker.h"

namespace accel {

Result<void> Engine::Impl::steer(InterfaceId id, const FlowKey& key, bool shared, int shadow) {
  PortSlot& slot = slots[id];
  Port* port = slots.port_of(id);
  if (!port) return err(ENODEV);
  if (key.protocol == Protocol::kTcp && key.is_connected()) learn_address(key.local.address);
  auto [entry, is_new] = slot.steered.try_emplace(key);
  PortSlot::Steered& steered = entry->second;
  if (is_new || std::exchange(steered.resting, false)) {
    const FlowKey at_port = slots.tagged(id, key);
    auto r = shared ? steer_shared(*port, at_port) : port->steer(at_port);
    if (r.is(EPERM) && prove_end(slots.carrier(id).opened, guardian, at_port, shadow)) {
      r = port->steer(at_port);
      if (!r) port->unsteer(at_port);  // what was proved is not needed
    }
    if (!r) {
      if (is_new) slot.steered.erase(entry);
      counters.add(Counter::port_errors);
      return r;
    }
    slot.has_steered = slots.carrier(id).has_steered = true;
    if (is_new && steered_count.fetch_add(1, std::memory_order_relaxed) == 0)
      housekeeping->application_began();
  }
  if (key.protocol == Protocol::kTcp) guard(slot, key, steered);
  ++steered.users;
  return {};
}

ShownSocket::ShownSocket(Engine& engine, int shadow) : engine_(engine) {
  Engine::Impl::of(engine).shown = shadow;
}
ShownSocket::~ShownSocket() { Engine::Impl::of(engine_).shown = -1; }
bool ShownSocket::is_needed(Engine& engine) { return Engine::Impl::of(engine).sealed; }
void ShownSocket::move(BoundFlow& flow, int shadow) { flow.shadow = shadow; }

void Engine::Impl::tell_guardian_of(Protocol protocol, const Endpoint& local, uint16_t vlan) {
  (void)guardian.run(Guardian::about(guardian::Errand::kLocalEnd, {protocol, local, {}, vlan}), -1);
}

/// While this process has the privilege: for which local ends the guardian helps when it has not. On mlx5 it
/// makes rules, so the protocol and VLAN count.
void Engine::Impl::tell_guardian_of_local_ends() {
  std::set<Endpoint> told;
  const auto tell = [&](InterfaceId id, const FlowKey& untagged) {
    held();
    const FlowKey key = slots.tagged(id, untagged);
    if (slots.carrier(id).opened.kind == PathKind::kMlx5 && !key.is_connected())
      tell_guardian_of(key.protocol, key.local, key.vlan);
    else if (key.protocol == Protocol::kTcp && told.insert(key.local).second)
      tell_guardian_of(key.protocol, key.local, 0);
  };
  for (InterfaceId id = 0; id < slots.count(); ++id)
    for (const auto& [key, steered] : slots[id].steered) tell(id, key);
  for (const BoundFlow::Key& end : kept_ends) tell(end.interface, end.key);
  kept_ends.clear();
}

void Engine::tell_guardian(const Endpoint& local, bool v6_only) {
  impl_->held();
  impl_->tell_guardian_of(Protocol::kTcp, local, 0);
  if (local.address == IpAddress::any_v6() && !v6_only)
    impl_->tell_guardian_of(Protocol::kTcp, {IpAddress::any_v4(), local.port}, 0);
}

bool Engine::Impl::rules_barred() const {
  return Engine::in_handler() &&
         std::any_of(slots.begin(), slots.end(),
                     [](const PortSlot& s) { return s.opened.kind == PathKind::kMlx5; });
}

void Engine::Impl::unsteer(InterfaceId id, const FlowKey& key, bool paused) {
  if (rules_barred()) return closed_flows.push_back({key, id, Stack::Flow::kClosed});
  PortSlot& slot = slots[id];
  auto entry = slot.steered.find(key);
  if (entry == slot.steered.end() || --entry->second.users > 0) return;
  guardian.remove(entry->second.guarded);
  slot.steered.erase(entry);
  steered_count.fetch_sub(1, std::memory_order_relaxed);
  Port* port = slots.carrier(id).opened.port.get();  // a lost one's rules may outlive the device
  if (port == nullptr) return;
  paused ? port->pause(slots.tagged(id, key)) : port->unsteer(slots.tagged(id, key));
}

/// The guardian has the connections that the process must close, until the peer has acknowledged their FIN.
void Engine::Impl::guard(PortSlot& slot, const FlowKey& key, PortSlot::Steered& steered) {
  guardian.begin();
  if (key.is_connected() && steered.guarded == 0) steered.guarded = guardian.add(key, slot.ifindex);
}

/// The peer has our FIN: of such a connection the kernel says nothing more when its process ends.
void Engine::Impl::unguard(InterfaceId id, const FlowKey& key) {
  const auto entry = slots[id].steered.find(key);
  if (entry != slots[id].steered.end()) guardian.remove(std::exchange(entry->second.guarded, 0));
}

void Engine::Impl::note_numbers(InterfaceId id, const FlowKey& key) {
  const auto entry = slots[id].steered.find(key);
  if (entry == slots[id].steered.end() || entry->second.guarded == 0) return;
  stack->tcp_note_numbers(key, guardian.numbers(entry->second.guarded));
}

void Engine::Impl::rest(InterfaceId id, const FlowKey& key) {
  Port* port = slots.port_of(id);
  auto entry = slots[id].steered.find(key);
  if (!port || entry == slots[id].steered.end() || entry->second.resting) return;
  guardian.remove(std::exchange(entry->second.guarded, 0));
  // It costs a system call, for what only concerns other processes.
  if (port->info().queues_held == port->info().queues_total) return;
  entry->second.resting = true;
  port->rest(slots.tagged(id, key));
}

void Engine::Impl::take_acks(InterfaceId id, const FlowKey& key, bool on) {
  Port* port = slots.port_of(id);
  if (port != nullptr && slots[id].steered.contains(key)) port->take_acks(slots.tagged(id, key), on);
}

/// Connections from an address that the host has lost hear nothing until it is back, as the kernel's. An
/// address that was never the host's own (IP_FREEBIND, a local route) is none that can be lost.
void Engine::Impl::follow_addresses(const std::vector<LocalAddress>& before) {
  const auto has = [](const std::vector<LocalAddress>& all, const IpAddress& address) {
    return std::any_of(all.begin(), all.end(),
                       [&](const LocalAddress& a) { return a.usable && a.address == address; });
  };
  // The device goes on bringing its frames: the kernel would reset it once the address is back.
  for (InterfaceId id = 0; id < slots.count(); ++id) {
    if (!slots.port_of(id)) continue;
    for (const auto& [key, steered] : slots[id].steered) {
      if (key.protocol != Protocol::kTcp || !key.is_connected() || steered.resting) continue;
      const bool here = has(network.addresses, key.local.address);
      if (here || has(before, key.local.address)) stack->tcp_set_deaf(key, !here);
    }
  }
}

/// A device's table of queues was changed, or the peer sends by another of its queues to a virtual device:
/// RSS moves a connection to a queue that another process holds, or nobody.
void Engine::Impl::look_for_strays(Instant now) {
  constexpr Duration kBetween = 100ms;
  if (now < strays_looked + kBetween) return;
  strays_looked = now;
  for (InterfaceId id = 0; id < slots.count(); ++id) {
    Port* port = slots[id].port();
    if (port == nullptr || !port->has_strays()) continue;
    for (const auto& [key, steered] : slots[id].steered) {
      if (key.protocol != Protocol::kTcp || !key.is_connected() || steered.resting) continue;
      if (const auto segment = port->strayed(key); segment && stack->tcp_strayed(key, *segment, now))
        strays.try_emplace(key);
    }
  }
}

// No lock for the look: this thread alone changes it.
void Engine::Impl::tell_of_strays() ACCEL_LOCKS_UNCHECKED {
  if (strays.empty()) return;
  if (strays_found) return strays_found();
  Pass pass{engine, Pass::Polling::kNo};
  engine.let_go_of_strays(pass);
}

void Engine::Impl::steer_opened() {
  auto& changes = stack->flow_changes();
  if (changes.empty()) return;
  // An error leaves the handshake to the kernel, which resets it: the table is full, and that is counted.
  for (const auto& change : changes) {
    if (change.to == Stack::Flow::kClosed)
      closed_flows.push_back(change);
    else if (change.to == Stack::Flow::kFinSent)
      unguard(change.interface, change.key);
    else if (change.to == Stack::Flow::kResting)
      rest(change.interface, change.key);
    else if (change.to == Stack::Flow::kTakesAcks || change.to == Stack::Flow::kLeavesAcks)
      take_acks(change.interface, change.key, change.to == Stack::Flow::kTakesAcks);
    else if (const auto steered = steer(change.interface, change.key); steered)
      note_numbers(change.interface, change.key);
    else if (steered.is(EEXIST))
      stack->tcp_end_handshake(change.key);  // another process was faster: its SYN came by another queue
  }
  changes.clear();
}

void Engine::Impl::unsteer_closed() {
  steer_opened();  // what flush() closed
  if (closed_flows.empty() || rules_barred()) return;
  for (const auto& change : closed_flows) unsteer(change.interface, change.key);
  closed_flows.clear();
}

}  // namespace accel
