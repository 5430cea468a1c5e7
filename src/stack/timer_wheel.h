// A hierarchical timer wheel: arm, cancel and "when is the next" in constant time whatever the number of
// timers.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "base/instant.h"

namespace accel {

/// A timer's place in the wheel; a member of what it belongs to. Must be cancelled before it is destroyed.
struct TimerNode {
  TimerNode* next = nullptr;
  TimerNode** pprev = nullptr;  ///< what points to this node; nullptr: not armed
  uint64_t tick = 0;            ///< when it fires
  uint16_t slot = 0;            ///< level * 64 + slot, where it lies
  bool armed() const { return pprev != nullptr; }
};

/// Seven levels of 64 slots over ticks of 262 µs: 36 years. A timer lies on the level of the highest base-64
/// digit in which its tick differs from now, so each level's slots lie ahead within the digit above, and
/// lower levels come first.
class TimerWheel {
 public:
  static constexpr int kTickShift = 18;  ///< a tick is 2^18 ns
  static constexpr int kLevels = 7;

  /// (Re)arms; never fires before `when`.
  void arm(TimerNode& node, Instant when) {
    if (node.armed()) cancel(node);
    uint64_t ns = static_cast<uint64_t>(when.time_since_epoch().count());
    uint64_t tick = when.time_since_epoch().count() <= 0
                        ? 0
                        : (ns >> kTickShift) + ((ns & ((1u << kTickShift) - 1)) != 0);
    if (tick <= elapsed_) tick = elapsed_ + 1;
    if (tick > kMaxTick) tick = kMaxTick;
    node.tick = tick;
    insert(node);
  }

  void cancel(TimerNode& node) {
    if (!node.armed()) return;
    unlink(node);
    if (slots_[node.slot]) return;
    occupied_[node.slot >> 6] &= ~(1ull << (node.slot & 63));
    next_ = first_tick();
  }

  /// When advance() has something to do: a timer that fires or a slot that moves down. kNever: no timer is
  /// armed.
  Instant next() const {
    return next_ == kNone ? kNever : Instant(Duration(static_cast<int64_t>(next_ << kTickShift)));
  }

  /// Calls fire(node) for each timer due by `now`, in order of ticks; the node is disarmed before. It may arm
  /// and cancel any node.
  template <class Fire>
  void advance(Instant now, Fire&& fire) {
    int64_t ns = now.time_since_epoch().count();
    uint64_t target = ns <= 0 ? 0 : static_cast<uint64_t>(ns) >> kTickShift;
    while (next_ != kNone && next_ <= target) {
      elapsed_ = next_;
      const uint32_t slot = first_slot();
      TimerNode* due = slots_[slot];
      slots_[slot] = nullptr;
      occupied_[slot >> 6] &= ~(1ull << (slot & 63));
      next_ = first_tick();
      due->pprev = &due;
      while (due) {
        TimerNode& node = *due;
        unlink(node);
        if (node.tick <= elapsed_)
          fire(node);
        else
          insert(node);
      }
    }
    if (target > elapsed_) elapsed_ = target;
  }

 private:
  static constexpr uint64_t kNone = ~0ull;
  static constexpr uint32_t kNoSlot = ~0u;
  static constexpr uint64_t kMaxTick = (1ull << (6 * kLevels)) - 1;

  void insert(TimerNode& node) {
    uint64_t differs = (node.tick ^ elapsed_) | 63;
    uint32_t level = static_cast<uint32_t>(63 - std::countl_zero(differs)) / 6;
    uint32_t digit = (node.tick >> (6 * level)) & 63;
    node.slot = static_cast<uint16_t>(level * 64 + digit);
    TimerNode*& head = slots_[node.slot];
    node.next = head;
    if (head) head->pprev = &node.next;
    node.pprev = &head;
    head = &node;
    occupied_[level] |= 1ull << digit;
    next_ = std::min(next_, node.tick >> (6 * level) << (6 * level));
  }

  static void unlink(TimerNode& node) {
    *node.pprev = node.next;
    if (node.next) node.next->pprev = node.pprev;
    node.next = nullptr;
    node.pprev = nullptr;
  }

  /// The first slot that is occupied; kNoSlot: none is.
  uint32_t first_slot() const {
    for (uint32_t level = 0; level < kLevels; ++level)
      if (occupied_[level]) return level * 64 + static_cast<uint32_t>(std::countr_zero(occupied_[level]));
    return kNoSlot;
  }

  /// When the first slot's time begins.
  uint64_t first_tick() const {
    const uint32_t slot = first_slot();
    if (slot == kNoSlot) return kNone;
    const uint32_t level = slot / 64;
    const uint64_t above = elapsed_ >> (6 * (level + 1)) << (6 * (level + 1));
    return above | uint64_t{slot % 64} << (6 * level);
  }

  std::array<TimerNode*, 64 * kLevels> slots_{};
  std::array<uint64_t, kLevels> occupied_{};
  uint64_t elapsed_ = 0;
  uint64_t next_ = kNone;  ///< first_tick(); each call asks for it
};

}  // namespace accel
