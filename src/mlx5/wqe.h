// Work queue entries as ConnectX reads them: pure functions on plain memory, so they are tested without a
// NIC. The layouts are mlx5dv.h's, the meaning is the PRM's ("Ethernet Adapters Programming Manual", 7.4.4).
//
// A send WQE is a row of 16-byte units (octowords): control, Ethernet segment, then data. It begins on a
// 64-byte basic block and wraps at the ring's end. A queue counts basic blocks, modulo 2^16.
#pragma once

#include <endian.h>
#include <infiniband/mlx5dv.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace accel::mlx5 {

constexpr uint32_t kBlock = 64;
constexpr uint32_t kOctoword = 16;
/// The control segment's ds field has six bits.
constexpr uint32_t kMaxOctowords = 63;

constexpr uint8_t kOpSend = MLX5_OPCODE_SEND;
constexpr uint8_t kOpTso = MLX5_OPCODE_TSO;
/// Enhanced multi-packet send; not in mlx5dv.h (the kernel's include/linux/mlx5/qp.h:
/// MLX5_OPCODE_ENHANCED_MPSW).
constexpr uint8_t kOpMultiPacket = 0x29;

constexpr uint8_t kNoChecksum = 0;
/// IP header and TCP or UDP, as IBV_SEND_IP_CSUM asks.
constexpr uint8_t kChecksum = MLX5_ETH_WQE_L3_CSUM | MLX5_ETH_WQE_L4_CSUM;

/// What a ConnectX-4 demands of each send and later ones do not mind: Ethernet and a VLAN tag in the WQE.
constexpr uint32_t kHeaderInline = 18;
/// Of an inlined header, two bytes are within the Ethernet segment's first octoword.
constexpr uint32_t kInlineStart = offsetof(mlx5_wqe_eth_seg, inline_hdr_start);

static_assert(sizeof(mlx5_wqe_ctrl_seg) == kOctoword && sizeof(mlx5_wqe_data_seg) == kOctoword);
static_assert(sizeof(mlx5_wqe_eth_seg) == 2 * kOctoword && kInlineStart == 14);

constexpr uint32_t octowords(uint32_t bytes) { return (bytes + kOctoword - 1) / kOctoword; }
constexpr uint32_t blocks_of(uint32_t octoword_count) { return (octoword_count + 3) / 4; }

/// Bytes of a frame that lie together in registered memory.
struct Piece {
  const uint8_t* data;
  uint32_t length;
  uint32_t room = 0;  ///< bytes of the buffer behind it, which may be read though they say nothing
};

/// The memory of a send queue.
struct SendRing {
  uint8_t* start = nullptr;
  uint32_t blocks = 0;  ///< a power of two
  uint32_t qpn = 0;
  uint32_t lkey = 0;  ///< of the region that all frames lie in

  uint8_t* block(uint32_t index) const { return start + size_t{index & (blocks - 1)} * kBlock; }
  uint8_t* end() const { return start + size_t{blocks} * kBlock; }
};

/// An octoword, as the CPU stores and loads it at once.
using OctowordBytes = uint64_t __attribute__((vector_size(kOctoword)));

/// Two words big-endian by one store. The doorbell reads WQEs back by octowords: from smaller stores the CPU
/// cannot forward that, which costs more than all the rest of a small send.
inline void store_octoword(uint8_t* at, uint64_t first, uint64_t second) {
  const OctowordBytes both{htobe64(first), htobe64(second)};
  std::memcpy(at, &both, sizeof(both));
}

/// A data segment: where bytes lie that the device fetches, or may fill.
inline void store_pointer(uint8_t* at, const uint8_t* data, uint32_t length, uint32_t lkey) {
  static_assert(offsetof(mlx5_wqe_data_seg, lkey) == 4 && offsetof(mlx5_wqe_data_seg, addr) == 8);
  store_octoword(at, uint64_t{length} << 32 | lkey, reinterpret_cast<uintptr_t>(data));
}

/// Where the next bytes of a WQE go; wraps at the ring's end.
class WqeCursor {
 public:
  WqeCursor(const SendRing& ring, uint8_t* at) : start_(ring.start), end_(ring.end()), at_(at) { wrap(); }

