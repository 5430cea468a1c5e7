// One direction of an impaired path: what happens to each frame, and when it leaves. Pure: times are
// arguments, and a seed reproduces every decision for the same arrivals.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace accel::wire {

/// Times in ns, probabilities from 0 to 1.
struct Impairment {
  uint64_t delay = 0;
  uint64_t jitter = 0;              ///< up to so much more, uniformly; order is kept
  uint64_t rate = 0;                ///< bits/s of Ethernet frames; 0: no limit
  uint64_t queue = 0;               ///< bytes that may wait for the rate, the tail drops; 0: no limit
  uint64_t mark = 0;                ///< bytes waiting beyond which ECN-capable packets get CE; 0: never
  uint64_t mtu = 0;                 ///< longer IP packets vanish without a word; 0: no limit
  uint64_t reorder_by = 1'000'000;  ///< how much later a reordered frame leaves
  uint64_t dark_from = 0, dark_for = 0, dark_every = 0;  ///< blackouts; dark_every 0: one
  double loss = 0, duplicate = 0, corrupt = 0, reorder = 0;
  uint64_t burst = 0;  ///< a loss takes what else comes within so long
};

/// "delay=10ms,rate=20m,queue=50k,loss=0.01": times with us, ms or s, numbers with k, m or g. False: cannot
/// be read.
bool parse(std::string_view text, Impairment& into);

struct Counts {
  uint64_t frames = 0, bytes = 0, lost = 0, overflowed = 0, dark = 0, too_long = 0;
  uint64_t duplicated = 0, corrupted = 0, reordered = 0, marked = 0;
};

class Path {
 public:
  Path(const Impairment& impairment, uint64_t seed) : impairment_(impairment), random_(seed) {}

  /// When the copies of a frame that came at `now` (ns since the path began) leave. Changes the frame's bytes
  /// where it is corrupted or marked.
  struct Fate {
    int copies = 0;  ///< 0: dropped
    uint64_t at[2] = {};
  };
  Fate take(std::span<uint8_t> frame, uint64_t now);
  const Counts& counts() const { return counts_; }

 private:
  bool chance(double p);
  uint64_t next();
  bool loses(std::span<const uint8_t> frame, uint64_t now);

  Impairment impairment_;
  uint64_t random_;
  uint64_t free_at_ = 0;  ///< when the rate has sent all that waits
  uint64_t last_leaves_ = 0;
  uint64_t burst_ends_ = 0;
  Counts counts_;
};

}  // namespace accel::wire
