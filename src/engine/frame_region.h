// The memory that frames live in: one shared mapping a worker, registered with the devices by the ports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"

namespace accel {

/// MAP_SHARED, since devices write to its pages: a private mapping's pages would change under them after a
/// fork.
class FrameRegion {
 public:
  FrameRegion() = default;
  ~FrameRegion();
  FrameRegion(const FrameRegion&) = delete;
  FrameRegion& operator=(const FrameRegion&) = delete;

  /// `bytes` at least. Huge pages when `huge` and the system has free ones, else ordinary pages.
  Result<void> map(size_t bytes, bool huge);
  std::span<uint8_t> bytes() const { return {start_, size_}; }
  /// Its pages go back to the system. Nobody has a frame, and no device knows the region.
  void empty();
  bool huge() const { return huge_; }

 private:
  uint8_t* start_ = nullptr;
  size_t size_ = 0;
  bool huge_ = false;
};

}  // namespace accel