  uint8_t* at() const { return at_; }
  void put(const uint8_t* from, uint32_t n) {
    const auto room = static_cast<uint32_t>(end_ - at_);
    if (n >= room) [[unlikely]] {
      std::memcpy(at_, from, room);
      std::memcpy(start_, from + room, n - room);
      at_ = start_ + (n - room);
      return;
    }
    std::memcpy(at_, from, n);
    at_ += n;
  }
  /// An inline segment. With `room` behind the bytes they are read, and written, up to the next octoword:
  /// copies of known size are several times faster than memcpy of any.
  void put_inline(const uint8_t* from, uint32_t n, uint32_t room) {
    if (room < kOctoword || n + 2 * kOctoword >= static_cast<uint32_t>(end_ - at_)) [[unlikely]] {
      put_inline_length(n);
      return put(from, n);
    }
    uint64_t first = htobe32(n | uint32_t{MLX5_INLINE_SEG}), second;
    uint32_t start;
    std::memcpy(&start, from, sizeof(start));
    std::memcpy(&second, from + sizeof(start), sizeof(second));
    first = htole64(le32toh(static_cast<uint32_t>(first)) | uint64_t{le32toh(start)} << 32);
    std::memcpy(at_, &first, sizeof(first));
    std::memcpy(at_ + sizeof(first), &second, sizeof(second));
    constexpr uint32_t kWithLength = kOctoword - 4;
    for (uint32_t done = kWithLength; done < n; done += kOctoword)
      std::memcpy(at_ + 4 + done, from + done, kOctoword);
    at_ += 4 + n;
  }
  void put_pointer(const uint8_t* data, uint32_t length, uint32_t lkey) {
    store_pointer(at_, data, length, lkey);
    at_ += kOctoword;
    wrap();
  }
  void put_inline_length(uint32_t n) {
    const uint32_t marked = htobe32(n | uint32_t{MLX5_INLINE_SEG});
    std::memcpy(at_, &marked, sizeof(marked));
    at_ += sizeof(marked);  // octowords do not straddle the ring's end
  }
  /// To the next octoword. The bytes between are not read by the device.
  void pad() {
    at_ += -static_cast<uintptr_t>(at_ - start_) & (kOctoword - 1);
    wrap();
  }

 private:
  void wrap() {
    if (at_ == end_) at_ = start_;
  }
  uint8_t* start_;
  uint8_t* end_;
  uint8_t* at_;
};

inline mlx5_wqe_ctrl_seg& control_of(const SendRing& ring, uint32_t index) {
  return *reinterpret_cast<mlx5_wqe_ctrl_seg*>(ring.block(index));
}

inline void write_control(const SendRing& ring, uint16_t index, uint8_t opcode, uint32_t octoword_count,
                          bool signal) {
  static_assert(offsetof(mlx5_wqe_ctrl_seg, qpn_ds) == 4 && offsetof(mlx5_wqe_ctrl_seg, fm_ce_se) == 11);
  const uint32_t what = uint32_t{index} << 8 | opcode, where = ring.qpn << 8 | octoword_count;
  const uint64_t flags = signal ? MLX5_WQE_CTRL_CQ_UPDATE : 0;
  store_octoword(ring.block(index), uint64_t{what} << 32 | where, flags << 32);
}

/// Asks for a completion of a WQE that is written and not yet announced.
inline void mark_signalled(const SendRing& ring, uint16_t index) {
  control_of(ring, index).fm_ce_se = MLX5_WQE_CTRL_CQ_UPDATE;
}

/// The Ethernet segment's first octoword, without the start of an inline header.
inline void write_ethernet(const SendRing& ring, uint32_t index, uint8_t checksum, uint16_t mss,
                           uint16_t header) {
  static_assert(offsetof(mlx5_wqe_eth_seg, cs_flags) == 4 && offsetof(mlx5_wqe_eth_seg, mss) == 6);
  static_assert(offsetof(mlx5_wqe_eth_seg, inline_hdr_sz) == 12);
  store_octoword(ring.block(index) + kOctoword, uint64_t{checksum} << 24 | mss, uint64_t{header} << 16);
}

