// A receive queue over plain memory: frames in. Knows nothing of libibverbs. Two kinds: cyclic_queue.h has a
// buffer of the pool for each frame; striding_queue.h has few long buffers that the device fills with many.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "mlx5/cqe.h"
#include "mlx5/doorbell.h"
#include "mlx5/wqe.h"
#include "stack/frame_pool.h"

namespace accel::mlx5 {

/// A received frame, and the tag of the steering rule that brought it.
struct Received {
  Packet* frame;
  uint32_t flow_tag;
};

class ReceiveQueue {
 public:
  virtual ~ReceiveQueue() = default;

  virtual size_t receive(std::span<Received> out) = 0;
  /// Posts what the device may fill; when fewer than `at_least` buffers could be posted, waits for more.
  virtual void refill(uint32_t at_least) = 0;
  /// The device has forgotten the queue (its state is RESET): every buffer is free again.
  virtual void reset() = 0;

  bool ready() const { return completions_.ready(); }
  uint32_t consumer() const { return completions_.consumer(); }
  uint32_t posted() const { return head_ - tail_; }
  const std::optional<Completion>& error() const { return error_; }

  uint64_t refused() const { return refused_; }  ///< frames of impossible length
  uint64_t dropped() const { return dropped_; }  ///< frames that found no descriptor, as completions tell
  uint64_t empty() const { return empty_; }      ///< times that the pool had no buffer

 protected:
  static constexpr uint32_t kEthernetHeader = 14;

  ReceiveQueue(const ReceiveRing& ring, DoorbellRecord posted, const CompletionReader& completions,
               DoorbellRecord consumed, FramePool& pool, uint32_t reserve)
      : ring_(ring),
        posted_(posted),
        completions_(completions),
        consumed_(consumed),
        pool_(&pool),
        reserve_(reserve) {}

  /// What receive() is for both kinds: take(completion, &frame) says what came of each, a frame or none
  /// (nullptr). False: an error, or of what was never posted; that is error() then.
  template <class Take>
  size_t take_completions(std::span<Received> out, Take take) {
    size_t n = 0;
    bool any = false;
    Completion c;
    while (n < out.size() && !error_ && completions_.next(&c)) {
      any = true;
      if (c.kind == Completion::Kind::kOther) continue;
      Packet* frame = nullptr;
      if (!take(c, &frame)) {
        error_ = c;
      } else if (frame) {
        frame->checksum_good = c.checksum_good;
        frame->timestamp = c.timestamp;
        out[n++] = {frame, c.flow_tag};
      }
      dropped_ += c.dropped;
    }
    if (any) completions_.publish(consumed_);
    return n;
  }
  /// Announces the entries before head_.
  void announce() {
    order_descriptors_before_doorbell();
    posted_.set(kReceiveCounter, head_ & 0xffff);
  }
  /// Of a queue that is in RESET.
  void skip_completions() {
    Completion skipped;
    while (completions_.next(&skipped)) {
    }
    completions_.publish(consumed_);
    head_ = tail_ = 0;
    error_.reset();
  }

  ReceiveRing ring_;
  DoorbellRecord posted_;
  CompletionReader completions_;
  DoorbellRecord consumed_;
  FramePool* pool_;
  uint32_t reserve_;   ///< buffers of the pool that receiving leaves to sending
  uint32_t head_ = 0;  ///< entries posted ever
  uint32_t tail_ = 0;  ///< entries completed ever
  std::optional<Completion> error_;
  uint64_t refused_ = 0, empty_ = 0, dropped_ = 0;
};

}  // namespace accel::mlx5
