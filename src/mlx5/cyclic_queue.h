// A receive queue whose every entry names buffers of the pool for one frame: the device writes into the frame
// that the stack then holds.
#pragma once

#include <vector>

#include "mlx5/receive_queue.h"

namespace accel::mlx5 {

class CyclicQueue final : public ReceiveQueue {
 public:
  /// `segments`: buffers of an entry, enough for a frame of the port's MTU. `target`: entries posted at
  /// first, which stay in the caches, and `most` once so many were in use, or the device has dropped a frame.
  CyclicQueue(const ReceiveRing& ring, DoorbellRecord posted, const CompletionReader& completions,
              DoorbellRecord consumed, FramePool& pool, uint32_t segments, uint32_t target, uint32_t most,
              uint32_t reserve);

  size_t receive(std::span<Received> out) override;
  void refill(uint32_t at_least) override;
  void reset() override;

 private:
  bool accept(Packet* frame, uint32_t length) const;

  void fit(size_t taken, bool full);

  std::vector<Packet*> slots_;
  uint32_t segments_, target_, most_;
  size_t in_row_ = 0;  ///< frames of bursts in a row that were full: so many had waited
  uint64_t dropped_before_ = 0;
};

}  // namespace accel::mlx5
