// ICMP errors about our flows. No rule of the device can look into what they quote, so they come to the
// kernel; a packet socket on the netdev brings copies, by a ring that costs one load to look at.
#pragma once

#include <cstdint>

#include "base/module_fd.h"
#include "stack/frame_pool.h"

namespace accel::mlx5 {

class IcmpTap {
 public:
  IcmpTap() = default;
  ~IcmpTap() { close(); }
  IcmpTap(const IcmpTap&) = delete;
  IcmpTap& operator=(const IcmpTap&) = delete;

  /// False: errno says why; errors do not come then.
  bool open(int ifindex);
  /// Also what a forked child does.
  void close();
  /// Turns readable when ready(); -1: not open.
  int fd() const { return fd_.get(); }
  bool ready() const;
  /// The next one; nullptr: no buffer, or one of a length that cannot be, which is counted.
  Packet* take(FramePool& pool, uint64_t& refused);

 private:
  uint8_t* slot() const;

  Fd fd_;
  uint8_t* ring_ = nullptr;
  uint32_t next_ = 0;
};

}  // namespace accel::mlx5
