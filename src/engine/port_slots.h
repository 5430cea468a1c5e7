// The interfaces of the stack: the ports of devices, and VLANs upon them. A slot's index is the interface's
// number (InterfaceId); it is the same device's as long as the process lives.
#pragma once

#include <array>
#include <optional>

#include "engine/lock.h"
#include "engine/ports.h"

namespace accel {

/// One interface of the stack.
struct PortSlot {
  OpenedPort opened;
  int ifindex = 0;
  /// A VLAN's frames that go by the port of the device below, with the tag.
  struct Vlan {
    InterfaceId lower = 0;
    uint16_t tag = 0;
    PortInfo info;  ///< of that port, as this device
  };
  std::optional<Vlan> vlan;  ///< instead of a port of its own
  bool lost = false;         ///< until nothing names it: see Housekeeping::Events::port_lost
  uint8_t passed_by = 0;     ///< how often in a row PortLife::is_passed_by() was so
  // The faces of its own port; nullptr: it has none that works.
  Port* port() const { return lost ? nullptr : opened.port.frames(); }
  FlowSteering* flows() const { return lost ? nullptr : opened.port.flows(); }
  PortLife* life() const { return lost ? nullptr : opened.port.life(); }
  /// The port is opened anew when the device has a larger one.
  uint32_t mtu_most() const { return opened.port ? opened.port.life()->mtu_most() : ~0u; }
};

class PortSlots {
 public:
  InterfaceId count() const ACCEL_REQUIRES(worker_lock) { return count_; }
  PortSlot& operator[](InterfaceId id) ACCEL_REQUIRES(worker_lock) { return slots_[id]; }
  const PortSlot& operator[](InterfaceId id) const ACCEL_REQUIRES(worker_lock) { return slots_[id]; }
  PortSlot* begin() ACCEL_REQUIRES(worker_lock) { return slots_.data(); }
  PortSlot* end() ACCEL_REQUIRES(worker_lock) { return slots_.data() + count_; }
  const PortSlot* begin() const ACCEL_REQUIRES(worker_lock) { return slots_.data(); }
  const PortSlot* end() const ACCEL_REQUIRES(worker_lock) { return slots_.data() + count_; }

  /// The one whose port carries the interface's frames: itself, or the device's below a VLAN.
  InterfaceId carrier_id(InterfaceId id) const ACCEL_REQUIRES(worker_lock) {
    return slots_[id].vlan ? slots_[id].vlan->lower : id;
  }
  const PortSlot& carrier(InterfaceId id) const ACCEL_REQUIRES(worker_lock) { return slots_[carrier_id(id)]; }
  /// By which the interface's frames go; nullptr: it is lost, or has been closed.
  Port* port_of(InterfaceId id) const ACCEL_REQUIRES(worker_lock) {
    return slots_[id].lost ? nullptr : carrier(id).port();
  }
  FlowSteering* flows_of(InterfaceId id) const ACCEL_REQUIRES(worker_lock) {
    return slots_[id].lost ? nullptr : carrier(id).flows();
  }
  PortLife* life_of(InterfaceId id) const ACCEL_REQUIRES(worker_lock) {
    return slots_[id].lost ? nullptr : carrier(id).life();
  }
  const PortInfo* info_of(InterfaceId id) const ACCEL_REQUIRES(worker_lock);
  /// Of the device, with a port that works; kAnyInterface: there is none.
  InterfaceId find(int ifindex) const ACCEL_REQUIRES(worker_lock);
  /// As the port knows it: with the VLAN's tag.
  FlowKey tagged(InterfaceId id, FlowKey key) const ACCEL_REQUIRES(worker_lock);

  /// For a port of the device: its slot of before, or a new one.
  std::optional<InterfaceId> free_slot(int ifindex) const ACCEL_REQUIRES(worker_lock);
  void set_port(InterfaceId id, OpenedPort opened, int ifindex) ACCEL_REQUIRES(worker_lock);
  void set_vlan(InterfaceId id, const Link& link, InterfaceId lower) ACCEL_REQUIRES(worker_lock);
  void clear(InterfaceId id) ACCEL_REQUIRES(worker_lock);

 private:
  std::array<PortSlot, kMaxInterfaces> slots_ ACCEL_GUARDED_BY(worker_lock);
  InterfaceId count_ ACCEL_GUARDED_BY(worker_lock) = 0;
};

}  // namespace accel
