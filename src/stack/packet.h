// A frame's memory and its place in a burst. The unit that ports and the stack hand to each other.
#pragma once

#include <cstdint>
#include <span>

namespace accel {

class FramePool;

/// One buffer of a frame region, and what is known of the bytes in it.
///
/// A frame longer than one buffer (MTU 9000 in 4 KiB buffers) is a chain through `more`: the first Packet
/// stands for the frame in bursts and queues; all headers (Ethernet to TCP options) lie in the first buffer.
/// Ownership moves with the pointer: who holds a Packet* gives it on or gives it back with release().
struct Packet {
  Packet* next = nullptr;  ///< link of the queue that holds this packet; free for the holder's use
  Packet* more = nullptr;  ///< next buffer of the same frame
  FramePool* pool = nullptr;
  uint8_t* buffer = nullptr;      ///< start of the buffer
  uint32_t capacity = 0;          ///< bytes in the buffer
  uint32_t offset = 0;            ///< where the bytes of the frame begin in the buffer
  uint32_t length = 0;            ///< bytes of the frame in this buffer
  uint32_t index = 0;             ///< number of the buffer in its region: region + index * capacity == buffer
  uint32_t seq = 0;               ///< TCP's: sequence number of the first payload byte while queued
  uint8_t interface = 0;          ///< which of the stack's interfaces it came in by or leaves by
  bool checksum_good = false;     ///< received: the device verified IP and L4 checksums
  bool checksum_offload = false;  ///< to send: the device fills in the L4 checksum (PortInfo::tx_checksum)
  uint8_t range = 0;              ///< the pool's: FrameRange::id of the port that has it for itself
  uint16_t tso_size = 0;       ///< to send: payload bytes a segment for the device to cut into; 0: do not cut
  uint16_t header_length = 0;  ///< to send with tso_size: Ethernet to TCP options
  uint16_t look = 0;           ///< received text: StackCore::look when it came; one less once some is read
  uint64_t timestamp = 0;      ///< received: when, by the device's clock (Port::time_of); 0: not told

  uint8_t* data() { return buffer + offset; }
  const uint8_t* data() const { return buffer + offset; }
  std::span<uint8_t> bytes() { return {data(), length}; }
  std::span<const uint8_t> bytes() const { return {data(), length}; }
  uint32_t tailroom() const { return capacity - offset - length; }
  /// Bytes of the whole frame.
  uint32_t total() const {
    uint32_t n = 0;
    for (const Packet* p = this; p; p = p->more) n += p->length;
    return n;
  }
  /// Takes `n` bytes off the front of this buffer. n <= length.
  void trim_front(uint32_t n) {
    offset += n;
    length -= n;
  }
};

/// Room that senders leave before the Ethernet header, so that a buffer's DMA start stays aligned.
constexpr uint32_t kHeadroom = 0;
/// Ethernet 14 + VLAN 4 + IPv6 40 + TCP with options 60.
constexpr uint32_t kMaxHeaders = 118;

/// TCP payload of a frame with tso_size: with its headers it fits the 16 bits of IP's length.
constexpr uint32_t kTsoPayload = 65535 - (kMaxHeaders - 18);

/// A FIFO of frames linked through Packet::next. Owns nothing by itself: whoever holds it empties it.
class PacketQueue {
 public:
  bool empty() const { return head_ == nullptr; }
  uint32_t size() const { return size_; }
  Packet* front() const { return head_; }
  Packet* back() const { return head_ ? tail_ : nullptr; }
  void push_back(Packet* p) {
    p->next = nullptr;
    (head_ ? tail_->next : head_) = p;  // NOLINT(clang-analyzer-core.NullDereference): with a head, a tail
    tail_ = p;
    ++size_;
  }
  void push_front(Packet* p) {
    p->next = head_;
    if (!head_) tail_ = p;
    head_ = p;
    ++size_;
  }
  Packet* pop_front() {
    Packet* p = head_;
    if (p) {
      head_ = p->next;
      p->next = nullptr;
      --size_;
    }
    return p;
  }

 private:
  Packet* head_ = nullptr;
  Packet* tail_ = nullptr;
  uint32_t size_ = 0;
};

}  // namespace accel
