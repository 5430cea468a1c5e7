// Next hops of the stack, as the kernel resolves them.
#pragma once

#include "engine/lock.h"
#include "engine/netlink.h"
#include "engine/port_slots.h"
#include "stack/stack.h"

namespace accel {

class Neighbours {
 public:
  Neighbours(Network& network, const PortSlots& slots) : network_(network), slots_(slots) {}
  void begin(Stack* stack, Netlink* netlink) {
    stack_ = stack;
    netlink_ = netlink;
  }
  /// Those that the stack waits for.
  void resolve() ACCEL_REQUIRES(worker_lock);
  /// The kernel forgets neighbours that it thinks nobody uses: those in use here are used there, too.
  void keep() ACCEL_REQUIRES(worker_lock);
  void follow(const NetworkChanges& changes) ACCEL_REQUIRES(worker_lock);

 private:
  Network& network_;
  const PortSlots& slots_;
  Stack* stack_ ACCEL_POINTEE_GUARDED_BY(worker_lock) = nullptr;
  Netlink* netlink_ = nullptr;
};

}  // namespace accel
