#include "mlx5/send_queue.h"

#include <array>
#include <utility>

namespace accel::mlx5 {

SendQueue::SendQueue(const SendRing& ring, const SendDoorbell& doorbell, const CompletionReader& completions,
                     DoorbellRecord consumed, const SendOptions& options)
    : ring_(ring), doorbell_(doorbell), completions_(completions), consumed_(consumed), options_(options) {
  slots_.resize(ring.blocks);
}

/// A completion for every `batch` WQEs, and often enough that a ring of long ones cannot fill without any.
[[gnu::always_inline]] inline bool SendQueue::next_signalled(uint32_t blocks) {
  const auto end = static_cast<uint16_t>(next_ + blocks);
  if (posted_ - asked_ < options_.batch && static_cast<uint16_t>(end - asked_end_) < ring_.blocks / 4)
    return false;
  asked_ = posted_;
  asked_end_ = end;
  return true;
}

[[gnu::always_inline]] inline void SendQueue::close(uint32_t octoword_count, Packet* held) {
  const auto blocks = static_cast<uint16_t>(blocks_of(octoword_count));
  ++posted_;
  if (next_signalled(blocks)) mark_signalled(ring_, next_);
  slots_[next_ & mask()] = {held, blocks, posted_};
  if (held) ++held_;
  last_ = next_;
  next_ = static_cast<uint16_t>(next_ + blocks);
}

/// What most frames are: of one piece, and whole in its WQE.
[[gnu::always_inline]] inline bool SendQueue::put_small(Packet* frame) {
  const SendRing ring = ring_;  // a copy: what is written through bytes does not have it read again
  const uint32_t header = options_.header;
  if (!has_room(blocks_of(inline_octowords(frame->length, header)))) return false;
  const Piece whole{frame->data(), frame->length, frame->tailroom()};
  const uint8_t checksum = frame->checksum_offload ? kChecksum : kNoChecksum;
  close(write_inline(ring, next_, whole, checksum, header, false), nullptr);
  FramePool::release(frame);
  return true;
}

[[gnu::always_inline]] inline bool SendQueue::put_by_address(Packet* frame) {
  const SendRing ring = ring_;
  if (!has_room(1)) return false;
  const Piece whole{frame->data(), frame->length};
  const uint8_t checksum = frame->checksum_offload ? kChecksum : kNoChecksum;
  frame->next = nullptr;
  close(write_send(ring, next_, whole, checksum, options_.header, false), frame);
  return true;
}

size_t SendQueue::post(std::span<Packet* const> frames) {
  if (under_way() >= options_.batch) reclaim();
  if (error_) return 0;  // what a dead queue takes is lost
  const uint32_t before = posted_;
  size_t taken = 0;
  bool reclaimed = false;
  while (taken < frames.size()) {
    size_t n = 0;
    if (options_.multi_packet && taken + 1 < frames.size() && shares(frames[taken], frames[taken + 1]) &&
        has_room(kMaxBlocks))
      n = put_many(frames.subspan(taken));
    else
      n = (is_simple(frames[taken]) ? put_simple(frames[taken]) : put_one(frames[taken])) ? 1 : 0;
    if (n == 0) {
      if (std::exchange(reclaimed, true)) break;
      reclaim();
      if (error_) break;
    }
    taken += n;
  }
  if (posted_ != before)
    doorbell_.announce(next_, ring_.block(last_), slots_[last_ & mask()].blocks, posted_ - before == 1,
                       ring_.start, ring_.end());
  return taken;
}

void SendQueue::refuse(Packet* frame) {
  ++refused_;
  FramePool::release(frame);
}

bool SendQueue::put_one(Packet* frame) {
  std::array<Piece, kMaxPieces> storage;  // NOLINT: filled as far as it is used
  uint32_t pieces = 0, length = 0;
  for (const Packet* p = frame; p && pieces < kMaxPieces; p = p->more) {
    storage[pieces++] = {p->data(), p->length};
    length += p->length;
    if (pieces == kMaxPieces && p->more) length = 0;  // longer than a WQE can say
  }
  const bool tso = frame->tso_size != 0;
  const uint32_t header = tso ? frame->header_length : options_.header;
  if (length <= header || frame->length < header || header > kMaxHeaders) {
    refuse(frame);
    return true;
  }
  return put_pieces(frame, {storage.data(), pieces}, length);
}

bool SendQueue::put_pieces(Packet* frame, std::span<const Piece> parts, uint32_t length) {
  const bool tso = frame->tso_size != 0;
  const uint32_t header = tso ? frame->header_length : options_.header;
  const uint8_t checksum = frame->checksum_offload ? kChecksum : kNoChecksum;
  if (!tso && length <= options_.inline_max) {
    if (!has_room(blocks_of(inline_octowords(length, header)))) return false;
    close(write_inline(ring_, next_, parts, checksum, header, false), nullptr);
    FramePool::release(frame);
    return true;
  }
  if (!has_room(blocks_of(send_octowords(static_cast<uint32_t>(parts.size()), header)))) return false;
  frame->next = nullptr;
  close(tso ? write_tso(ring_, next_, parts, header, frame->tso_size, false)
            : write_send(ring_, next_, parts, checksum, header, false),
        frame);
  return true;
}

bool SendQueue::shares(const Packet* frame, const Packet* with) const {
  auto plain = [](const Packet* p) { return !p->more && p->tso_size == 0 && p->length != 0; };
  return plain(frame) && plain(with) && frame->checksum_offload == with->checksum_offload;
}

size_t SendQueue::put_many(std::span<Packet* const> frames) {
  MultiPacketWqe wqe(ring_, next_, frames[0]->checksum_offload ? kChecksum : kNoChecksum);
  Packet* held = nullptr;
  size_t n = 0;
  for (; n < frames.size() && shares(frames[0], frames[n]) && wqe.fits(1); ++n) {
    Packet* frame = frames[n];
    if (frame->length <= options_.inline_max && wqe.fits(MultiPacketWqe::inline_cost(frame->length))) {
      wqe.add_inline(frame->data(), frame->length, frame->tailroom());
      FramePool::release(
          frame);  // leaves the first one's flags as they are, for the next to be compared with
    } else {
      wqe.add_pointer(frame->data(), frame->length);
      frame->next = held;
      held = frame;
    }
  }
  close(wqe.close(false), held);
  return n;
}

void SendQueue::finish_through(uint16_t index) {
  const Slot& last = slots_[index & mask()];
  if (held_ == 0 && posted_ - last.number < under_way()) {
    done_ = static_cast<uint16_t>(index + last.blocks);
    finished_ = last.number;
    return;
  }
  for (;;) {
    Slot& slot = slots_[done_ & mask()];
    const bool is_last = done_ == index;
    if (slot.frames != nullptr) {
      --held_;
      for (Packet* p = std::exchange(slot.frames, nullptr); p;) {
        Packet* next = std::exchange(p->next, nullptr);
        FramePool::release(p);
        p = next;
      }
    }
    done_ = static_cast<uint16_t>(done_ + slot.blocks);
    ++finished_;
    if (is_last || done_ == next_) return;
  }
}

void SendQueue::reclaim() {
  Completion c;
  bool any = false;
  while (!error_ && completions_.next(&c)) {
    any = true;
    const auto ahead = static_cast<uint16_t>(c.wqe_counter - done_);
    const bool known = ahead < in_flight();
    const bool sent = c.kind == Completion::Kind::kSend;
    if (known && (sent || (c.kind == Completion::Kind::kSendError && ahead != 0))) works_ = true;
    if (known && sent)
      finish_through(c.wqe_counter);
    else if (c.kind != Completion::Kind::kOther)
      error_ = c;  // also a completion of what was never posted
  }
  if (any) completions_.publish(consumed_);
}

bool SendQueue::demand_headers() {
  if (works_ || !error_ || options_.header != 0) return false;
  if (is_flush(*error_) || error_->syndrome == MLX5_CQE_SYNDROME_LOCAL_PROT_ERR) return false;
  options_.multi_packet = false;
  options_.header = kHeaderInline;
  return true;
}

void SendQueue::reset() {
  Completion skipped;
  while (completions_.next(&skipped)) {
  }
  completions_.publish(consumed_);
  while (busy()) finish_through(static_cast<uint16_t>(next_ - 1));
  next_ = done_ = asked_end_ = 0;
  asked_ = posted_;
  works_ = false;
  error_.reset();
}

}  // namespace accel::mlx5
