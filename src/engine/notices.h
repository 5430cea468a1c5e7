// What housekeeping is told once the lock is let go: noted by the worker's objects, which do not know it.
#pragma once

#include <cstdint>
#include <utility>

#include "engine/lock.h"

namespace accel {

class Notices {
 public:
  enum Notice : uint8_t {
    kThreadOut = 1,  ///< threads are out that others rely on: Sleepers::distrust_the_late() is to be called
    kApplicationBegan = 2,  ///< there is a first accelerated socket
    kPortsRequested = 4,    ///< PortOpening::first() may be due
  };
  void add(Notice notice) ACCEL_REQUIRES(worker_lock) { bits_ |= notice; }
  bool any() const ACCEL_REQUIRES(worker_lock) { return bits_ != 0; }
  uint8_t take() ACCEL_REQUIRES(worker_lock) { return std::exchange(bits_, uint8_t{0}); }

 private:
  uint8_t bits_ ACCEL_GUARDED_BY(worker_lock) = 0;
};

}  // namespace accel
