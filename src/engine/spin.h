// Whether a thread polls before it sleeps. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

namespace accel {

/// Follows how often this thread's polling is answered. What polling waits for may come late, or may never
/// come while it polls: on a machine whose CPUs are all busy, whoever should answer waits for this very CPU.
/// Only trying tells, so a thread that has stopped polling tries again now and then.
class SpinPolicy {
 public:
  /// Asked once at the beginning of a wait: how long it may poll, in units of the longest time that the
  /// operator allows.
  ///
  /// A trial gets twice that time: where both ends of a ping-pong have stopped polling, each waits for the
  /// other's wake-up, and the usual time would never show either that polling pays.
  int share() {
    if (hits_ >= kWorthwhile) return 1;
    if (++skipped_ < try_after_) return 0;
    skipped_ = 0;
    return 2;
  }
  /// What came of a wait that polled: was it answered before its time was up?
  void record(bool hit) {
    hits_ += ((hit ? kAlways : 0) - hits_) / kWeight;
    if (hits_ >= kWorthwhile) return;
    try_after_ = hit ? kTryAfter : std::min(2 * try_after_, kTryAfterAtMost);
  }

 private:
  static constexpr int32_t kAlways = 1 << 12, kWorthwhile = kAlways / 2, kWeight = 8;
  static constexpr uint32_t kTryAfter = 8, kTryAfterAtMost = 256;
  int32_t hits_ = kAlways;
  uint32_t try_after_ = kTryAfter;
  uint32_t skipped_ = 0;
};

}  // namespace accel
