// What is in flight, segment by segment: the scoreboard of RFC 6675, with the times that RFC 8985 (RACK) asks
// for.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "base/instant.h"
#include "stack/tcp/seq.h"

namespace accel {

struct SentSegment {
  uint32_t begin = 0;
  uint32_t end = 0;  ///< one past the last byte; a FIN counts as one
  uint32_t sent_us =
      0;  ///< when it was last sent, low bits of the stack's clock in µs: good for half an hour
  bool sacked = false;
  bool lost = false;            ///< deemed lost (stays set while the retransmission flies)
  bool resent = false;          ///< a retransmission is in flight
  uint8_t ever_resent : 1 = 0;  ///< Karn: its ACK says nothing of the round-trip time
  uint8_t fin : 1 = 0;
  uint32_t length() const { return end - begin; }
};
static_assert(sizeof(SentSegment) == 16);

/// A ring of SentSegments in order of sequence numbers. Grows by doubling; gives its memory back with
/// reset().
class SentRing {
 public:
  SentRing() = default;
  SentRing(const SentRing&) = delete;
  SentRing& operator=(const SentRing&) = delete;
  ~SentRing() { ::operator delete(slots_); }

  bool empty() const { return size_ == 0; }
  uint32_t size() const { return size_; }
  SentSegment& operator[](uint32_t i) { return slots_[(head_ + i) & (capacity_ - 1)]; }
  const SentSegment& operator[](uint32_t i) const { return slots_[(head_ + i) & (capacity_ - 1)]; }
  SentSegment& front() { return slots_[head_]; }
  SentSegment& back() { return (*this)[size_ - 1]; }

  /// Room for `n` more; false: no memory, nothing changed.
  bool reserve(uint32_t n) {
    if (capacity_ - size_ >= n) return true;
    uint32_t capacity = std::bit_ceil(std::max(size_ + n, 4u));
    auto* slots = static_cast<SentSegment*>(::operator new(capacity * sizeof(SentSegment), std::nothrow));
    if (!slots) return false;
    for (uint32_t i = 0; i < size_; ++i) slots[i] = (*this)[i];
    ::operator delete(slots_);
    slots_ = slots;
    capacity_ = capacity;
    head_ = 0;
    return true;
  }
  /// After reserve().
  SentSegment& push_back(const SentSegment& s) { return slots_[(head_ + size_++) & (capacity_ - 1)] = s; }
  /// After reserve(): a new last one, to be filled in.
  SentSegment& add(uint32_t begin, uint32_t end, uint32_t sent_us) {
    SentSegment& s = slots_[(head_ + size_++) & (capacity_ - 1)];
    s.begin = begin;
    s.end = end;
    s.sent_us = sent_us;
    s.sacked = s.lost = s.resent = false;
    s.ever_resent = s.fin = 0;
    return s;
  }
  void pop_front() {
    head_ = (head_ + 1) & (capacity_ - 1);
    --size_;
  }
  /// After reserve(): cuts segment i at `seq`, both halves keep its marks.
  void split(uint32_t i, uint32_t seq) {
    ++size_;
    for (uint32_t k = size_ - 1; k > i + 1; --k) (*this)[k] = (*this)[k - 1];
    (*this)[i + 1] = (*this)[i];
    (*this)[i].end = seq;
    (*this)[i].fin = 0;
    (*this)[i + 1].begin = seq;
  }
  /// First segment that ends after `seq`.
  uint32_t find(uint32_t seq) const {
    uint32_t low = 0, high = size_;
    while (low < high) {
      uint32_t middle = (low + high) / 2;
      if (seq_gt((*this)[middle].end, seq))
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  }
  void clear() { head_ = size_ = 0; }
  void reset() {
    ::operator delete(slots_);
    slots_ = nullptr;
    capacity_ = head_ = size_ = 0;
  }

 private:
  SentSegment* slots_ = nullptr;
  uint32_t capacity_ = 0;
  uint32_t head_ = 0;
  uint32_t size_ = 0;
};

}  // namespace accel
