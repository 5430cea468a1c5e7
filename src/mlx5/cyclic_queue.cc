#include "mlx5/cyclic_queue.h"

#include <algorithm>
#include <utility>

namespace accel::mlx5 {

CyclicQueue::CyclicQueue(const ReceiveRing& ring, DoorbellRecord posted, const CompletionReader& completions,
                         DoorbellRecord consumed, FramePool& pool, uint32_t segments, uint32_t target,
                         uint32_t most, uint32_t reserve)
    : ReceiveQueue(ring, posted, completions, consumed, pool, reserve),
      slots_(ring.entries),
      segments_(segments),
      target_(std::min(target, ring.entries)),
      most_(std::min(std::max(target, most), ring.entries)) {}

/// Twice as many entries where half of them were in use at once.
void CyclicQueue::fit(size_t taken, bool full) {
  in_row_ = full ? in_row_ + taken : 0;
  const bool dropped = dropped_ != std::exchange(dropped_before_, dropped_);
  if (target_ == most_ || (!dropped && in_row_ <= target_ / 2)) return;
  target_ = std::min(target_ * 2, most_);
  in_row_ = 0;
}

void CyclicQueue::refill(uint32_t at_least) {
  const uint32_t missing = target_ - posted();
  if (missing < at_least) return;
  const uint32_t free = pool_->available(pool_->whole());
  const uint32_t spare = free > reserve_ ? free - reserve_ : 0;
  const uint32_t n = std::min(missing, spare / segments_);
  if (n == 0) {
    ++empty_;
    return;
  }
  // Copies, since the compiler must take every write of a descriptor for one of theirs.
  const ReceiveRing ring = ring_;
  Packet** const slots = slots_.data();
  const uint32_t segments = segments_;
  uint32_t head = head_, number = 0;
  Packet** link = nullptr;
  pool_->take_of(pool_->whole(), n * segments, [&](Packet* p) {
    *(number == 0 ? &slots[head & (ring.entries - 1)] : link) = p;
    link = &p->more;
    write_receive(ring, head, number, p->buffer, p->capacity);
    if (++number < segments) return;
    end_receive(ring, head, segments);
    ++head;
    number = 0;
  });
  head_ = head;
  announce();
}

/// Fits the chain to the frame. False: the length cannot be.
inline bool CyclicQueue::accept(Packet* frame, uint32_t length) const {
  if (length < kEthernetHeader || length > segments_ * frame->capacity) return false;
  uint32_t left = length;
  for (Packet* p = frame;; p = p->more) {
    p->offset = 0;
    p->length = std::min(left, p->capacity);
    left -= p->length;
    if (left == 0) {
      FramePool::release(std::exchange(p->more, nullptr));
      break;
    }
  }
  return true;
}

size_t CyclicQueue::receive(std::span<Received> out) {
  const size_t n = take_completions(out, [this](const Completion& c, Packet** taken) {
    const bool too_long = c.kind == Completion::Kind::kReceiveError && !stops_receiving(c);
    if (c.kind != Completion::Kind::kReceive && !too_long) return false;
    Packet* frame = std::exchange(slots_[c.wqe_counter & (ring_.entries - 1)], nullptr);
    if (!frame) return false;
    ++tail_;
    if (!too_long && accept(frame, c.length)) {
      *taken = frame;
    } else {
      ++refused_;
      FramePool::release(frame);
    }
    return true;
  });
  if (n != 0) fit(n, n == out.size());
  return n;
}

void CyclicQueue::reset() {
  skip_completions();
  for (Packet*& p : slots_) FramePool::release(std::exchange(p, nullptr));
}

}  // namespace accel::mlx5
