// Just enough of nf_tables' netlink to keep one table whose owner is this socket: the kernel removes it with
// the socket, however the process ends.
//
// A frame that one of its rules matches is taken off the netdev and goes, marked, into the loopback device,
// where a packet socket finds it by the mark (packet_port.h) and nobody else does: it is the NIC's or the
// kernel's, or another process's, never two's. Chains are hooked in the order of the rules' priorities, so
// between processes too the better rule has the frame.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace model {

/// A netlink message under construction.
class NetlinkMessage {
 public:
  NetlinkMessage(uint16_t type, uint16_t flags, uint32_t serial, uint8_t family, uint16_t resource);
  NetlinkMessage& put(uint16_t type, const void* data, size_t size);
  NetlinkMessage& text(uint16_t type, const std::string& value) {
    return put(type, value.c_str(), value.size() + 1);
  }
  NetlinkMessage& be32(uint16_t type, uint32_t value);
  NetlinkMessage& be64(uint16_t type, uint64_t value);
  size_t begin(uint16_t type);
  void end(size_t at);
  std::span<const uint8_t> finish();

 private:
  std::vector<uint8_t> bytes_;
};

class StealTable {
 public:
  StealTable() = default;
  ~StealTable();
  StealTable(const StealTable&) = delete;
  StealTable& operator=(const StealTable&) = delete;

  accel::Result<void> open(const std::string& netdev);
  /// Of the frames taken; 0 before open().
  uint32_t mark() const { return mark_; }

  struct Compare {
    enum Base : uint8_t { kLink, kNetwork, kTransport } base;
    uint8_t offset;
    std::vector<uint8_t> value, mask;
    bool negate = false;
  };
  /// Frames that meet all comparisons are taken. `order`: rules of a lower one go first, 0 to kLastOrder. The
  /// handle removes the rule. ENETDOWN: the loopback device is down.
  accel::Result<uint64_t> add(std::span<const Compare> compares, uint16_t ether_type, uint16_t order);
  static constexpr uint16_t kLastOrder = 400;
  void remove(uint64_t handle, uint16_t order);
  void close();

 private:
  NetlinkMessage new_chain(const std::string& name, const char* netdev, int32_t priority);
  NetlinkMessage new_rule(const std::string& chain);
  accel::Result<uint64_t> transact(std::span<NetlinkMessage> messages);

  int fd_ = -1;
  uint32_t serial_ = 1, mark_ = 0;
  std::string name_, netdev_;
  std::set<uint16_t> chains_;
};

}  // namespace model
