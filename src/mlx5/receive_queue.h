// A cyclic receive queue over plain memory: empty buffers in, frames out. Knows nothing of libibverbs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

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
  ReceiveQueue() = default;
  /// `segments`: buffers of an entry, enough for a frame of the port's MTU. `reserve`: buffers of the pool
  /// that receiving leaves to sending.
  ReceiveQueue(const ReceiveRing& ring, DoorbellRecord posted, const CompletionReader& completions,
               DoorbellRecord consumed, FramePool& pool, uint32_t segments, uint32_t target,
               uint32_t reserve);

  size_t receive(std::span<Received> out);
  /// Posts buffers; when fewer than `at_least` could be posted, waits for more to be missing.
  void refill(uint32_t at_least);
  bool ready() const { return completions_.ready(); }
  uint32_t consumer() const { return completions_.consumer(); }
  uint32_t posted() const { return head_ - tail_; }
  const std::optional<Completion>& error() const { return error_; }

  /// The device has forgotten the queue (its state is RESET): every buffer is free again.
  void reset();

  uint64_t refused() const { return refused_; }  ///< frames of impossible length
  uint64_t empty() const { return empty_; }      ///< refills that found the pool empty

 private:
  Packet* take_chain();
  bool accept(Packet* frame, const Completion& c);

  ReceiveRing ring_;
  DoorbellRecord posted_;
  CompletionReader completions_;
  DoorbellRecord consumed_;
  FramePool* pool_ = nullptr;
  std::vector<Packet*> slots_;
  uint32_t segments_ = 1, target_ = 0, reserve_ = 0;
  uint32_t head_ = 0;  ///< entries posted ever
  uint32_t tail_ = 0;  ///< entries completed ever
  std::optional<Completion> error_;
  uint64_t refused_ = 0, empty_ = 0;
};

}  // namespace accel::mlx5
