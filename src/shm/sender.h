// The sending side of a direction: a state machine over shared memory, without a system call or a clock.
//
// What the caller has to do beside it: send by the kernel what `way` says, and wake the receiver where a call
// returns true ("ring the bell").
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "shm/region.h"

namespace accel::shm {

class Sender {
 public:
  enum class Way : uint8_t {
    kKernel,     ///< what is sent goes by the kernel's connection
    kRing,       ///< put() takes it
    kReturning,  ///< unreturned() goes by the kernel first, then everything else
    kEnded,      ///< nothing more may be sent
    kBroken,     ///< the other end has written what cannot be
  };

  Sender(Direction& direction, std::span<uint8_t> ring) : shared_(direction), ring_(ring) {}

  /// The way as of now, and what the receiver has taken meanwhile.
  Way look();
  /// As look() has found it last.
  Way way() const { return way_; }

  /// "By the kernel I have sent that many bytes; what follows is in the ring." False: the receiver has
  /// declined before.
  bool begin(uint64_t by_kernel);
  /// Copies what there is room for. The receiver sees it with publish().
  size_t put(std::span<const uint8_t> bytes);
  /// True: the receiver sleeps.
  [[nodiscard]] bool publish();
  /// "Behind the ring's last byte the kernel's connection goes on." False: bytes have to be returned first,
  /// or the way is not the ring.
  bool leave();
  /// "The ring's last byte is the stream's." False likewise.
  bool end();

  uint64_t taken() const { return head_; }  ///< bytes, by the receiver
  size_t used() const { return static_cast<size_t>(tail_ - head_); }
  size_t room() const { return most_ - std::min(most_, used()); }
  /// As sk_stream_is_writeable(): a third is free.
  bool writable() const { return used() <= most_ / 3 * 2; }
  /// What SO_SNDBUF leaves for bytes. The ring takes what both ends' buffers would.
  void set_buffer(uint32_t bytes) { buffer_ = bytes; }
  /// Somebody has found no room, and is to be told of it.
  void expect_room() { told_writable_ = false; }
  /// The receiver is to tell of room that is expected. A fence, and a look at changed(), are to follow.
  void ask_to_be_told() {
    if (way_ == Way::kRing && !told_writable_) shared_.writer_asleep.store(1, std::memory_order_relaxed);
  }
  /// Something is there that those who wait have not been told of: room that is expected, or another way. Any
  /// call may look(), and what it finds is news to others still.
  bool changed() const {
    if (way_ != told_) return true;
    if (way_ != Way::kRing) return false;
    if (shared_.carrier.load(std::memory_order_relaxed) != Carrier::kRing) return true;
    return !told_writable_ && tail_ - shared_.head.load(std::memory_order_relaxed) <= most_ / 3 * 2;
  }
  /// They have been told of what look() has found.
  void note_told();

  /// Bytes of the ring that a connection at rest keeps.
  static constexpr size_t kKept = 16 << 10;
  /// More of the ring than that has been written.
  bool has_grown() const { return touched_ > kKept; }
  /// The pages beyond kKept that have been written. Nobody reads them again, since the ring is empty as of
  /// the last look(), so the caller may give them back to the host. Empty: there are none now.
  std::span<uint8_t> take_spare();

  /// Bytes that the receiver did not take: the first of them that lie in one piece.
  std::span<const uint8_t> unreturned() const;
  void returned(size_t bytes);
  uint64_t bytes() const { return tail_; }

 private:
  Way broken() { return way_ = Way::kBroken; }
  bool change(Carrier to);

  Direction& shared_;
  const std::span<uint8_t> ring_;
  size_t most_ = ring_.size();  ///< bytes in the ring
  uint32_t buffer_ = UINT32_MAX;
  uint64_t tail_ = 0;   ///< the shared one is written only
  uint64_t head_ = 0;   ///< as last seen, checked
  uint64_t base_ = 0;   ///< the shared one is written only
  size_t touched_ = 0;  ///< of the ring, from its beginning
  Way way_ = Way::kKernel;
  // ---- as told last ----
  Way told_ = Way::kKernel;
  bool told_writable_ = true;
};

}  // namespace accel::shm
