// A fixed pool of equal buffers over one region of memory that the engine maps and the ports register.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>

#include "stack/packet.h"

namespace accel {

/// Buffers `first` to first + count - 1 of a pool's region.
struct FrameRange {
  uint32_t first = 0, count = 0;
  uint8_t id = 0;  ///< 0: the region as a whole, which all ports have in common

  bool has(const Packet& p) const { return p.index - first < count; }
};

/// Not thread-safe but for reserve() and unreserve(): it belongs to a worker and is used under its lock.
/// Never grows: take() returns nullptr when empty.
///
/// A port whose device reads and writes a part of the region only has that part for itself: its pages are
/// pinned. The other buffers cost memory from their first use on, and such a port copies what has to pass
/// through them. The stack takes of the part of the port that is favoured, and leaves it a quarter.
class FramePool {
 public:
  /// `region`: page-aligned, outlives the pool; `buffer_size`: a power of two; its size is a multiple of
  /// buffer_size.
  FramePool(std::span<uint8_t> region, uint32_t buffer_size)
      : region_(region),
        buffer_size_(buffer_size),
        size_(static_cast<uint32_t>(region.size() / buffer_size)),
        packets_(std::make_unique_for_overwrite<Slot[]>(size_)) {}
  FramePool(const FramePool&) = delete;
  FramePool& operator=(const FramePool&) = delete;

  // ---- parts of the region ----
  /// Room for a part of `n` buffers, or fewer where the region has not so much left together; count 0: none.
  /// It begins at a page. Any thread.
  FrameRange reserve(uint32_t n) {
    uint64_t reserved = reserved_.load(std::memory_order_relaxed);
    for (;;) {
      const auto [first, length] = free_units(reserved, (n + unit() - 1) / unit());
      if (length == 0) return {};
      if (!reserved_.compare_exchange_weak(reserved, reserved | units(first, length),
                                           std::memory_order_relaxed))
        continue;
      return {first * unit(), std::min(n, length * unit()), static_cast<uint8_t>(first + 1)};
    }
  }
  /// Any thread.
  void unreserve(const FrameRange& part) {
    const uint32_t length = (part.count + unit() - 1) / unit();
    reserved_.fetch_and(~units(part.id - 1u, length), std::memory_order_relaxed);
  }
  bool any_reserved() const { return reserved_.load(std::memory_order_relaxed) != 0; }

  /// A reserved part is one port's from now on, until take_back(). Buffers of it that are in use become the
  /// port's when they are released.
  void give_to_port(const FrameRange& part) {
    Group& own = groups_[part.id];
    const uint32_t end = part.first + part.count;
    for (Packet** link = &groups_[0].free; *link;) {
      Packet* p = *link;
      if (!part.has(*p)) {
        link = &p->next;
        continue;
      }
      *link = p->next;
      --groups_[0].available;
      push(own, *p);
    }
    for (uint32_t i = part.first; i < std::min(end, fresh_); ++i) at(i)->range = part.id;
    for (; fresh_ < part.first; ++fresh_) push(groups_[0], *make(fresh_));
    for (uint32_t i = end; i-- > std::max(part.first, fresh_);) {
      make(i)->range = part.id;
      push(own, *at(i));
    }
    fresh_ = std::max(fresh_, end);
    own.left_to_port = part.count / 4;
    if (favoured_ == groups_.data()) favour(part);
  }
  void take_back(const FrameRange& part) {
    Group& own = groups_[part.id];
    while (own.free) {
      Packet* p = own.free;
      own.free = p->next;
      push(groups_[0], *p);
    }
    own = {};
    for (uint32_t i = part.first; i < part.first + part.count; ++i) at(i)->range = 0;
    if (favoured_ == &own) favoured_ = groups_.data();
  }
  /// The port that has received last: what the stack sends next goes by it most likely.
  void favour(const FrameRange& part) { favoured_ = &groups_[part.id]; }
  FrameRange whole() const { return {0, size_, 0}; }

