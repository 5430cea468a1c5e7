// How long a thread polls before it sleeps. Pure.
#pragma once

#include <algorithm>

#include "base/instant.h"

namespace accel {

/// Follows how long this thread's waits last, an exponential average over the last few. Polling is worth its
/// CPU time only while what is waited for usually comes within it.
class SpinPolicy {
 public:
  /// How long the next wait may poll; `longest` is the operator's setting.
  Duration limit(Duration longest) const {
    // Waits that ended asleep are longer by the wake-up itself (at both ends of a ping-pong), hence the
    // factor.
    return average_ <= 2 * longest ? longest : Duration{0};
  }
  void record(Duration waited, Duration longest) {
    // One long idle time says little: cap it, so that a few quick answers bring polling back.
    const Duration sample = std::clamp(waited, Duration{0}, 5 * longest);
    average_ += (sample - average_) / kWeight;
  }

 private:
  static constexpr int kWeight = 8;
  Duration average_{0};
};

}  // namespace accel