/// The Ethernet segment's inline header, of 0 or kHeaderInline bytes. Returns the WQE's octowords so far.
inline uint32_t write_header(const SendRing& ring, uint32_t index, const Piece& first, uint32_t header) {
  if (header == 0) return 2;
  std::memcpy(ring.block(index) + kOctoword + kInlineStart, first.data, kHeaderInline);
  return 3;  // 14 + 18 bytes are two octowords
}

/// The frame behind its first `header` bytes, by address. Returns how many segments that took.
inline uint32_t put_pointers(WqeCursor& cursor, std::span<const Piece> pieces, uint32_t header,
                             uint32_t lkey) {
  uint32_t count = 0;
  for (const Piece& piece : pieces) {
    // A length of 0 would mean 2^31 bytes.
    if (piece.length > header) {
      cursor.put_pointer(piece.data + header, piece.length - header, lkey);
      ++count;
    }
    header = 0;
  }
  return count;
}

/// A frame by its address: `header` bytes (0 or kHeaderInline, less than the first piece) in the WQE, the
/// rest is fetched by the device. Returns the WQE's octowords.
inline uint32_t write_send(const SendRing& ring, uint16_t index, std::span<const Piece> pieces,
                           uint8_t checksum, uint32_t header, bool signal) {
  write_ethernet(ring, index, checksum, 0, static_cast<uint16_t>(header));
  uint32_t count = write_header(ring, index, pieces[0], header);
  WqeCursor cursor(ring, ring.block(index) + size_t{count} * kOctoword);
  count += put_pointers(cursor, pieces, header, ring.lkey);
  write_control(ring, index, kOpSend, count, signal);
  return count;
}

/// The same of one piece. Its WQE is one block, which does not wrap.
[[gnu::always_inline]] inline uint32_t write_send(const SendRing& ring, uint16_t index, const Piece& whole,
                                                  uint8_t checksum, uint32_t header, bool signal) {
  write_ethernet(ring, index, checksum, 0, static_cast<uint16_t>(header));
  const uint32_t count = write_header(ring, index, whole, header);
  store_pointer(ring.block(index) + size_t{count} * kOctoword, whole.data + header, whole.length - header,
                ring.lkey);
  write_control(ring, index, kOpSend, count + 1, signal);
  return count + 1;
}
static_assert(blocks_of(4) == 1);

/// A whole frame of one piece within the WQE: its memory is free again at once.
[[gnu::always_inline]] inline uint32_t write_inline(const SendRing& ring, uint16_t index, const Piece& whole,
                                                    uint8_t checksum, uint32_t header, bool signal) {
  write_ethernet(ring, index, checksum, 0, static_cast<uint16_t>(header));
  const uint32_t fixed = write_header(ring, index, whole, header);
  WqeCursor cursor(ring, ring.block(index) + size_t{fixed} * kOctoword);
  const uint32_t length = whole.length - header;
  cursor.put_inline(whole.data + header, length, whole.room);
  const uint32_t count = fixed + octowords(4 + length);
  write_control(ring, index, kOpSend, count, signal);
  return count;
}

inline uint32_t write_inline(const SendRing& ring, uint16_t index, std::span<const Piece> pieces,
                             uint8_t checksum, uint32_t header, bool signal) {
  if (pieces.size() == 1) return write_inline(ring, index, pieces[0], checksum, header, signal);
  uint32_t length = 0;
  for (const Piece& piece : pieces) length += piece.length;
  write_ethernet(ring, index, checksum, 0, static_cast<uint16_t>(header));
  const uint32_t fixed = write_header(ring, index, pieces[0], header);
  WqeCursor cursor(ring, ring.block(index) + size_t{fixed} * kOctoword);
  length -= header;
  cursor.put_inline_length(length);
  for (const Piece& piece : pieces) {
    if (piece.length > header) cursor.put(piece.data + header, piece.length - header);
    header = 0;
  }
  const uint32_t count = fixed + octowords(4 + length);
  write_control(ring, index, kOpSend, count, signal);
  return count;
}

