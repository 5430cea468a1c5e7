// The memory that both ends of a connection map: for each direction a ring of bytes, the indices of its two
// users on cache lines of their own, and what they tell each other.
//
// The other end may write anything here at any time. So every word is read once, and what was read is checked
// against what this end knows (sender.h, receiver.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"

namespace accel::shm {

/// How the bytes of a direction travel. A state is entered from one before it only, by whoever is named.
enum class Carrier : uint32_t {
  kKernel,    ///< the kernel's connection, as from its beginning
  kRing,      ///< sender: `by_kernel` bytes went by the kernel, what follows is in the ring
  kLeft,      ///< sender: behind the ring's last byte the kernel's connection goes on
  kEnded,     ///< sender: the ring's last byte is the stream's
  kReturned,  ///< receiver: it takes nothing more from the ring; the rest comes by the kernel
};

struct Direction {
  // ---- written by the sender ----
  alignas(64) std::atomic<uint64_t> tail;  ///< bytes ever put into the ring
  std::atomic<uint64_t> by_kernel;
  std::atomic<uint64_t> base;  ///< byte `base` lies at the ring's beginning; another one while it is empty
  // ---- written by the receiver ----
  alignas(64) std::atomic<uint64_t> head;  ///< bytes ever taken out
  std::atomic<uint32_t> receive_buffer;    ///< bytes that its socket buffers; 0: as many as the ring holds
  // ---- written by both, seldom ----
  alignas(64) std::atomic<Carrier> carrier;
  std::atomic<uint32_t> reader_asleep;  ///< it wants to be told of the next byte
  std::atomic<uint32_t> writer_asleep;  ///< it wants to be told of room
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<Carrier>::is_always_lock_free);

/// The beginning of the memory; the rings follow, that of direction[0] first.
struct Region {
  Direction direction[2];
};
inline constexpr size_t kHeader = 4096;
static_assert(sizeof(Region) <= kHeader);

inline constexpr size_t kSmallestRing = 4096, kLargestRing = size_t{16} << 20;
/// A power of two within the limits.
constexpr bool is_ring_size(size_t bytes) {
  return bytes >= kSmallestRing && bytes <= kLargestRing && (bytes & (bytes - 1)) == 0;
}

/// A mapping of such memory.
class Mapping {
 public:
  Mapping() = default;
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  /// Makes the memory. Returns its descriptor, the caller's, which the other end needs; it cannot be resized.
  Result<int> make(size_t ring);
  /// Maps what the other end has made, rings of `most` bytes or less. Errors: EINVAL, where that is not
  /// sealed memory of a fitting size: it could be cut off under the reader.
  Result<void> take(int fd, size_t most);

  /// Whole pages of a ring become none, and are zeroes when they are touched next (madvise(2) MADV_REMOVE).
  static void give_back(std::span<uint8_t> pages);

  Direction& direction(size_t which) { return static_cast<Region*>(memory_)->direction[which]; }
  std::span<uint8_t> ring(size_t which) {
    return {static_cast<uint8_t*>(memory_) + kHeader + which * ring_, ring_};
  }

 private:
  Result<void> map(int fd, size_t ring);
  void* memory_ = nullptr;
  size_t ring_ = 0;
};

}  // namespace accel::shm
