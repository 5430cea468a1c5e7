#include "mlx5/striding_queue.h"

#include <algorithm>
#include <cstring>

namespace accel::mlx5 {

StridingQueue::StridingQueue(const ReceiveRing& ring, DoorbellRecord posted,
                             const CompletionReader& completions, DoorbellRecord consumed, FramePool& pool,
                             const StrideMemory& memory, uint32_t reserve)
    : ReceiveQueue(ring, posted, completions, consumed, pool, reserve), memory_(memory) {
  for (uint32_t i = 0; i < ring.entries; ++i)
    write_striding_receive(ring, i, memory_.at(i, 0), memory_.buffer_size());
}

/// Entries are the same for ever: posting is announcing.
void StridingQueue::refill(uint32_t) {
  if (posted() == ring_.entries) return;
  head_ = tail_ + ring_.entries;
  announce();
}

/// The device fills buffers in order and without holes.
bool StridingQueue::follows(const Completion& c) const {
  const StridedLength taken(c.length);
  return c.kind == Completion::Kind::kReceive && posted() != 0 &&
         ((c.wqe_id ^ tail_) & (ring_.entries - 1)) == 0 && c.wqe_counter == used_ && taken.strides() != 0 &&
         taken.strides() <= memory_.strides - used_;
}

/// nullptr: no room in the pool.
Packet* StridingQueue::copy(const uint8_t* from, uint32_t length) {
  const uint32_t size = pool_->buffer_size();
  if (pool_->available() < reserve_ + (length + size - 1) / size) return nullptr;
  Packet* first = pool_->take();
  for (Packet* p = first;; p = p->more = pool_->take()) {
    p->offset = 0;
    p->length = std::min(length, p->capacity);
    std::memcpy(p->buffer, from, p->length);
    from += p->length;
    length -= p->length;
    if (length == 0) return first;
  }
}

size_t StridingQueue::receive(std::span<Received> out) {
  return take_completions(out, [this](const Completion& c, Packet** frame) {
    if (!follows(c)) return false;
    const StridedLength taken(c.length);
    const uint8_t* bytes = memory_.at(tail_ & (ring_.entries - 1), used_);
    used_ += taken.strides();
    __builtin_prefetch(bytes + size_t{taken.strides()} * memory_.stride);  // where the next one is
    if (used_ == memory_.strides) {
      used_ = 0;
      ++tail_;
    }
    if (taken.filler()) return true;
    if (taken.bytes() < kEthernetHeader || taken.bytes() > taken.strides() * memory_.stride)
      ++refused_;
    else if (*frame = copy(bytes, taken.bytes()); !*frame)
      ++empty_;
    return true;
  });
}

void StridingQueue::reset() {
  skip_completions();
  used_ = 0;
}

}  // namespace accel::mlx5
