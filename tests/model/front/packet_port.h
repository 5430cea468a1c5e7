// The NIC's port: an AF_PACKET socket on the netdev that the kernel has for it. The kernel sees every frame
// too; what rules match is dropped behind this tap (steal.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"

namespace model {

class PacketPort {
 public:
  static accel::Result<PacketPort> open(const std::string& netdev);
  PacketPort() = default;
  PacketPort(PacketPort&& other) noexcept;
  PacketPort& operator=(PacketPort&& other) noexcept;
  ~PacketPort();

  int fd() const { return fd_; }
  /// Whether frames come in: with no rule there is nothing to look at them for.
  void listen(bool on);
  bool listens() const { return listens_; }
  void transmit(std::span<const uint8_t> frame);
  /// The next frame, with its VLAN tag where it had one, or empty. Valid until the next call.
  std::span<const uint8_t> receive();
  /// Frames lost since the last call, since the tap's queue was full.
  uint64_t lost();

 private:
  static constexpr size_t kFrame = 70000;
  int fd_ = -1;
  int ifindex_ = 0;
  bool listens_ = false;
  uint8_t* buffer_ = nullptr;
};

}  // namespace model
