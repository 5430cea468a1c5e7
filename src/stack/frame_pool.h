// A fixed pool of equal buffers over one region of memory that the engine maps and the ports register.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "stack/packet.h"

namespace accel {

/// Not thread-safe: it belongs to a worker and is used under its lock. Never grows: take() returns nullptr
/// when empty.
///
/// The first buffers may be *registered*: devices read and write them, so their pages are pinned. The others
/// cost memory from their first use on, and a port copies what has to pass through them. While both kinds are
/// there the stack leaves a quarter of the registered ones to the ports.
class FramePool {
 public:
  static constexpr uint32_t kAll = ~0u;

  /// `region`: page-aligned, outlives the pool; `buffer_size`: a power of two; its size is a multiple of
  /// buffer_size. `registered`: see extend_registered().
  FramePool(std::span<uint8_t> region, uint32_t buffer_size, uint32_t registered = kAll)
      : region_(region),
        buffer_size_(buffer_size),
        size_(static_cast<uint32_t>(region.size() / buffer_size)),
        packets_(std::make_unique_for_overwrite<Slot[]>(size_)) {
    extend_registered(registered);
  }
  FramePool(const FramePool&) = delete;
  FramePool& operator=(const FramePool&) = delete;

  /// Buffers 0 to n - 1 are registered with a device from now on; it takes none away. Those of them that are
  /// in use become so when they come back.
  void extend_registered(uint32_t n) {
    n = std::min(n, size_);
    if (n <= registered_) return;
    uint32_t in_use = std::min(n, fresh_) - registered_;
    Packet* others = nullptr;
    for (Packet *p = ordinary_, *next; p; p = next) {
      next = p->next;
      if (p->index >= n) {
        push(others, *p);
        continue;
      }
      push(registered_free_, *p);
      ++registered_available_;
      --in_use;
    }
    ordinary_ = others;
    ordinary_used_ -= in_use;
    for (uint32_t i = n; i-- > fresh_; ++registered_available_) {
      make(i);
      push(registered_free_, *at(i));
    }
    fresh_ = std::max(fresh_, n);
    registered_ = n;
    left_to_ports_ = registered_ == size_ ? 0 : registered_ / 4;
  }

  /// An empty buffer (offset = kHeadroom, length 0, all marks cleared), or nullptr.
  Packet* take() {
    if (registered_available_ <= left_to_ports_) return take_ordinary();
    --registered_available_;
    return pop(registered_free_);
  }
  /// Of those that are not registered while there are any; else of the others.
  Packet* take_ordinary() {
    if (!ordinary_ && fresh_ < size_) {
      make(fresh_);
      push(ordinary_, *at(fresh_++));
    }
    if (ordinary_) {
      ++ordinary_used_;
      return pop(ordinary_);
    }
    if (registered_available_ == 0) return nullptr;
    --registered_available_;
    return pop(registered_free_);
  }
  /// Calls use(buffer) for up to `n` registered ones, of which there must be so many, with numbers below
  /// `limit` (a port that was opened when fewer were registered); returns for how many.
  template <class Use>
  uint32_t take_registered(uint32_t n, uint32_t limit, Use use) {
    uint32_t taken = 0;
    Packet *p = registered_free_, *others = nullptr;
    while (p && taken < n) {
      Packet* next = p->next;
      if (p->index < limit) {
        clear(*p);
        use(p);
        ++taken;
      } else {
        push(others, *p);
      }
      p = next;
    }
    while (others) {
      Packet* next = others->next;
      others->next = p;
      p = std::exchange(others, next);
    }
    registered_free_ = p;
    registered_available_ -= taken;
    return taken;
  }

  /// Gives back a frame with all its buffers. nullptr is allowed.
  static void release(Packet* p) {
    while (p) {
      Packet* more = p->more;
      p->pool->give(p);
      p = more;
    }
  }

  /// The packet whose buffer is number `index`, which has been taken before; the port's way back from a
  /// descriptor's address.
  Packet* at(uint32_t index) { return std::launder(reinterpret_cast<Packet*>(&packets_[index])); }
  uint32_t available() const { return registered_available_ + size_ - registered_ - ordinary_used_; }
  uint32_t size() const { return size_; }
  uint32_t registered() const { return registered_; }
  uint32_t available_registered() const { return registered_available_; }
  bool is_registered(const Packet& p) const { return p.index < registered_; }
  uint32_t buffer_size() const { return buffer_size_; }
  std::span<uint8_t> region() const { return region_; }

 private:
  /// Not constructed until the buffer is needed: the array of a pool that is never used whole stays
  /// untouched.
  struct alignas(Packet) Slot {
    std::byte bytes[sizeof(Packet)];
  };

  void make(uint32_t index) {
    auto* p = new (&packets_[index]) Packet;
    p->pool = this;
    p->buffer = region_.data() + size_t{index} * buffer_size_;
    p->capacity = buffer_size_;
    p->index = index;
  }
  static void clear(Packet& p) {
    p.next = p.more = nullptr;
    p.offset = kHeadroom;
    p.length = 0;
    p.checksum_good = p.checksum_offload = false;
    p.tso_size = p.header_length = 0;
    p.timestamp = 0;
  }
  static void push(Packet*& list, Packet& p) {
    p.next = list;
    list = &p;
  }
  static Packet* pop(Packet*& list) {
    Packet* p = list;
    list = p->next;
    clear(*p);
    return p;
  }
  void give(Packet* p) {
    if (p->index < registered_) {
      push(registered_free_, *p);
      ++registered_available_;
    } else {
      push(ordinary_, *p);
      --ordinary_used_;
    }
  }

  std::span<uint8_t> region_;
  uint32_t buffer_size_;
  uint32_t size_;
  std::unique_ptr<Slot[]> packets_;
  Packet* registered_free_ = nullptr;
  Packet* ordinary_ = nullptr;
  uint32_t registered_ = 0;
  uint32_t registered_available_ = 0;
  uint32_t left_to_ports_ = 0;
  uint32_t ordinary_used_ = 0;
  uint32_t fresh_ = 0;  ///< from here on none has been used yet
};

}  // namespace accel
