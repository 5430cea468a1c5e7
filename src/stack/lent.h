// What a socket's queue has given away, for the program to read in place.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "stack/packet.h"

namespace accel {

/// How much a socket may give away: buffers, and bytes of their true size.
struct LendLimit {
  uint32_t buffers;
  uint64_t memory;
};

/// Buffers that no queue has any more, frames of the pool or plain memory. Their holder owns them.
class Lent {
 public:
  Lent() = default;
  Lent(Lent&& other) noexcept { *this = std::move(other); }
  Lent& operator=(Lent&& other) noexcept {
    std::swap(packets_, other.packets_);
    std::swap(heap_, other.heap_);
    std::swap(heap_size_, other.heap_size_);
    std::swap(memory_, other.memory_);
    return *this;
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  /// Gives them back. Under the lock of the pool's worker.
  ~Lent();

  /// `p`: one buffer, without others behind it.
  void add(Packet* p, uint64_t memory) {
    packets_.push_back(p);
    memory_ += memory;
  }
  void add(std::unique_ptr<uint8_t[]> bytes, uint32_t size, uint64_t memory) {
    heap_ = std::move(bytes);
    heap_size_ = size;
    memory_ += memory;
  }
  uint32_t buffers() const { return packets_.size() + (heap_ ? 1 : 0); }
  uint64_t memory() const { return memory_; }
  /// Calls visit(pointer, length) for each buffer's bytes, in their order.
  template <class Visit>
  void for_each(Visit visit) const {
    for (Packet* p = packets_.front(); p; p = p->next) visit(p->data(), p->length);
    if (heap_) visit(heap_.get(), heap_size_);
  }

 private:
  PacketQueue packets_;
  std::unique_ptr<uint8_t[]> heap_;
  uint32_t heap_size_ = 0;
  uint64_t memory_ = 0;
};

}  // namespace accel
