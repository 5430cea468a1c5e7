// Next hops of the stack, as the kernel resolves them.
#pragma once

#include "engine/lock.h"
#include "engine/netlink.h"
#include "engine/port_slots.h"
#include "engine/worker.h"

namespace accel {

class Neighbours {
 public:
  Neighbours(Network& network, const PortSlots& slots, Worker& worker)
      : network_(network), slots_(slots), worker_(worker) {}
  void begin(Netlink& netlink) { netlink_ = &netlink; }
  /// Asks for the neighbours that the stack waits for (Stack::has_unresolved()).
  void resolve() ACCEL_REQUIRES(worker_lock);
  /// The kernel forgets neighbours that it thinks nobody uses: those in use here are used there, too.
  void keep() ACCEL_REQUIRES(worker_lock);
  void follow(const NetworkChanges& changes) ACCEL_REQUIRES(worker_lock);

 private:
  Network& network_;
  const PortSlots& slots_;
  Worker& worker_;
  Netlink* netlink_ = nullptr;
};

}  // namespace accel
