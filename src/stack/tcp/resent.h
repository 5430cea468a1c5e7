// Retransmissions in the order in which they left: RACK (RFC 8985) judges them by that, and the scoreboard is
// in the order of sequence numbers.
#pragma once

#include <cstdint>
#include <new>

namespace accel {

struct Resent {
  uint32_t seq = 0;      ///< where the segment begins
  uint32_t sent_us = 0;  ///< its SentSegment::sent_us then; another now: it has been sent again since
};

/// A ring that grows by doubling. What has arrived meanwhile is still listed.
class ResentQueue {
 public:
  ResentQueue() = default;
  ResentQueue(const ResentQueue&) = delete;
  ResentQueue& operator=(const ResentQueue&) = delete;
  ~ResentQueue() { ::operator delete(slots_); }

  bool empty() const { return size_ == 0; }
  const Resent& front() const { return slots_[head_]; }
  void pop() {
    head_ = (head_ + 1) & (capacity_ - 1);
    --size_;
  }
  void clear() { head_ = size_ = 0; }
  /// Without memory it is not listed: the retransmission timeout is left for it.
  void push(const Resent& r) {
    if (size_ == capacity_ && !grow()) return;
    slots_[(head_ + size_++) & (capacity_ - 1)] = r;
  }

 private:
  bool grow() {
    const uint32_t capacity = capacity_ ? 2 * capacity_ : 16;
    auto* slots = static_cast<Resent*>(::operator new(capacity * sizeof(Resent), std::nothrow));
    if (!slots) return false;
    for (uint32_t i = 0; i < size_; ++i) slots[i] = slots_[(head_ + i) & (capacity_ - 1)];
    ::operator delete(slots_);
    slots_ = slots;
    capacity_ = capacity;
    head_ = 0;
    return true;
  }

  Resent* slots_ = nullptr;
  uint32_t capacity_ = 0, head_ = 0, size_ = 0;
};

}  // namespace accel
