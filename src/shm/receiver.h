// The receiving side of a direction: a state machine over shared memory, without a system call or a clock.
//
// What the caller has to do beside it: read from the kernel's connection what `way` says, and wake the sender
// where a call returns true.
#pragma once

#include <cstdint>
#include <span>

#include "shm/region.h"

namespace accel::shm {

class Receiver {
 public:
  enum class Way : uint8_t {
    kKernel,  ///< the next bytes come by the kernel's connection
    kRing,    ///< they come, or will come, by the ring
    kEnd,     ///< there are no more
    kBroken,  ///< the other end has written what cannot be
  };

  /// `from_kernel`: bytes that the program has read by the kernel before.
  Receiver(Direction& direction, std::span<const uint8_t> ring, uint64_t from_kernel)
      : shared_(direction), ring_(ring), from_kernel_(from_kernel) {}

  /// The way as of now, and what the sender has put meanwhile.
  Way look();
  /// As look() has found it last.
  Way way() const { return way_; }
  /// kKernel: the kernel may have bytes that come behind those of the ring. While the sender has not begun
  /// this is no bound: what the kernel had before a look() that says kKernel precedes the ring's bytes.
  uint64_t kernel_limit() const;
  void took_from_kernel(uint64_t bytes) { from_kernel_ += bytes; }

  /// The kernel may have bytes that come behind the ring's, or the sender has not begun: of what the kernel
  /// has only that is next which kernel_limit() says.
  bool bounded() const { return seen_ == Carrier::kKernel || from_kernel_ < by_kernel_; }

  /// kRing: bytes that can be read.
  size_t available() const { return static_cast<size_t>(tail_ - head_); }
  /// The sender has ended; there may be bytes before that.
  bool ended() const { return seen_ == Carrier::kEnded; }
  /// The kernel's connection goes on behind the ring's last byte.
  bool kernel_follows() const { return seen_ == Carrier::kLeft; }
  /// decline() has been heard.
  bool declined() const { return seen_ == Carrier::kReturned; }
  /// The sender has gone back to the kernel, and all that it had put into the ring has been taken.
  bool left() const { return seen_ == Carrier::kLeft && way_ == Way::kKernel && from_kernel_ >= by_kernel_; }
  /// Copies bytes from `offset` on without taking them.
  size_t copy(std::span<uint8_t> to, size_t offset) const;
  /// True: the sender waits for room, and there is some now.
  [[nodiscard]] bool consume(size_t bytes);

  /// The sender is to tell of the next byte. A fence, and a look at changed(), are to follow.
  void ask_to_be_told() { shared_.reader_asleep.store(1, std::memory_order_relaxed); }
  void awake() { shared_.reader_asleep.store(0, std::memory_order_relaxed); }
  /// Something is there that those who wait have not been told of. Any call may look(), and what it finds is
  /// news to others still.
  bool changed() const {
    if (way_ == Way::kBroken) return !told_broken_;
    if (seen_ == Carrier::kReturned) return false;
    const Carrier carrier = shared_.carrier.load(std::memory_order_relaxed);
    if (carrier != told_) return true;
    return carrier != Carrier::kKernel && shared_.tail.load(std::memory_order_relaxed) != told_tail_;
  }
  /// They have been told of what look() has found.
  void note_told();

  /// "I take nothing more from the ring; the rest comes by the kernel." False: the sender has left or ended
  /// before, and bytes are in the ring still.
  bool decline();
  uint64_t bytes() const { return head_; }
  /// What SO_RCVBUF leaves for bytes: with it the sender bounds what is in the ring.
  void set_buffer(uint32_t bytes) { shared_.receive_buffer.store(bytes, std::memory_order_relaxed); }

 private:
  Way broken() { return way_ = Way::kBroken; }

  Direction& shared_;
  const std::span<const uint8_t> ring_;
  uint64_t from_kernel_;
  uint64_t by_kernel_ = 0;  ///< once the sender has begun
  uint64_t head_ = 0;       ///< the shared one is written only
  uint64_t tail_ = 0;       ///< as last seen, checked
  uint64_t base_ = 0;       ///< as last seen: any value names a byte of the ring
  Carrier seen_ = Carrier::kKernel;
  Way way_ = Way::kKernel;
  // ---- as told last ----
  uint64_t told_tail_ = 0;
  Carrier told_ = Carrier::kKernel;
  bool told_broken_ = false;
};

}  // namespace accel::shm