/// A frame for the device to cut: its first `header` bytes, all in pieces[0], are in the WQE and stand before
/// each `mss` bytes of the rest.
inline uint32_t write_tso(const SendRing& ring, uint16_t index, std::span<const Piece> pieces,
                          uint32_t header, uint16_t mss, bool signal) {
  write_ethernet(ring, index, kChecksum, mss, static_cast<uint16_t>(header));
  WqeCursor cursor(ring, ring.block(index) + kOctoword + kInlineStart);
  cursor.put(pieces[0].data, header);
  cursor.pad();
  uint32_t count = 1 + octowords(kInlineStart + header);
  count += put_pointers(cursor, pieces, header, ring.lkey);
  write_control(ring, index, kOpTso, count, signal);
  return count;
}

/// Octowords that the writers above take at most.
constexpr uint32_t send_octowords(uint32_t pieces, uint32_t header) {
  return 1 + octowords(kInlineStart + std::max(header, 2u)) + pieces;
}
constexpr uint32_t inline_octowords(uint32_t length, uint32_t header) {
  return header == 0 ? 2 + octowords(4 + length) : 3 + octowords(4 + length - header);
}

/// Many frames in one WQE (enhanced multi-packet): one control and Ethernet segment, then a data segment or
/// the bytes of each. All share the checksum flags; only for devices that ask for no inlined headers.
class MultiPacketWqe {
 public:
  MultiPacketWqe(const SendRing& ring, uint16_t index, uint8_t checksum)
      : ring_(ring), cursor_(ring, ring.block(index) + size_t{2} * kOctoword), index_(index) {
    write_ethernet(ring, index, checksum, 0, 0);
  }

  static constexpr uint32_t inline_cost(uint32_t length) { return octowords(4 + length); }
  uint32_t count() const { return count_; }
  bool fits(uint32_t octoword_count) const { return count_ + octoword_count <= kMaxOctowords; }

  void add_pointer(const uint8_t* data, uint32_t length) {
    cursor_.put_pointer(data, length, ring_.lkey);
    ++count_;
  }
  void add_inline(const uint8_t* data, uint32_t length, uint32_t room = 0) {
    cursor_.put_inline(data, length, room);
    cursor_.pad();
    count_ += inline_cost(length);
  }
  uint32_t close(bool signal) {
    write_control(ring_, index_, kOpMultiPacket, count_, signal);
    return count_;
  }

 private:
  const SendRing& ring_;
  WqeCursor cursor_;
  uint32_t count_ = 2;
  uint16_t index_;
};

/// The memory of a cyclic receive queue.
struct ReceiveRing {
  uint8_t* start = nullptr;
  uint32_t entries = 0;  ///< a power of two
  uint32_t stride =
      0;  ///< bytes of an entry: 16 for each segment that it has room for; 32 of a striding queue
  uint32_t lkey = 0;

  mlx5_wqe_data_seg* entry(uint32_t index) const {
    return reinterpret_cast<mlx5_wqe_data_seg*>(start + size_t{index & (entries - 1)} * stride);
  }
};

/// Segment `number` of a receive WQE.
inline void write_receive(const ReceiveRing& ring, uint32_t index, uint32_t number, uint8_t* buffer,
                          uint32_t size) {
  mlx5dv_set_data_seg(ring.entry(index) + number, size, ring.lkey, reinterpret_cast<uintptr_t>(buffer));
}

/// A striding receive WQE: a next segment, which such a queue does not use, and one buffer.
inline void write_striding_receive(const ReceiveRing& ring, uint32_t index, uint8_t* buffer, uint32_t size) {
  mlx5_wqe_data_seg* entry = ring.entry(index);
  std::memset(entry, 0, kOctoword);
  mlx5dv_set_data_seg(entry + 1, size, ring.lkey, reinterpret_cast<uintptr_t>(buffer));
}

/// Ends the list of a WQE with fewer segments than it has room for.
inline void end_receive(const ReceiveRing& ring, uint32_t index, uint32_t used) {
  if (used * kOctoword < ring.stride) mlx5dv_set_data_seg(ring.entry(index) + used, 0, MLX5_INVALID_LKEY, 0);
}

}  // namespace accel::mlx5
