// A receive queue whose every entry names buffers of the pool for one frame: the device writes into the frame
// that the stack then holds.
#pragma once

#include <vector>

#include "mlx5/receive_queue.h"

namespace accel::mlx5 {

class CyclicQueue final : public ReceiveQueue {
 public:
  /// `segments`: buffers of an entry, enough for a frame of the port's MTU. `target`: entries posted at most.
  CyclicQueue(const ReceiveRing& ring, DoorbellRecord posted, const CompletionReader& completions,
              DoorbellRecord consumed, FramePool& pool, uint32_t segments, uint32_t target, uint32_t reserve);

  size_t receive(std::span<Received> out) override;
  void refill(uint32_t at_least) override;
  void reset() override;

 private:
  bool accept(Packet* frame, uint32_t length) const;

  std::vector<Packet*> slots_;
  uint32_t segments_, target_;
};

}  // namespace accel::mlx5
