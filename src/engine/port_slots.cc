#include "engine/port_slots.h"

#include <utility>

namespace accel {

const PortInfo* PortSlots::info_of(InterfaceId id) const {
  if (slots_[id].vlan) return &slots_[id].vlan->info;
  return slots_[id].opened.port ? &slots_[id].opened.port.frames()->info() : nullptr;
}

InterfaceId PortSlots::find(int ifindex) const {
  for (InterfaceId id = 0; id < count_; ++id)
    if (slots_[id].ifindex == ifindex && port_of(id)) return id;
  return kAnyInterface;
}

FlowKey PortSlots::tagged(InterfaceId id, FlowKey key) const {
  if (slots_[id].vlan) key.vlan = slots_[id].vlan->tag;
  return key;
}

std::optional<InterfaceId> PortSlots::free_slot(int ifindex) const {
  InterfaceId id = 0;
  while (id < count_ &&
         (slots_[id].ifindex != ifindex || slots_[id].opened.port || slots_[id].vlan || slots_[id].lost))
    ++id;
  if (id == kMaxInterfaces) return {};
  return id;
}

void PortSlots::set_port(InterfaceId id, OpenedPort opened, int ifindex) {
  if (id == count_) ++count_;
  slots_[id].opened = std::move(opened);
  slots_[id].ifindex = ifindex;
}

void PortSlots::set_vlan(InterfaceId id, const Link& link, InterfaceId lower) {
  if (id == count_) ++count_;
  PortSlot& slot = slots_[id];
  slot.opened.kind = slots_[lower].opened.kind;
  slot.ifindex = link.ifindex;
  slot.vlan = {lower, link.vlan, slots_[lower].opened.port.frames()->info()};
  slot.vlan->info.name = link.name;
  slot.vlan->info.ifindex = link.ifindex;
  slot.vlan->info.mtu = link.mtu;
}

void PortSlots::clear(InterfaceId id) {
  slots_[id].opened = {};
  slots_[id].vlan.reset();
}

}  // namespace accel
