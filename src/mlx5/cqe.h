// Completion queue entries as ConnectX writes them: decoding on plain memory, tested without a NIC. Layouts
// are mlx5dv.h's. Completions are a device's word, yet nothing here trusts a length or a number: whoever uses
// one checks it against what was posted.
#pragma once

#include <endian.h>
#include <infiniband/mlx5dv.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "mlx5/doorbell.h"

namespace accel::mlx5 {

constexpr uint32_t kCqeSize = 64;
static_assert(sizeof(mlx5_cqe64) == kCqeSize && sizeof(mlx5_err_cqe) == kCqeSize);
static_assert(offsetof(mlx5_cqe64, op_own) == 63 && offsetof(mlx5_err_cqe, syndrome) == 55);

/// op_own of an entry that nobody has written: opcode 15, never valid.
constexpr uint8_t kUnwritten = MLX5_CQE_INVALID << 4 | 1;
constexpr uint8_t kFormatCompressed = 3;

struct Completion {
  enum class Kind : uint8_t { kSend, kReceive, kSendError, kReceiveError, kOther };
  Kind kind = Kind::kOther;
  bool checksum_good = false;  ///< received: the device verified the IP header and TCP's or UDP's checksum
  uint8_t syndrome = 0;        ///< of an error; mlx5dv.h's MLX5_CQE_SYNDROME_...
  uint8_t vendor_syndrome = 0;
  uint16_t wqe_counter = 0;  ///< index of the WQE, of a send WQE's first block
  uint16_t wqe_id = 0;       ///< received, striding: index of the WQE; wqe_counter is that of the stride
  uint32_t length = 0;       ///< received: bytes of the frame; striding: a StridedLength
  uint32_t flow_tag = 0;     ///< received: of the steering rule that brought it
  uint8_t dropped = 0;       ///< received: frames before it that found no descriptor, as the device counts
  uint64_t timestamp =
      0;  ///< device's clock; 0: of a compressed session, or an error, whose syndrome is there
};

/// What a striding queue's completion says of its length: filler << 31 | strides << 16 | bytes.
class StridedLength {
 public:
  constexpr explicit StridedLength(uint32_t word) : word_(word) {}
  constexpr bool filler() const { return (word_ >> 31) != 0; }  ///< no frame: strides that the device skipped
  constexpr uint32_t strides() const { return word_ >> 16 & 0x7fff; }
  constexpr uint32_t bytes() const { return word_ & 0xffff; }

 private:
  uint32_t word_;
};

/// Verified means both layers; without an IP header that the device knows there is no verdict.
constexpr bool checksums_verified(uint8_t hds_ip_ext) {
  constexpr uint8_t kBoth = MLX5_CQE_L3_OK | MLX5_CQE_L4_OK;
  return (hds_ip_ext & kBoth) == kBoth;
}

constexpr bool is_error(uint8_t opcode) { return opcode == MLX5_CQE_REQ_ERR || opcode == MLX5_CQE_RESP_ERR; }

inline Completion decode(const mlx5_cqe64& cqe) {
  const uint8_t opcode = cqe.op_own >> 4;
  Completion c;
  c.wqe_counter = be16toh(cqe.wqe_counter);
  if (opcode == MLX5_CQE_RESP_SEND) [[likely]] {
    c.kind = Completion::Kind::kReceive;
    c.wqe_id = be16toh(cqe.wqe_id);
    c.length = be32toh(cqe.byte_cnt);
    const uint32_t drops_and_tag = be32toh(cqe.sop_drop_qpn);
    c.flow_tag = drops_and_tag & 0xffffff;
    c.dropped = static_cast<uint8_t>(drops_and_tag >> 24);
    c.timestamp = be64toh(cqe.timestamp);
    // The L3 type in l4_hdr_type_etc: 0 when the frame is not IP.
    c.checksum_good = checksums_verified(cqe.hds_ip_ext) && (cqe.l4_hdr_type_etc >> 2 & 3) != 0;
  } else if (opcode == MLX5_CQE_REQ) {
    c.kind = Completion::Kind::kSend;
  } else if (is_error(opcode)) {
    mlx5_err_cqe error;
    std::memcpy(&error, &cqe, sizeof(error));
    c.kind = opcode == MLX5_CQE_REQ_ERR ? Completion::Kind::kSendError : Completion::Kind::kReceiveError;
    c.syndrome = error.syndrome;
    c.vendor_syndrome = error.vendor_err_synd;
  }
  return c;
}

/// What mlx5's Ethernet driver resets a receive queue for (cqe_syndrome_needs_recover). After others, that of
/// a frame longer than its entry's buffers most of all, the queue goes on with the next entry.
constexpr bool stops_receiving(const Completion& c) {
  return c.syndrome == MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR || c.syndrome == MLX5_CQE_SYNDROME_LOCAL_PROT_ERR ||
         c.syndrome == MLX5_CQE_SYNDROME_WR_FLUSH_ERR;
}

/// Not a cause: the queue had stopped before.
constexpr bool is_flush(const Completion& c) { return c.syndrome == MLX5_CQE_SYNDROME_WR_FLUSH_ERR; }

const char* syndrome_text(uint8_t syndrome);

/// One completion of a compressed session: what differs from the session's title (mlx5 kernel driver,
/// include/linux/mlx5/device.h: mlx5_mini_cqe8).
struct MiniCqe {
  union {
    uint32_t hash;
    struct {
      uint16_t checksum, stride_index;  // big-endian; the index in MLX5DV_CQE_RES_FORMAT_CSUM_STRIDX
    };
  };
  uint32_t byte_cnt;  // big-endian
};
static_assert(sizeof(MiniCqe) == 8 && offsetof(MiniCqe, stride_index) == 2);
constexpr uint32_t kMinisPerEntry = kCqeSize / sizeof(MiniCqe);

/// Takes completions off a queue, one after the other, expanding compressed sessions: a title entry of format
/// 3 whose byte_cnt counts the completions, and arrays of eight in the entries title+1, title+8, title+16 ...
/// The session occupies as many entries as it has completions.
class CompletionReader {
 public:
  CompletionReader() = default;
  enum class Queue : bool { kCyclic, kStriding };
  /// `entry_size` 64, or 128 whose second half is the CQE. The memory is the device's from now on.
  CompletionReader(void* start, uint32_t entries, uint32_t entry_size, Queue of = Queue::kCyclic)
      : start_(static_cast<uint8_t*>(start) + (entry_size - kCqeSize)),
        entries_(entries),
        entry_size_(entry_size),
        striding_(of == Queue::kStriding) {}

