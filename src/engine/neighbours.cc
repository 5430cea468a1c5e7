#include "engine/neighbours.h"

namespace accel {

void Neighbours::follow(const NetworkChanges& changes) {
  for (const NeighbourEvent& event : changes.events) {
    const NeighbourKey key{event.ifindex, event.address};
    if (event.now.mac)
      network_.neighbours[key] = event.now;
    else
      network_.neighbours.erase(key);
    for (InterfaceId id = 0; id < slots_.count(); ++id) {
      if (slots_[id].ifindex != event.ifindex) continue;
      // Deleted for lack of use, or being looked for anew: the old address serves until the kernel says that
      // it is dead.
      if (event.now.mac || event.failed) worker_.stack->set_neighbour(id, event.address, event.now.mac);
    }
  }
}

void Neighbours::resolve() {
  for (const auto& wanted : worker_.stack->take_unresolved()) {
    if (!slots_.port_of(wanted.interface)) continue;
    const int ifindex = slots_[wanted.interface].ifindex;
    // The stack forgets neighbours that nobody uses; of one that it knows the kernel would say nothing.
    const auto known = network_.neighbours.find({ifindex, wanted.address});
    const bool has = known != network_.neighbours.end() && known->second.mac;
    if (!has || known->second.stale) netlink_->resolve(ifindex, wanted.address);
    if (has) worker_.stack->set_neighbour(wanted.interface, wanted.address, known->second.mac);
  }
}

void Neighbours::keep() {
  for (const auto& used : worker_.stack->neighbours_in_use()) {
    if (!slots_.port_of(used.interface)) continue;
    const int ifindex = slots_[used.interface].ifindex;
    auto known = network_.neighbours.find({ifindex, used.address});
    if (known == network_.neighbours.end() || known->second.stale) netlink_->resolve(ifindex, used.address);
  }
}

}  // namespace accel
