// The NIC's port: a packet socket that sends on the netdev that the kernel has for it, and one on the
// loopback device for the frames that our rules take there (nftables.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"

namespace model {

class PacketPort {
 public:
  /// `mark`: of the frames that are ours.
  static accel::Result<PacketPort> open(const std::string& netdev, uint32_t mark);
  PacketPort() = default;
  PacketPort(PacketPort&& other) noexcept;
  PacketPort& operator=(PacketPort&& other) noexcept;
  ~PacketPort();

  /// To wait for frames by.
  int fd() const { return in_; }
  void close();
  void transmit(std::span<const uint8_t> frame);
  /// The next frame, with its VLAN tag where it had one, or empty. Valid until the next call.
  std::span<const uint8_t> receive();
  /// Frames lost since the last call, since the socket's queue was full.
  uint64_t lost();

 private:
  static constexpr size_t kFrame = 70000;
  int in_ = -1, out_ = -1;
  uint8_t* buffer_ = nullptr;
};

}  // namespace model
