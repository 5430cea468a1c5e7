// The device's clock as the driver maps it: a page of parameters that turn ticks into time (struct
// mlx5_ib_clock_info, under a sequence word), and a page with the running counter.
#pragma once

#include <cstdint>

#include "model/core/device.h"

namespace model {

class ClockPages {
 public:
  static constexpr uint64_t kCounterAt = 0x10;  // of the counter in its page (hca_core_clock_offset)

  /// Two pages of memory that the driver maps too.
  void place(uint8_t* info, uint8_t* counter) {
    info_ = info;
    counter_ = counter;
  }
  /// now: of the monotonic clock that Device::ticks() counts.
  void tick(uint64_t now);
  void set_parameters(uint64_t now);

 private:
  uint8_t* info_ = nullptr;
  uint8_t* counter_ = nullptr;
};

}  // namespace model
