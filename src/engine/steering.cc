// Which flows the devices bring to us: keys of listeners, bound and connected sockets, counted.
#include "engine/housekeeping.h"
#include "engine/worker.h"

namespace accel {

Result<void> Engine::Impl::steer(InterfaceId id, const FlowKey& key) {
  PortSlot& slot = slots[id];
  Port* port = slot.port();
  if (!port) return err(ENODEV);
  auto [entry, is_new] = slot.steered.try_emplace(key, 0);
  if (is_new) {
    if (auto r = port->steer(key); !r) {
      slot.steered.erase(entry);
      if (r.is(ENOSPC)) slot.table_full = true;
      counters.add(Counter::port_errors);
      return r;
    }
    if (steered_count.fetch_add(1, std::memory_order_relaxed) == 0) housekeeping->application_began();
  }
  ++entry->second;
  return {};
}

void Engine::Impl::unsteer(InterfaceId id, const FlowKey& key) {
  PortSlot& slot = slots[id];
  auto entry = slot.steered.find(key);
  if (entry == slot.steered.end() || --entry->second > 0) return;
  slot.steered.erase(entry);
  steered_count.fetch_sub(1, std::memory_order_relaxed);
  slot.table_full = false;
  if (Port* port = slot.port()) port->unsteer(key);
}

void Engine::Impl::steer_opened() {
  auto& changes = stack->flow_changes();
  if (changes.empty()) return;
  // An error leaves the handshake to the kernel, which resets it: the table is full, and that is counted.
  for (const auto& change : changes) {
    if (!change.opened)
      closed_flows.push_back(change);
    else
      (void)steer(change.interface, change.key);
  }
  changes.clear();
}

void Engine::Impl::unsteer_closed() {
  steer_opened();  // what flush() closed
  for (const auto& change : closed_flows) unsteer(change.interface, change.key);
  closed_flows.clear();
}

}  // namespace accel
