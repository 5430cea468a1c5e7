// Points in time, passed in as arguments: nothing below the engine reads a clock.
#pragma once

#include <chrono>
#include <cstdint>

namespace accel {

using namespace std::chrono_literals;
using Duration = std::chrono::nanoseconds;

/// CLOCK_MONOTONIC in the process, virtual time in the simulator. Has no now() on purpose.
struct StackClock {
  using rep = int64_t;
  using period = std::nano;
  using duration = Duration;
  using time_point = std::chrono::time_point<StackClock>;
  static constexpr bool is_steady = true;
};

using Instant = StackClock::time_point;

constexpr Instant kNever = Instant::max();

}  // namespace accel
