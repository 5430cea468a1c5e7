// A send queue over plain memory: frames into WQEs, one doorbell a burst, completions back into free frames.
// Knows nothing of libibverbs; whoever made the queue hands in where it lies.
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

struct SendOptions {
  uint32_t inline_max = 0;          ///< frames up to this go within the WQE
  uint32_t header = kHeaderInline;  ///< bytes of each other frame that do; 0 or kHeaderInline
  uint32_t batch = 64;              ///< WQEs to one completion
  uint32_t most = 2048;             ///< WQEs under way; at most the completion queue's entries
  bool multi_packet = false;        ///< small frames of a burst share a WQE
};

class SendQueue {
 public:
  SendQueue() = default;
  /// `completions` and `consumed` are the completion queue's and its record.
  SendQueue(const SendRing& ring, const SendDoorbell& doorbell, const CompletionReader& completions,
            DoorbellRecord consumed, const SendOptions& options);

  /// Takes frames in order as far as the ring has room, and tells the device. A frame that cannot be
  /// described (more pieces than a WQE holds) is taken, dropped and counted.
  size_t post(std::span<Packet* const> frames);

  /// Frees what is done. After an error the queue stands still: error() says which.
  void reclaim();
  bool busy() const { return done_ != next_; }
  const std::optional<Completion>& error() const { return error_; }

  /// The device has sent something since the last reset(). It works in order, so an error says it of what
  /// came before.
  bool works() const { return works_; }

  /// The device has forgotten the queue (its state is RESET): all frames are free, the ring begins anew.
  /// What the device wrote before is skipped.
  void reset();

  uint64_t refused() const { return refused_; }
  /// The device may after all want headers within the descriptors (a virtual function's administrator can
  /// demand them): then it refuses the very first one that has none. From now on they are there, and
  /// multi-packet descriptors, which have none, are not used. False: it has refused for another reason.
  bool demand_headers();

 private:
  static constexpr uint32_t kMaxPieces = 32;
  static constexpr uint32_t kMaxBlocks = blocks_of(kMaxOctowords);

  struct Slot {
    Packet* frames = nullptr;  ///< linked by next
    uint16_t blocks = 0;
    uint32_t number = 0;  ///< of the WQE, counted from the first ever
  };

  uint32_t mask() const { return ring_.blocks - 1; }
  uint16_t in_flight() const { return static_cast<uint16_t>(next_ - done_); }
  uint32_t under_way() const { return posted_ - finished_; }
  bool has_room(uint32_t blocks) const {
    return in_flight() + blocks <= ring_.blocks && under_way() < options_.most;
  }
  bool is_simple(const Packet* frame) const {
    return frame->more == nullptr && frame->tso_size == 0 && frame->length > options_.header;
  }
  bool put_small(Packet* frame);
  bool put_by_address(Packet* frame);
  [[gnu::always_inline]] bool put_simple(Packet* frame) {
    return frame->length <= options_.inline_max ? put_small(frame) : put_by_address(frame);
  }
  bool put_one(Packet* frame);
  bool put_pieces(Packet* frame, std::span<const Piece> parts, uint32_t length);
  size_t put_many(std::span<Packet* const> frames);
  bool shares(const Packet* frame, const Packet* with) const;
  bool next_signalled(uint32_t blocks);
  void close(uint32_t octoword_count, Packet* held);
  void finish_through(uint16_t index);
  void refuse(Packet* frame);

  SendRing ring_;
  SendDoorbell doorbell_;
  CompletionReader completions_;
  DoorbellRecord consumed_;
  SendOptions options_;
  std::vector<Slot> slots_;  ///< by a WQE's first block
  uint16_t next_ = 0;        ///< block of the next WQE
  uint16_t done_ = 0;        ///< first block not yet complete
  uint16_t last_ = 0;        ///< first block of the last WQE
  uint16_t asked_end_ = 0;   ///< block behind the last WQE that asked for a completion
  uint32_t asked_ = 0;       ///< number of that WQE
  uint32_t posted_ = 0;      ///< WQEs ever
  uint32_t finished_ = 0;    ///< of those: complete
  uint32_t held_ = 0;        ///< of the others: with frames
  bool works_ = false;
  std::optional<Completion> error_;
  uint64_t refused_ = 0;
};

}  // namespace accel::mlx5
