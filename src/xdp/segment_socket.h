// Frames that the kernel cuts into segments (Packet::tso_size). AF_XDP has no segmentation; in copy mode,
// where every frame costs a way through the kernel anyway, a packet socket beside it takes one way for many
// segments.
#pragma once

#include <cstdint>

#include "base/module_fd.h"
#include "stack/packet.h"

namespace accel::xdp {

class SegmentSocket {
 public:
  /// False: the kernel has no such socket for us.
  bool open(int ifindex);
  /// PortInfo::tso_max. `by_device`: the device cuts itself, within IP's length.
  static uint32_t limit(bool by_device);
  void close() { fd_ = Fd(); }

  enum class Outcome : uint8_t {
    kSent,
    kFull,     ///< again later; nothing has left
    kDropped,  ///< the device or its queueing discipline dropped it, as a full switch would
    kNoDevice,
    kRefused,  ///< such frames are not taken at all
  };
  /// Copies the frame (a whole one, TCP over IPv4 or IPv6) to the kernel; the caller keeps it.
  Outcome send(const Packet& frame);

 private:
  Fd fd_;
};

}  // namespace accel::xdp
