// Telling the device. C++ fences order memory between threads, not what a PCIe device sees: each ordering
// that a queue needs has a name here. The reasons are those of rdma-core's util/udma_barrier.h.
#pragma once

#include <endian.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace accel::mlx5 {

/// Descriptors (and what they point to) before the doorbell record that announces them, both in memory.
/// x86 writes in order (TSO) and DMA reads are coherent: only the compiler must be held.
inline void order_descriptors_before_doorbell() {
#if defined(__aarch64__)
  asm volatile("dmb oshst" ::: "memory");
#elif defined(__x86_64__)
  asm volatile("" ::: "memory");
#else
#error "name this CPU's barrier between descriptors and doorbell record (rdma-core: udma_to_device_barrier)"
#endif
}

/// The doorbell record before the store to the device's register, which is write-combining memory: that store
/// may overtake earlier ones.
inline void order_doorbell_before_register() {
#if defined(__aarch64__)
  asm volatile("dsb st" ::: "memory");
#else
  asm volatile("sfence" ::: "memory");
#endif
}

/// Pushes write-combining buffers out to the device now, and before any later such store.
inline void flush_write_combining() {
#if defined(__aarch64__)
  asm volatile("dsb st" ::: "memory");
#else
  asm volatile("sfence" ::: "memory");
#endif
}

/// The owner bit of a completion before the rest of it, which the device wrote earlier.
inline void order_owner_before_completion() {
#if defined(__aarch64__)
  asm volatile("dmb oshld" ::: "memory");
#else
  asm volatile("" ::: "memory");
#endif
}

/// A pair of big-endian counters that the device reads from our memory.
class DoorbellRecord {
 public:
  DoorbellRecord() = default;
  explicit DoorbellRecord(void* words) : words_(static_cast<uint32_t*>(words)) {}
  void set(size_t word, uint32_t value) const {
    std::atomic_ref<uint32_t>(words_[word]).store(htobe32(value), std::memory_order_relaxed);
  }

 private:
  uint32_t* words_ = nullptr;
};
constexpr size_t kReceiveCounter = 0, kSendCounter = 1;  ///< of a queue pair's record
constexpr size_t kConsumerIndex = 0, kArmCommand = 1;    ///< of a completion queue's

/// A send queue's register page. Two halves of `size` bytes are used in turn, so that a store does not merge
/// into one that is still in a write-combining buffer. size 0: an uncached page with one 8-byte register.
class BlueField {
 public:
  BlueField() = default;
  BlueField(void* reg, uint32_t size) : reg_(static_cast<uint8_t*>(reg)), size_(size) {}

  /// `wqe`: the last WQE written; its first 8 bytes are the doorbell.
  void ring(const uint8_t* wqe) {
    uint64_t word;
    std::memcpy(&word, wqe, sizeof(word));
    *reinterpret_cast<volatile uint64_t*>(reg_ + offset_) = word;  // NOLINT: a device register
    offset_ ^= size_;
  }
  /// The WQE itself, so that the device need not fetch it: `blocks` of 64 bytes, wrapping as the ring does.
  void push(const uint8_t* wqe, uint32_t blocks, const uint8_t* ring_start, const uint8_t* ring_end) {
    uint8_t* to = reg_ + offset_;
    for (; blocks > 0; --blocks) {
#pragma GCC unroll 4
      for (size_t i = 0; i < 64; i += sizeof(Line)) {
        Line part;
        std::memcpy(&part, wqe + i, sizeof(part));
        *reinterpret_cast<volatile Line*>(to + i) = part;  // NOLINT: a device register
      }
      to += 64;
      wqe += 64;
      if (wqe == ring_end) wqe = ring_start;
    }
    offset_ ^= size_;
  }
  uint32_t capacity() const { return size_; }

 private:
  /// Write-combining memory takes stores of any size; only the 8 bytes of ring() must be one.
  using Line = uint64_t __attribute__((vector_size(16)));

  uint8_t* reg_ = nullptr;
  uint32_t size_ = 0;
  uint32_t offset_ = 0;
};

/// What a completion queue is asked with: wake us when the completion after `consumer` is there.
constexpr uint32_t arm_command(uint32_t sequence, uint32_t consumer) {
  return (sequence & 3) << 28 |
         (consumer & 0xffffff);  // command bit 24 = 0: any completion, not only solicited
}
inline void arm_completions(DoorbellRecord record, void* uar, uint32_t cqn, uint32_t sequence,
                            uint32_t consumer) {
  const uint32_t command = arm_command(sequence, consumer);
  record.set(kArmCommand, command);
  order_doorbell_before_register();
  constexpr size_t kArmRegister = 0x20;  // MLX5_CQ_DOORBELL
  auto* to = reinterpret_cast<volatile uint64_t*>(static_cast<uint8_t*>(uar) + kArmRegister);
  *to = htobe64(uint64_t{command} << 32 | cqn);
  flush_write_combining();
}

/// Announces everything up to `next` (the index after the last WQE, whose first block is `last`).
/// One WQE alone goes to the device within the doorbell when it fits.
struct SendDoorbell {
  DoorbellRecord record;
  BlueField register_page;

  void announce(uint16_t next, const uint8_t* last, uint32_t blocks, bool alone, const uint8_t* ring_start,
                const uint8_t* ring_end) {
    order_descriptors_before_doorbell();
    record.set(kSendCounter, next);
    order_doorbell_before_register();
    if (alone && blocks * 64 <= register_page.capacity())
      register_page.push(last, blocks, ring_start, ring_end);
    else
      register_page.ring(last);
    flush_write_combining();
  }
};

}  // namespace accel::mlx5
