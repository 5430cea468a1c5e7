// Buffers that the program reads in place (accel_recv_lease), each lease by a number.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "stack/lent.h"

namespace accel {

/// A number is never used twice, in forked children neither: who releases what is no lease any more gets an
/// error and does no harm. Under the worker's lock.
class Leases {
 public:
  /// Bytes of true size that may be out together: what is lent lacks the sockets and the devices.
  void set_most(uint64_t bytes) { most_ = bytes; }
  uint64_t room() const { return most_ - std::min(most_, memory_); }
  /// begin() finds a slot then. False: there are too many.
  bool make_room();
  uint64_t begin(Lent lent);
  /// False: there is no such lease.
  bool end(uint64_t number);

 private:
  struct Slot {
    uint64_t number = 0;  ///< 0: free
    Lent lent;
  };
  /// The lower bits of a number say which slot it has.
  static constexpr unsigned kSlotBits = 24;

  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  uint64_t most_ = 0, memory_ = 0;
};

}  // namespace accel
