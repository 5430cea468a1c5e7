#include "shm/sender.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace accel::shm {

Sender::Way Sender::look() {
  if (way_ != Way::kRing && way_ != Way::kEnded) return way_;
  const Carrier carrier = shared_.carrier.load(std::memory_order_acquire);
  const uint64_t head = shared_.head.load(std::memory_order_acquire);
  if (head < head_ || head > tail_) return broken();
  head_ = head;
  // The other end may say anything: what it says is no more than a bound, and a byte is always taken.
  const size_t of_receiver = shared_.receive_buffer.load(std::memory_order_relaxed);
  most_ = of_receiver == 0 ? ring_.size() : std::clamp<size_t>(buffer_ + of_receiver, 1, ring_.size());
  if (carrier == (way_ == Way::kRing ? Carrier::kRing : Carrier::kEnded)) return way_;
  if (way_ != Way::kRing || carrier != Carrier::kReturned) return broken();
  return way_ = head_ == tail_ ? Way::kKernel : Way::kReturning;
}

bool Sender::change(Carrier to) {
  Carrier from = to == Carrier::kRing ? Carrier::kKernel : Carrier::kRing;
  return shared_.carrier.compare_exchange_strong(from, to, std::memory_order_acq_rel);
}

bool Sender::begin(uint64_t by_kernel) {
  if (way_ != Way::kKernel || tail_ != 0) return false;
  shared_.by_kernel.store(by_kernel, std::memory_order_relaxed);
  if (!change(Carrier::kRing)) return false;
  way_ = Way::kRing;
  return true;
}

size_t Sender::put(std::span<const uint8_t> bytes) {
  if (way_ != Way::kRing) return 0;
  const size_t size = std::min(bytes.size(), room());
  if (size == 0) return 0;
  // An empty ring is filled from its beginning: short messages touch its first page alone, and the others are
  // no memory. The receiver has taken everything, so it looks at `base` with the next `tail` only.
  if (used() == 0) shared_.base.store(base_ = tail_, std::memory_order_relaxed);
  const size_t at = (tail_ - base_) & (ring_.size() - 1);
  const size_t first = std::min(size, ring_.size() - at);
  std::memcpy(&ring_[at], bytes.data(), first);
  if (first < size) std::memcpy(ring_.data(), &bytes[first], size - first);
  touched_ = std::max(touched_, std::min(at + size, ring_.size()));
  tail_ += size;
  return size;
}

bool Sender::publish() {
  shared_.tail.store(tail_, std::memory_order_release);
  // The store must be seen before the load is made: the receiver does the same the other way round.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (shared_.reader_asleep.load(std::memory_order_relaxed) == 0) return false;
  return shared_.reader_asleep.exchange(0, std::memory_order_relaxed) != 0;
}

std::span<uint8_t> Sender::take_spare() {
  if (used() > 0 || !has_grown()) return {};
  return ring_.subspan(kKept, std::exchange(touched_, kKept) - kKept);
}

bool Sender::leave() {
  if (way_ != Way::kRing || !change(Carrier::kLeft)) return false;
  way_ = Way::kKernel;
  return true;
}

bool Sender::end() {
  if (way_ != Way::kRing || !change(Carrier::kEnded)) return false;
  way_ = Way::kEnded;
  return true;
}

void Sender::note_told() {
  told_ = way_;
  told_writable_ = writable();
}

std::span<const uint8_t> Sender::unreturned() const {
  if (way_ != Way::kReturning) return {};
  const size_t at = (head_ - base_) & (ring_.size() - 1);
  return std::span<const uint8_t>(ring_).subspan(at, std::min(used(), ring_.size() - at));
}

void Sender::returned(size_t bytes) {
  head_ += std::min<uint64_t>(bytes, tail_ - head_);
  if (head_ == tail_) way_ = Way::kKernel;
}

}  // namespace accel::shm
