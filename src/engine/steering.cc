#include "engine/steering.h"

#include <sys/random.h>

#include <algorithm>
#include <set>

namespace accel {

uint64_t FlowKeyHash::random_secret() {
  uint64_t secret = 0;
  // It cannot fail once the engine is open, whose own secrets come from there.
  (void)!getrandom(&secret, sizeof secret, 0);
  return secret;
}

// ---- one key ----

Result<void> Steering::steer(InterfaceId id, const FlowKey& key, bool shared, int shadow) {
  FlowSteering* port = slots_.flows_of(id);
  if (!port) return err(ENODEV);
  Table& table = tables_[id];
  auto [entry, is_new] = table.flows.try_emplace(key);
  Flow& flow = entry->second;
  if (is_new || std::exchange(flow.in_time_wait, false)) {
    const FlowKey at_port = slots_.tagged(id, key);
    auto r = shared ? port->steer_shared(at_port) : port->steer(at_port);
    if (r.is(EPERM) && prove_end(slots_.carrier(id).opened, helper_, at_port, shadow)) {
      r = port->steer(at_port);
      if (!r) port->unsteer(at_port);  // what was proved is not needed
    }
    if (!r) {
      if (is_new) table.flows.erase(entry);
      counters_.add(Counter::port_errors);
      return r;
    }
    table.has_steered = tables_[slots_.carrier_id(id)].has_steered = true;
    if (is_new && count_.fetch_add(1, std::memory_order_relaxed) == 0)
      notices_.add(Notices::kApplicationBegan);
  }
  if (key.protocol == Protocol::kTcp) add_to_helper(id, key, flow);
  ++flow.users;
  return {};
}

void Steering::unsteer(InterfaceId id, const FlowKey& key, bool paused) {
  if (barred()) return unsteer_later(id, key);
  Table& table = tables_[id];
  auto entry = table.flows.find(key);
  if (entry == table.flows.end() || --entry->second.users > 0) return;
  helper_.remove(entry->second.helper_row);
  table.flows.erase(entry);
  count_.fetch_sub(1, std::memory_order_relaxed);
  FlowSteering* port = slots_.carrier(id).opened.port.flows();  // a lost one's rules may outlive the device
  if (port == nullptr) return;
  paused ? port->pause(slots_.tagged(id, key)) : port->unsteer(slots_.tagged(id, key));
}

void Steering::end_pause(InterfaceId id, const FlowKey& key) {
  FlowSteering* port = slots_.carrier(id).opened.port.flows();
  if (port != nullptr && !barred() && !tables_[id].flows.contains(key)) port->unsteer(slots_.tagged(id, key));
}

void Steering::unsteer_closed() {
  if (closed_.empty() || barred()) return;
  for (const SteeredKey& closed : closed_) unsteer(closed.interface, closed.key);
  closed_.clear();
}

bool Steering::barred() const {
  return in_handler() && std::any_of(slots_.begin(), slots_.end(), [](const PortSlot& s) {
           return s.opened.port && s.opened.port.flows()->by_device_rules();
         });
}

void Steering::enter_time_wait(InterfaceId id, const FlowKey& key) {
  FlowSteering* port = slots_.flows_of(id);
  auto entry = tables_[id].flows.find(key);
  if (!port || entry == tables_[id].flows.end() || entry->second.in_time_wait) return;
  helper_.remove(std::exchange(entry->second.helper_row, 0));
  // It costs a system call, for what only concerns other processes.
  const PortInfo& info = slots_.port_of(id)->info();
  if (info.queues_held == info.queues_total) return;
  entry->second.in_time_wait = true;
  port->enter_time_wait(slots_.tagged(id, key));
}

void Steering::take_acks(InterfaceId id, const FlowKey& key, bool on) {
  FlowSteering* port = slots_.flows_of(id);
  if (port != nullptr && tables_[id].flows.contains(key)) port->take_acks(slots_.tagged(id, key), on);
}

// ---- what the helper knows ----

/// The helper has the connections that the process must close, until the peer has acknowledged their FIN.
void Steering::add_to_helper(InterfaceId id, const FlowKey& key, Flow& flow) {
  helper_.begin();
  if (key.is_connected() && flow.helper_row == 0) flow.helper_row = helper_.add(key, slots_[id].ifindex);
}

void Steering::remove_from_helper(InterfaceId id, const FlowKey& key) {
  const auto entry = tables_[id].flows.find(key);
  if (entry != tables_[id].flows.end()) helper_.remove(std::exchange(entry->second.helper_row, 0));
}

TcpNumbers* Steering::numbers(InterfaceId id, const FlowKey& key) {
  const auto entry = tables_[id].flows.find(key);
  return entry == tables_[id].flows.end() ? nullptr : helper_.numbers(entry->second.helper_row);
}

/// Where it makes rules of the device, the protocol and VLAN count.
void Steering::tell_helper_of_local_ends() {
  std::set<Endpoint> told;
  const auto tell = [&](InterfaceId id, const FlowKey& untagged) ACCEL_REQUIRES(worker_lock) {
    const FlowKey key = slots_.tagged(id, untagged);
    const FlowSteering* port = slots_.carrier(id).opened.port.flows();
    if (port != nullptr && port->by_device_rules() && !key.is_connected())
      helper_.tell_local_end(key.protocol, key.local, key.vlan);
    else if (key.protocol == Protocol::kTcp && told.insert(key.local).second)
      helper_.tell_local_end(key.protocol, key.local, 0);
  };
  for (InterfaceId id = 0; id < slots_.count(); ++id)
    for (const auto& [key, flow] : tables_[id].flows) tell(id, key);
  for (const SteeredKey& end : kept_ends_) tell(end.interface, end.key);
  kept_ends_.clear();
}

// ---- an interface's keys ----

void Steering::clear(InterfaceId id) {
  auto& flows = tables_[id].flows;
  while (!flows.empty()) {
    flows.begin()->second.users = 1;
    unsteer(id, FlowKey(flows.begin()->first));
  }
}

void Steering::unsteer_connections_for_good() {
  for (InterfaceId id = 0; id < slots_.count(); ++id)
    if (FlowSteering* port = slots_.flows_of(id))
      for (const auto& [key, flow] : tables_[id].flows)
        if (key.protocol == Protocol::kTcp && key.is_connected()) port->unsteer(slots_.tagged(id, key));
}

}  // namespace accel
