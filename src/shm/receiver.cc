#include "shm/receiver.h"

#include <algorithm>
#include <cstring>

namespace accel::shm {
namespace {

/// Whether an honest sender may have gone from `before` to `now`.
bool follows(Carrier before, Carrier now) {
  if (now > Carrier::kEnded) return false;
  return before == now || before == Carrier::kKernel || before == Carrier::kRing;
}

}  // namespace

Receiver::Way Receiver::look() {
  if (way_ == Way::kBroken || seen_ == Carrier::kReturned) return way_;
  const Carrier carrier = shared_.carrier.load(std::memory_order_acquire);
  const uint64_t tail = shared_.tail.load(std::memory_order_acquire);
  if (!follows(seen_, carrier) || (seen_ != Carrier::kKernel && carrier == Carrier::kKernel)) return broken();
  if (carrier == Carrier::kKernel) return way_ = Way::kKernel;
  if (tail < tail_ || tail - head_ > ring_.size()) return broken();
  tail_ = tail;
  base_ = shared_.base.load(std::memory_order_relaxed);
  if (seen_ == Carrier::kKernel) {
    by_kernel_ = shared_.by_kernel.load(std::memory_order_relaxed);
    if (by_kernel_ < from_kernel_) return broken();
  }
  seen_ = carrier;
  if (from_kernel_ < by_kernel_) return way_ = Way::kKernel;
  if (available() > 0 || carrier == Carrier::kRing) return way_ = Way::kRing;
  return way_ = carrier == Carrier::kLeft ? Way::kKernel : Way::kEnd;
}

uint64_t Receiver::kernel_limit() const {
  const bool before_ring = seen_ != Carrier::kKernel && from_kernel_ < by_kernel_;
  return before_ring ? by_kernel_ - from_kernel_ : UINT64_MAX;
}

size_t Receiver::copy(std::span<uint8_t> to, size_t offset) const {
  if (offset >= available() || to.empty()) return 0;
  const size_t size = std::min(to.size(), available() - offset);
  const size_t at = (head_ + offset - base_) & (ring_.size() - 1);
  const size_t first = std::min(size, ring_.size() - at);
  std::memcpy(to.data(), &ring_[at], first);
  if (first < size) std::memcpy(&to[first], ring_.data(), size - first);
  return size;
}

bool Receiver::consume(size_t bytes) {
  head_ += std::min(bytes, available());
  shared_.head.store(head_, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (shared_.writer_asleep.load(std::memory_order_acquire) == 0) return false;
  // More may lie in the ring than the last look has found: what the sender waits for is its own count.
  if (shared_.tail.load(std::memory_order_relaxed) - head_ > ring_.size() / 3 * 2) return false;
  return shared_.writer_asleep.exchange(0, std::memory_order_relaxed) != 0;
}

void Receiver::note_told() {
  told_tail_ = tail_;
  told_ = seen_;
  told_broken_ = way_ == Way::kBroken;
}

bool Receiver::decline() {
  if (look() == Way::kBroken || seen_ == Carrier::kReturned) return true;
  Carrier from = seen_;
  // The sender's begin() may come between, nothing else that leads here again.
  for (int tries = 0; tries < 2 && (from == Carrier::kKernel || from == Carrier::kRing); ++tries) {
    if (!shared_.carrier.compare_exchange_strong(from, Carrier::kReturned, std::memory_order_acq_rel))
      continue;
    seen_ = Carrier::kReturned;
    by_kernel_ = 0;
    tail_ = head_;  // the rest comes by the kernel
    way_ = Way::kKernel;
    return true;
  }
  if (from == Carrier::kKernel || from == Carrier::kRing) return broken() == Way::kBroken;
  // Bytes come by the ring before what the kernel has, and only this end can take them.
  return look() == Way::kBroken || available() == 0;
}

}  // namespace accel::shm
