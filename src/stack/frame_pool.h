// A fixed pool of equal buffers over one region of memory that the engine maps and the ports register.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "stack/packet.h"

namespace accel {

/// Not thread-safe: it belongs to a worker and is used under its lock. Never grows: take() returns nullptr
/// when empty.
class FramePool {
 public:
  /// `region`: page-aligned, outlives the pool; `buffer_size`: a power of two; its size is a multiple of
  /// buffer_size.
  FramePool(std::span<uint8_t> region, uint32_t buffer_size) : region_(region), buffer_size_(buffer_size) {
    packets_.resize(region.size() / buffer_size);
    for (uint32_t i = static_cast<uint32_t>(packets_.size()); i-- > 0;) {
      Packet& p = packets_[i];
      p.pool = this;
      p.buffer = region.data() + size_t{i} * buffer_size;
      p.capacity = buffer_size;
      p.index = i;
      p.next = free_;
      free_ = &p;
    }
    available_ = static_cast<uint32_t>(packets_.size());
  }
  FramePool(const FramePool&) = delete;
  FramePool& operator=(const FramePool&) = delete;

  /// An empty buffer (offset = kHeadroom, length 0, all marks cleared), or nullptr.
  Packet* take() {
    Packet* p = free_;
    if (!p) return nullptr;
    free_ = p->next;
    --available_;
    clear(*p);
    return p;
  }
  /// Calls use(buffer) for `n` of them, of which there must be so many: the list's head stays in a register.
  template <class Use>
  void take(uint32_t n, Use use) {
    Packet* p = free_;
    available_ -= n;
    while (n-- > 0) {
      Packet* next = p->next;
      clear(*p);
      use(p);
      p = next;
    }
    free_ = p;
  }

  /// Gives back a frame with all its buffers. nullptr is allowed.
  static void release(Packet* p) {
    while (p) {
      Packet* more = p->more;
      p->pool->give(p);
      p = more;
    }
  }

  /// The packet whose buffer is number `index`; the port's way back from a descriptor's address.
  Packet* at(uint32_t index) { return &packets_[index]; }
  uint32_t available() const { return available_; }
  uint32_t size() const { return static_cast<uint32_t>(packets_.size()); }
  uint32_t buffer_size() const { return buffer_size_; }
  std::span<uint8_t> region() const { return region_; }

 private:
  static void clear(Packet& p) {
    p.next = p.more = nullptr;
    p.offset = kHeadroom;
    p.length = 0;
    p.checksum_good = p.checksum_offload = false;
    p.tso_size = p.header_length = 0;
    p.timestamp = 0;
  }
  void give(Packet* p) {
    p->next = free_;
    free_ = p;
    ++available_;
  }

  std::span<uint8_t> region_;
  uint32_t buffer_size_;
  std::vector<Packet> packets_;
  Packet* free_ = nullptr;
  uint32_t available_ = 0;
};

}  // namespace accel