  /// Is there one? Its owner bit is that of the lap that the consumer is in.
  bool ready() const {
    if (left_ != 0) [[unlikely]]
      return true;
    const uint8_t op_own = owner_byte(consumer_);
    return op_own >> 4 != MLX5_CQE_INVALID && (op_own & 1) == ((consumer_ & entries_) != 0);
  }

  bool next(Completion* out) {
    if (left_ != 0) [[unlikely]] {
      *out = next_of_session();
      return true;
    }
    if (!ready()) return false;
    order_owner_before_completion();
    const mlx5_cqe64& cqe = *entry(consumer_);
    if ((cqe.op_own >> 2 & 3) == kFormatCompressed && !is_error(cqe.op_own >> 4)) [[unlikely]] {
      *out = begin_session(cqe);
      return true;
    }
    *out = decode(cqe);
    ++consumer_;
    return true;
  }

  /// Gives the entries read so far back to the device.
  void publish(DoorbellRecord record) const {
    order_descriptors_before_doorbell();
    record.set(kConsumerIndex, consumer_ & 0xffffff);
  }

  uint32_t consumer() const { return consumer_; }

 private:
  mlx5_cqe64* entry(uint32_t index) const {
    return reinterpret_cast<mlx5_cqe64*>(start_ + size_t{index & (entries_ - 1)} * entry_size_);
  }
  uint8_t owner_byte(uint32_t index) const {
    return *static_cast<const volatile uint8_t*>(&entry(index)->op_own);
  }

  // By value, and not into next()'s caller: its completion then stays in registers.
  [[gnu::noinline]] Completion begin_session(const mlx5_cqe64& cqe) {
    const uint32_t count = be32toh(cqe.byte_cnt);
    title_ = decode(cqe);
    if (count == 0 || count > entries_) {  // not one that a device sends
      title_.kind = Completion::Kind::kOther;
      ++consumer_;
      return title_;
    }
    title_.timestamp = 0;  // the first one's only
    left_ = session_ = count;
    array_ = consumer_ + 1;
    Completion first = next_of_session();
    title_.dropped = 0;
    return first;
  }

  [[gnu::noinline]] Completion next_of_session() {
    const uint32_t number = session_ - left_;
    if (number != 0 && number % kMinisPerEntry == 0) array_ = consumer_ + number;
    MiniCqe mini;
    std::memcpy(&mini,
                reinterpret_cast<const uint8_t*>(entry(array_)) + number % kMinisPerEntry * sizeof(MiniCqe),
                sizeof(mini));
    Completion c = title_;
    c.wqe_counter =
        striding_ ? be16toh(mini.stride_index) : static_cast<uint16_t>(title_.wqe_counter + number);
    c.length = be32toh(mini.byte_cnt);
    if (--left_ == 0) end_session();
    return c;
  }

  /// The device wrote neither owner bits nor most of these entries: what is left of an earlier lap would look
  /// valid in the next one.
  void end_session() {
    for (uint32_t i = 1; i < session_; ++i) entry(consumer_ + i)->op_own = kUnwritten;
    consumer_ += session_;
  }

  uint8_t* start_ = nullptr;
  uint32_t entries_ = 0;  ///< a power of two
  uint32_t entry_size_ = kCqeSize;
  bool striding_ = false;
  uint32_t consumer_ = 0;
  uint32_t left_ = 0;  ///< of the compressed session, not yet read
  uint32_t session_ = 0;
  uint32_t array_ = 0;
  Completion title_;
};

}  // namespace accel::mlx5
