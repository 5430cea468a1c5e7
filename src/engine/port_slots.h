// The interfaces of the stack: the ports of devices, and VLANs upon them. A slot's index is the interface's
// number (InterfaceId); it is the same device's as long as the process lives.
#pragma once

#include <array>
#include <optional>
#include <unordered_map>
#include <utility>

#include "engine/lock.h"
#include "engine/ports.h"

namespace accel {

/// Peers choose the keys.
struct FlowKeyHash {
  size_t operator()(const FlowKey& k) const {
    static const uint64_t secret = random_secret();
    return static_cast<size_t>(hash_tuple(k.local, k.remote, secret ^ static_cast<uint64_t>(k.protocol)));
  }
  static uint64_t random_secret();
};

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
  bool lost = false;         ///< until nothing names it: see Engine::set_port_lost()
  uint8_t passed_by = 0;     ///< how often in a row is_passed_by() was so
  bool has_steered = false;  ///< since the port was opened
  struct Steered {
    uint32_t users = 0;  ///< sockets: several listeners of the process may share a key
    bool resting = false;
    uint32_t guarded = 0;  ///< its row in the guardian's table
  };
  std::unordered_map<FlowKey, Steered, FlowKeyHash> steered;
  Port* port() const { return lost ? nullptr : opened.port.get(); }  ///< its own
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
  const PortSlot& carrier(InterfaceId id) const ACCEL_REQUIRES(worker_lock) {
    return slots_[id].vlan ? slots_[slots_[id].vlan->lower] : slots_[id];
  }
  PortSlot& carrier(InterfaceId id) ACCEL_REQUIRES(worker_lock) {
    return const_cast<PortSlot&>(std::as_const(*this).carrier(id));
  }
  /// By which the interface's frames go; nullptr: it is lost, or has been closed.
  Port* port_of(InterfaceId id) const ACCEL_REQUIRES(worker_lock) {
    return slots_[id].lost ? nullptr : carrier(id).port();
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
