// What is in flight, segment by segment: the scoreboard of RFC 6675, with the times that RFC 8985 (RACK) asks
// for.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "base/instant.h"
#include "stack/tcp/resent.h"
#include "stack/tcp/seq.h"

namespace accel {

struct SentSegment {
  uint32_t begin = 0;
  uint32_t end = 0;  ///< one past the last byte; a FIN counts as one
  /// When it was last sent, low bits of the stack's clock in µs: good for half an hour. Of a SACKed one,
  /// whose time nobody asks for any more: how many SACKed ones follow each other from this one on, at least.
  uint32_t sent_us = 0;
  bool sacked = false;
  bool lost = false;            ///< deemed lost (stays set while the retransmission flies)
  bool resent = false;          ///< a retransmission is in flight
  uint8_t ever_resent : 1 = 0;  ///< Karn: its ACK says nothing of the round-trip time
  uint8_t fin : 1 = 0;
  uint8_t push : 1 = 0;  ///< it was sent with PSH
  uint32_t length() const { return end - begin; }
};
static_assert(sizeof(SentSegment) == 16);

/// What is known of the connection as a segment was last sent, for delivery rates (RateSample).
struct SendStamp {
  uint32_t delivered = 0;      ///< TcpConn::delivered
  uint32_t delivered_us = 0;   ///< when that was
  uint32_t first_sent_us = 0;  ///< when the newest segment that had been delivered was sent
  bool valid = false;
  bool app_limited = false;
};
static_assert(sizeof(SendStamp) == 16);

/// A ring of SentSegments in order of sequence numbers. Grows by doubling; gives its memory back with
/// reset(). One for more than a few segments has a SendStamp for each, behind them.
class SentRing {
 public:
  static constexpr uint32_t kFew = 4;

  SentRing() = default;
  SentRing(const SentRing&) = delete;
  SentRing& operator=(const SentRing&) = delete;
  ~SentRing() { reset(); }

  bool empty() const { return size_ == 0; }
  uint32_t size() const { return size_; }
  SentSegment& operator[](uint32_t i) { return slots_[(head_ + i) & (capacity_ - 1)]; }
  const SentSegment& operator[](uint32_t i) const { return slots_[(head_ + i) & (capacity_ - 1)]; }
  SentSegment& front() { return slots_[head_]; }
  SentSegment& back() { return (*this)[size_ - 1]; }

  /// Room for `n` more; false: no memory, nothing changed.
  bool reserve(uint32_t n) {
    if (capacity_ - size_ >= n) return true;
    uint32_t capacity = std::bit_ceil(std::max(size_ + n, kFew));
    const size_t stamps = capacity > kFew ? capacity * sizeof(SendStamp) : 0;
    auto* slots =
        static_cast<SentSegment*>(::operator new(capacity * sizeof(SentSegment) + stamps, std::nothrow));
    if (!slots) return false;
    for (uint32_t i = 0; i < size_; ++i) slots[i] = (*this)[i];
    if (stamps > 0) {
      auto* behind = reinterpret_cast<SendStamp*>(slots + capacity);
      for (uint32_t i = 0; i < capacity; ++i)
        behind[i] = i < size_ && has_stamps() ? *stamp_of((*this)[i]) : SendStamp{};
    }
    ::operator delete(slots_);
    slots_ = slots;
    capacity_ = capacity;
    head_ = 0;
    return true;
  }
  bool has_stamps() const { return capacity_ > kFew; }
  /// False: no memory.
  bool reserve_stamps() { return has_stamps() || reserve(kFew + 1 - size_); }
  /// nullptr: without stamps.
  SendStamp* stamp_of(const SentSegment& s) {
    return has_stamps() ? reinterpret_cast<SendStamp*>(slots_ + capacity_) + (&s - slots_) : nullptr;
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
    s.ever_resent = s.fin = s.push = 0;
    return s;
  }
  void pop_front() {
    head_ = (head_ + 1) & (capacity_ - 1);
    if (--size_ == 0 && resent_) resent_->clear();
  }
  /// After reserve(): cuts segment i at `seq`, both halves keep its marks.
  void split(uint32_t i, uint32_t seq) {
    ++size_;
    for (uint32_t k = size_ - 1; k > i; --k) {
      (*this)[k] = (*this)[k - 1];
      if (has_stamps()) *stamp_of((*this)[k]) = *stamp_of((*this)[k - 1]);
    }
    (*this)[i].end = seq;
    (*this)[i].fin = (*this)[i].push = 0;
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
  /// First segment from `i` on that is not SACKed. Runs of SACKed ones are stepped over, and become longer by
  /// that (path halving): each is walked in a logarithm of its length, however often a peer tells of it.
  uint32_t skip_sacked(uint32_t i) {
    while (i < size_ && (*this)[i].sacked) {
      SentSegment& s = (*this)[i];
      const uint32_t next = i + s.sent_us;
      if (next < size_ && (*this)[next].sacked) s.sent_us += (*this)[next].sent_us;
      i = next;
    }
    return i;
  }
  /// Retransmissions that RACK has not judged yet, oldest first; nullptr: none.
  ResentQueue* resent() { return resent_ && !resent_->empty() ? resent_ : nullptr; }
  void note_resent(const SentSegment& s) {
    if (!resent_) resent_ = new (std::nothrow) ResentQueue;
    if (resent_) resent_->push({s.begin, s.sent_us});
  }
  void forget_resent() {
    if (resent_) resent_->clear();
  }
  void reset() {
    ::operator delete(slots_);
    delete resent_;
    slots_ = nullptr;
    resent_ = nullptr;
    capacity_ = head_ = size_ = 0;
  }

 private:
  ResentQueue* resent_ = nullptr;
  SentSegment* slots_ = nullptr;
  uint32_t capacity_ = 0;
  uint32_t head_ = 0;
  uint32_t size_ = 0;

 public:
  uint32_t lost_from = 0;  ///< before it nothing is lost that has not been sent again; see mark_lost()
};

}  // namespace accel
