// The stack's interfaces as ports come and go: a device's port is opened at the first need, lost with the
// device, and closed when nobody uses it. The stack, the threads that wait and the steering are told.
#pragma once

#include <atomic>
#include <optional>

#include "base/counters.h"
#include "base/result.h"
#include "engine/lock.h"
#include "engine/netlink.h"
#include "engine/port_opening.h"
#include "engine/port_slots.h"
#include "engine/sleepers.h"
#include "engine/steering.h"
#include "engine/worker.h"

namespace accel {

class Interfaces {
 public:
  Interfaces(PortSlots& slots, Steering& steering, Sleepers& sleepers, PortOpening& opening,
             const Network& network, Worker& worker, Counters& counters)
      : slots_(slots),
        steering_(steering),
        sleepers_(sleepers),
        opening_(opening),
        network_(network),
        worker_(worker),
        counters_(counters) {}
  /// `barred`: why there can be no port; else `accelerated`.
  void begin(Reason barred) { barred_ = barred; }

  Reason barred() const { return barred_; }

  /// The interface of a device, its port opened if need be; or why there is none.
  Result<InterfaceId> of(int ifindex, Reason* why, Instant now,
                         PortOpening::Need need = PortOpening::Need::kNow) ACCEL_REQUIRES(worker_lock);
  /// The answer is what is known before a port is opened.
  bool may_have_port(int ifindex) const ACCEL_REQUIRES(worker_lock);
  void install(InterfaceId id, OpenedPort opened, int ifindex, Instant now) ACCEL_REQUIRES(worker_lock);
  void note_failure(const Link& link, const OpenedPort& opened, Instant now) ACCEL_REQUIRES(worker_lock);

  /// The port stays with its rules until the connections are the kernel's: see
  /// Housekeeping::Events::port_lost.
  void lose(InterfaceId id, const char* why, Instant now) ACCEL_REQUIRES(worker_lock);
  /// A port is lost, and the layer above has not moved its connections yet. One load.
  bool any_lost() const { return any_lost_.load(std::memory_order_relaxed); }
  void none_lost() { any_lost_.store(false, std::memory_order_relaxed); }
  /// Gives the device's queues back; the slot is taken again when the device is needed again.
  void close(InterfaceId id, Instant now) ACCEL_REQUIRES(worker_lock);
  /// The device has refused a rule (`why`) and never took one: see close().
  void give_up_barren(InterfaceId id, Errno why, Instant now) ACCEL_REQUIRES(worker_lock);
  /// A VLAN may go by the port of the device below only with that one's address.
  bool has_address_of_below(const Link& vlan) const ACCEL_REQUIRES(worker_lock);

  // ---- what the stack knows ----
  void tell_stack_of(InterfaceId id) ACCEL_REQUIRES(worker_lock);
  void tell_routes() ACCEL_REQUIRES(worker_lock);
  /// The row has these metrics; where the stack has no name left for them, its connections are the kernel's.
  void set_metrics(RouteEntry& row, const RouteMetrics& route) const ACCEL_REQUIRES(worker_lock);
  /// A name for metrics. nullopt: the stack has none left.
  std::optional<MetricsId> metrics_by(const RouteMetrics& route) const ACCEL_REQUIRES(worker_lock);
  /// `route`: the route's own MTU, 0: it has none.
  uint32_t mtu_by(InterfaceId id, uint32_t route) const ACCEL_REQUIRES(worker_lock);

 private:
  std::optional<InterfaceId> port_below(const Link& vlan, Instant now) ACCEL_REQUIRES(worker_lock);
  InterfaceId install_vlan(InterfaceId id, const Link& link, InterfaceId lower) ACCEL_REQUIRES(worker_lock);
  bool some_device_allowed() const ACCEL_REQUIRES(worker_lock);
  void give_up_memory() ACCEL_REQUIRES(worker_lock);

  PortSlots& slots_;
  Steering& steering_;
  Sleepers& sleepers_;
  PortOpening& opening_;
  const Network& network_;
  Worker& worker_;
  Counters& counters_;
  Reason barred_ = Reason::accelerated;
  std::atomic<bool> any_lost_{false};
};

}  // namespace accel