  // ---- buffers ----
  /// An empty buffer (offset = kHeadroom, length 0, all marks cleared), or nullptr.
  Packet* take() {
    if (favoured_->available > favoured_->left_to_port) return pop(*favoured_);
    if (Packet* p = take_ordinary()) return p;
    return take_last();
  }
  /// Of those that no port has for itself; nullptr: there is none.
  Packet* take_ordinary() {
    if (groups_[0].free) return pop(groups_[0]);
    if (fresh_ == size_) return nullptr;
    ++used_;
    return make(fresh_++);
  }
  /// Calls use(buffer) for up to `n` buffers of a port's part; returns for how many.
  template <class Use>
  uint32_t take_of(const FrameRange& part, uint32_t n, Use use) {
    Group& group = groups_[part.id];
    uint32_t taken = 0;
    for (; taken < n && group.free; ++taken) use(pop(group));
    if (part.id != 0) return taken;
    for (; taken < n && fresh_ < size_; ++taken) use(take_ordinary());
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
  uint32_t available() const { return size_ - used_; }
  /// What take_of() can give.
  uint32_t available(const FrameRange& part) const {
    return groups_[part.id].available + (part.id == 0 ? size_ - fresh_ : 0);
  }
  uint32_t size() const { return size_; }
  uint32_t buffer_size() const { return buffer_size_; }
  std::span<uint8_t> region() const { return region_; }
  std::span<uint8_t> bytes(const FrameRange& part) const {
    return region_.subspan(size_t{part.first} * buffer_size_, size_t{part.count} * buffer_size_);
  }

 private:
  /// Not constructed until the buffer is needed: the array of a pool that is never used whole stays
  /// untouched.
  struct alignas(Packet) Slot {
    std::byte bytes[sizeof(Packet)];
  };
  /// Buffers that are free: those of a port's part, or (0) those that no port has for itself.
  struct Group {
    Packet* free = nullptr;
    uint32_t available = 0;
    uint32_t left_to_port = 0;
  };
  struct Units {
    uint32_t first = 0, length = 0;
  };

  /// Parts are reserved in units of so many buffers, whole pages: a bit of reserved_ for each.
  uint32_t unit() const { return ((size_ + 63) / 64 + 1) & ~1u; }
  static uint64_t units(uint32_t first, uint32_t length) {
    return (length < 64 ? (uint64_t{1} << length) - 1 : ~uint64_t{0}) << first;
  }
  /// The first free ones, `wanted` together; else the longest run that there is.
  Units free_units(uint64_t reserved, uint32_t wanted) const {
    const uint32_t all = size_ / unit();
    Units longest;
    for (uint32_t first = 0; first < all;) {
      const uint64_t from_here = reserved >> first;
      const auto length = std::min({static_cast<uint32_t>(std::countr_zero(from_here)), all - first, wanted});
      if (length > longest.length) longest = {first, length};
      if (longest.length == wanted) break;
      first += length + 1;
    }
    return longest;
  }

  Packet* make(uint32_t index) {
    auto* p = new (&packets_[index]) Packet;
    p->pool = this;
    p->buffer = region_.data() + size_t{index} * buffer_size_;
    p->capacity = buffer_size_;
    p->index = index;
    return p;
  }
  static void clear(Packet& p) {
    p.next = p.more = nullptr;
    p.offset = kHeadroom;
    p.length = 0;
    p.checksum_good = p.checksum_offload = false;
    p.tso_size = p.header_length = 0;
    p.timestamp = 0;
  }
  static void push(Group& group, Packet& p) {
    p.next = group.free;
    group.free = &p;
    ++group.available;
  }
  Packet* pop(Group& group) {
    Packet* p = group.free;
    group.free = p->next;
    --group.available;
    ++used_;
    clear(*p);
    return p;
  }
  /// Of what is left to ports.
  Packet* take_last() {
    if (used_ == size_) return nullptr;
    return pop(*std::find_if(groups_.begin(), groups_.end(), [](const Group& g) { return g.free; }));
  }
  void give(Packet* p) {
    push(groups_[p->range], *p);
    --used_;
  }

  std::span<uint8_t> region_;
  uint32_t buffer_size_;
  uint32_t size_;
  std::unique_ptr<Slot[]> packets_;
  uint32_t used_ = 0;
  uint32_t fresh_ = 0;            ///< from here on none has been used yet
  std::array<Group, 65> groups_;  ///< by FrameRange::id
  Group* favoured_ = groups_.data();
  std::atomic<uint64_t> reserved_{0};
};

}  // namespace accel
