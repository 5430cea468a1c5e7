// Queues in plain memory, and their bytes as hex.
#pragma once

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "mlx5/cqe.h"
#include "mlx5/wqe.h"

namespace accel::mlx5::test {

inline std::string hex(const uint8_t* from, size_t n) {
  std::string out;
  for (size_t i = 0; i < n; ++i) {
    char two[3];
    std::snprintf(two, sizeof(two), "%02x", from[i]);
    if (i != 0 && i % 4 == 0) out += i % 16 == 0 ? '\n' : ' ';
    out += two;
  }
  return out;
}

/// A send ring filled with 0xee, so that bytes nobody wrote show.
struct SendMemory {
  explicit SendMemory(uint32_t blocks) : bytes((blocks + 1) * kBlock, 0xee) {
    const auto raw = reinterpret_cast<uintptr_t>(bytes.data());
    ring.start = bytes.data() + (-raw & (kBlock - 1));
    ring.blocks = blocks;
    ring.qpn = 0x000112;
    ring.lkey = 0x00012300;
  }
  std::string octowords(uint32_t index, uint32_t n) const {
    std::string out;
    for (uint32_t i = 0; i < n; ++i) {
      const uint8_t* at = ring.block(index) + size_t{i} * kOctoword;
      while (at >= ring.end()) at -= size_t{ring.blocks} * kBlock;
      out += (i ? "\n" : "") + hex(at, kOctoword);
    }
    return out;
  }
  std::vector<uint8_t> bytes;
  SendRing ring;
};

/// 0, 1, 2, ...
inline std::vector<uint8_t> counting(size_t n) {
  std::vector<uint8_t> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<uint8_t>(i);
  return out;
}

/// A completion queue as the device leaves it to the driver: every entry unwritten.
struct CompletionMemory {
  explicit CompletionMemory(uint32_t count) : entries(count), cqes(count) {
    for (mlx5_cqe64& cqe : cqes) {
      std::memset(&cqe, 0, sizeof(cqe));
      cqe.op_own = kUnwritten;
    }
  }
  /// Fills the entry of number `index` (counting on over the laps) as the device would.
  mlx5_cqe64& write(uint32_t index, uint8_t opcode, uint8_t format = 0) {
    mlx5_cqe64& cqe = cqes[index & (entries - 1)];
    std::memset(&cqe, 0, sizeof(cqe));
    cqe.op_own = static_cast<uint8_t>(opcode << 4 | format << 2 | ((index & entries) != 0));
    return cqe;
  }
  CompletionReader reader() { return {cqes.data(), entries, kCqeSize}; }
  uint32_t entries;
  std::vector<mlx5_cqe64> cqes;
};

}  // namespace accel::mlx5::test
