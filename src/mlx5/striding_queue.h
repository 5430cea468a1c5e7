// A striding receive queue (multi-packet RQ): an entry names one long buffer, which the device fills with
// frames, each in whole strides, one after the other. Frames are copied into the pool's at once, so a buffer
// is the device's again as soon as its last frame was read, whatever the stack still holds. Against the
// cyclic queue: a descriptor and a doorbell for hundreds of frames, and receive memory that stays in the
// caches; for the copy's price.
#pragma once

#include "mlx5/receive_queue.h"

namespace accel::mlx5 {

/// The buffers of all entries, one behind the other.
struct StrideMemory {
  uint8_t* start = nullptr;
  uint32_t stride = 0;   ///< bytes, a power of two
  uint32_t strides = 0;  ///< of an entry

  uint32_t buffer_size() const { return stride * strides; }
  uint8_t* at(uint32_t entry, uint32_t index) const {
    return start + size_t{entry} * buffer_size() + size_t{index} * stride;
  }
};

class StridingQueue final : public ReceiveQueue {
 public:
  /// The completion queue must hold a completion for each stride.
  StridingQueue(const ReceiveRing& ring, DoorbellRecord posted, const CompletionReader& completions,
                DoorbellRecord consumed, FramePool& pool, const StrideMemory& memory, uint32_t reserve);

  size_t receive(std::span<Received> out) override;
  void refill(uint32_t at_least) override;
  void reset() override;

 private:
  bool follows(const Completion& c) const;
  Packet* copy(const uint8_t* from, uint32_t length);

  StrideMemory memory_;
  uint32_t used_ = 0;  ///< strides of the entry tail_
};

}  // namespace accel::mlx5
