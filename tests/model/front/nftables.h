// Just enough of nf_tables' netlink to keep one table whose owner is this socket: the kernel removes it with
// the socket, however the process ends.
#pragma once

#include <cstdint>
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

class DropTable {
 public:
  DropTable() = default;
  ~DropTable();
  DropTable(const DropTable&) = delete;
  DropTable& operator=(const DropTable&) = delete;

  /// The table and its chain on the netdev's ingress.
  accel::Result<void> open(const std::string& netdev);

  struct Compare {
    enum Base : uint8_t { kLink, kNetwork, kTransport } base;
    uint8_t offset;
    std::vector<uint8_t> value, mask;
    bool negate = false;
  };
  /// Frames that meet all comparisons are dropped. The handle removes the rule.
  accel::Result<uint64_t> add(std::span<const Compare> compares, uint16_t ether_type);
  void remove(uint64_t handle);
  void close();

 private:
  accel::Result<uint64_t> transact(std::span<NetlinkMessage> messages);

  int fd_ = -1;
  uint32_t serial_ = 1;
  std::string name_;
};

}  // namespace model
