#include "base/memory.h"

#include <stdlib.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <new>

#include "base/mutex.h"
#include "base/put_off_signals.h"

namespace accel::memory {

const Calls* for_modules = nullptr;

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kSpan = 64 << 10;   ///< blocks of one size fill spans of this
constexpr size_t kChunk = 64 << 20;  ///< address space is taken in chunks, of this size where there is room
constexpr size_t kLeastChunk = 4 << 20;  ///< where RLIMIT_AS leaves less, in halves of it down to this
constexpr size_t kRoom = 4;           ///< chunks that there has to be room for: the program needs some, too
constexpr size_t kCommit = 1 << 20;   ///< and made usable in these
constexpr size_t kMost = kChunk / 2;  ///< a larger block is libc's
constexpr size_t kMaxChunks = 1024;
/// Committed ahead of what is used, for allocate() alone: an eighth of that, since a container that grows
/// takes a part of what its elements have.
constexpr size_t kLeastReserve = 1 << 20, kMostReserve = 16 << 20;
constexpr size_t kReturned = 256 << 10;  ///< pages of a free block from this size go back to the kernel
constexpr size_t kSmall = 256;           ///< sizes go by 16 up to this, then four to each power of two
constexpr size_t kSizes = 16 + 4 * 17;   ///< to kMost

constexpr size_t size_index(size_t size) {
  if (size <= kSmall) return size == 0 ? 0 : (size - 1) / 16;
  const auto power = static_cast<size_t>(std::bit_width(size - 1)) - 1;
  return 16 + (power - 8) * 4 + (((size - 1) >> (power - 2)) - 4);
}

constexpr size_t block_size(size_t index) {
  if (index < 16) return (index + 1) * 16;
  const size_t power = 8 + (index - 16) / 4, quarter = (index - 16) % 4;
  return (quarter + 5) << (power - 2);
}
static_assert(block_size(size_index(256)) == 256 && block_size(size_index(257)) == 320);
static_assert(block_size(size_index(kMost)) == kMost && size_index(kMost) == kSizes - 1);

struct Free {
  Free* next;
};

struct Size {
  Free* free = nullptr;
  uintptr_t fresh = 0, end = 0;  ///< of the newest span, what was never given out
};

struct Chunk {
  uintptr_t begin = 0;
  size_t size = 0, used = 0, usable = 0;
  std::array<uint8_t, kChunk / kSpan> index{};  ///< of the blocks in each span
};

constinit Mutex lock;
std::array<Size, kSizes> sizes ACCEL_GUARDED_BY(lock);
std::array<Chunk, kMaxChunks> chunks ACCEL_GUARDED_BY(lock);
size_t chunk_count ACCEL_GUARDED_BY(lock) = 0;
size_t in_former_chunks ACCEL_GUARDED_BY(lock) = 0;  ///< bytes of all but the last one

/// Signals wait from before the lock is taken until it has been let go.
class ACCEL_SCOPED_CAPABILITY Inside {
 public:
  Inside() ACCEL_ACQUIRE(lock) {
    signal_brackets.memory = true;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    lock.lock();
  }
  ~Inside() ACCEL_RELEASE() {
    lock.unlock();
    std::atomic_signal_fence(std::memory_order_seq_cst);
    signal_brackets.memory = false;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    admit_if_outside();
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

Chunk* chunk_of(const void* block) ACCEL_REQUIRES(lock) {
  const auto at = reinterpret_cast<uintptr_t>(block);
  for (size_t i = 0; i < chunk_count; ++i)
    if (at - chunks[i].begin < chunks[i].size) return &chunks[i];
  return nullptr;
}

/// In a handler: the frame that it interrupted holds the lock.
bool is_in_a_chunk(const void* block) ACCEL_LOCKS_UNCHECKED { return chunk_of(block) != nullptr; }

/// Makes the chunk usable up to `end`.
bool commit(Chunk& chunk, size_t end) {
  end = std::min((end + kCommit - 1) / kCommit * kCommit, chunk.size);
  if (end <= chunk.usable) return true;
  if (mprotect(reinterpret_cast<void*>(chunk.begin + chunk.usable), end - chunk.usable,
               PROT_READ | PROT_WRITE) != 0)
    return false;
  chunk.usable = end;
  return true;
}

/// Address space of `size` bytes, aligned to spans; nothing where RLIMIT_AS leaves no room for kRoom of them.
uintptr_t map_chunk(size_t size) {
  void* memory = mmap(nullptr, kRoom * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return 0;
  const auto at = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t begin = (at + kSpan - 1) & ~(kSpan - 1), end = begin + size;
  if (begin > at) munmap(memory, begin - at);
  munmap(reinterpret_cast<void*>(end), at + kRoom * size - end);
  return begin;
}

/// `usable` bytes of it; the rest is address space only.
Chunk* new_chunk(size_t usable) ACCEL_REQUIRES(lock) {
  if (chunk_count == kMaxChunks) return nullptr;
  Chunk chunk;
  for (size_t size = kChunk; chunk.begin == 0 && size >= std::max(usable, kLeastChunk); size /= 2)
    if (const uintptr_t begin = map_chunk(size)) chunk = {.begin = begin, .size = size};
  if (chunk.begin == 0) return nullptr;
  if (!commit(chunk, usable)) return munmap(reinterpret_cast<void*>(chunk.begin), chunk.size), nullptr;
  if (chunk_count > 0) in_former_chunks += chunks[chunk_count - 1].size;
  chunks[chunk_count] = chunk;
  return &chunks[chunk_count++];
}

/// Of all chunks.
size_t used_in_all() ACCEL_REQUIRES(lock) {
  return chunk_count == 0 ? 0 : in_former_chunks + chunks[chunk_count - 1].used;
}

size_t reserve() ACCEL_REQUIRES(lock) { return std::clamp(used_in_all() / 8, kLeastReserve, kMostReserve); }

/// A chunk with room for `length` and, behind it, the reserve. Without that: the one that has the reserve,
/// for who may take of it. nullptr: there is no memory.
Chunk* chunk_for(size_t length, bool of_reserve) ACCEL_REQUIRES(lock) {
  Chunk* last = chunk_count == 0 ? nullptr : &chunks[chunk_count - 1];
  const size_t wanted = length + reserve();
  if (last != nullptr && wanted <= last->size - last->used && commit(*last, last->used + wanted)) return last;
  if (last == nullptr || wanted > last->size - last->used)
    if (Chunk* fresh = new_chunk(wanted)) return fresh;
  return of_reserve && last != nullptr && length <= last->usable - last->used ? last : nullptr;
}

/// Spans in a row for blocks of that size; 0: there is no memory.
uintptr_t new_spans(size_t index, size_t size, bool of_reserve) ACCEL_REQUIRES(lock) {
  const size_t length = (size + kSpan - 1) / kSpan * kSpan;
  Chunk* chunk = chunk_for(length, of_reserve);
  if (chunk == nullptr) return 0;
  std::fill_n(chunk->index.begin() + static_cast<ptrdiff_t>(chunk->used / kSpan), length / kSpan,
              static_cast<uint8_t>(index));
  const uintptr_t begin = chunk->begin + chunk->used;
  chunk->used += length;
  return begin;
}

void* take(size_t index, bool of_reserve) ACCEL_REQUIRES(lock) {
  Size& s = sizes[index];
  if (Free* block = s.free) {
    s.free = block->next;
    return block;
  }
  const size_t size = block_size(index);
  if (s.end - s.fresh < size) {
    const uintptr_t begin = new_spans(index, size, of_reserve);
    if (begin == 0) return nullptr;
    s.fresh = begin;
    s.end = begin + std::max(kSpan, size);
  }
  void* block = reinterpret_cast<void*>(s.fresh);
  s.fresh += size;
  return block;
}

/// Blocks whose size is a power of two are aligned to it.
size_t size_for(size_t size, size_t alignment) {
  return alignment <= 16 ? size : std::bit_ceil(std::max(size, alignment));
}

void* from_libc(size_t size, size_t alignment) {
  return alignment <= 16 ? malloc(size)
                         : aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

void* allocate(size_t size, size_t alignment, bool of_reserve) {
  if (size > kMost || alignment > kPage || signal_brackets.memory) return from_libc(size, alignment);
  const size_t index = size_index(size_for(size, alignment));
  bool from_program = of_reserve;
  {
    const Inside in;
    if (void* block = take(index, of_reserve)) return block;
    // What may be refused does not take the program's last memory, unless no chunk fits below RLIMIT_AS.
    from_program |= chunk_count == 0;
  }
  return from_program ? from_libc(size, alignment) : nullptr;
}

}  // namespace

void* allocate(size_t size, size_t alignment) { return allocate(size, alignment, true); }
void* try_allocate(size_t size, size_t alignment) { return allocate(size, alignment, false); }

void release(void* block) {
  if (block == nullptr) return;
  if (!signal_brackets.memory) {
    const Inside in;
    if (const Chunk* chunk = chunk_of(block)) {
      const size_t index = chunk->index[(reinterpret_cast<uintptr_t>(block) - chunk->begin) / kSpan];
      if (const size_t size = block_size(index); size >= kReturned) madvise(block, size, MADV_DONTNEED);
      sizes[index].free = new (block) Free{sizes[index].free};
      return;
    }
  } else if (is_in_a_chunk(block)) {
    return;  // given up: whoever was interrupted is about to change the lists
  }
  free(block);
}

namespace {

thread_local bool holds [[gnu::tls_model("initial-exec")]] = false;

}  // namespace

// The lock is held from one of these to the other, where it was not held before.
void hold() ACCEL_LOCKS_UNCHECKED {
  if (signal_brackets.memory) return;
  holds = signal_brackets.memory = true;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  lock.lock();
}

void let_go() ACCEL_LOCKS_UNCHECKED {
  if (!holds) return;
  holds = false;
  lock.unlock();
  std::atomic_signal_fence(std::memory_order_seq_cst);
  signal_brackets.memory = false;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  admit_if_outside();
}

}  // namespace accel::memory
