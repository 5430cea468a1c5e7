// Rings that are made and used by system calls (syscall()), as libuv does: what the kernel takes at
// io_uring_enter() is looked at before. A ring whose queue cannot be seen makes the kernel serve all sockets
// (posix::io_uring_used()).
#include "preload/ring_calls.h"

#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <algorithm>
#include <climits>
#include <vector>

#include "base/mutex.h"
#include "base/real.h"
#include "base/user_memory.h"
#include "posix/calls.h"
#include "preload/cancel.h"
#include "preload/ring_entries.h"
#include "preload/wrapper.h"

#ifndef IORING_SETUP_NO_SQARRAY
#define IORING_SETUP_NO_SQARRAY (1u << 16)  // Linux 6.6
#endif

namespace accel::preload {
namespace {

constexpr uint32_t kSqe128 = 1u << 10, kNoMmap = 1u << 14, kRegisteredOnly = 1u << 15;
constexpr uint32_t kLayoutKnown = (1u << 19) - 1;  ///< flags up to IORING_SETUP_CQE_MIXED

/// A ring's submission queue as the kernel and the program have it, by mappings of our own.
struct Ring {
  int fd;
  pid_t process;  ///< the mappings are not a child's
  uint32_t* head;
  uint32_t* tail;
  PendingEntries queue;
  void* maps[2];
  size_t sizes[2];
  bool polled;  ///< the program believes that a thread of the kernel's polls the queue
};

constinit Mutex lock;
/// Never deleted, since threads outlive destructors.
std::vector<Ring>* rings ACCEL_GUARDED_BY(lock) = nullptr;

void unmap(Ring& ring) {
  if (ring.process != getpid()) return;
  for (int i = 0; i < 2; ++i) munmap(ring.maps[i], ring.sizes[i]);
}

bool map(Ring& ring, const io_uring_params& p) {
  const auto& o = p.sq_off;
  const bool ordered = (p.flags & IORING_SETUP_NO_SQARRAY) != 0;
  const unsigned shift = (p.flags & kSqe128) != 0 ? 1 : 0;
  ring.sizes[0] = std::max({o.head, o.tail, o.ring_mask, o.flags}) + sizeof(uint32_t);
  if (!ordered) ring.sizes[0] = std::max(ring.sizes[0], o.array + p.sq_entries * sizeof(uint32_t));
  ring.sizes[1] = (p.sq_entries * sizeof(io_uring_sqe)) << shift;
  constexpr off_t kOffsets[] = {IORING_OFF_SQ_RING, IORING_OFF_SQES};
  for (int i = 0; i < 2; ++i) {
    ring.maps[i] = mmap(nullptr, ring.sizes[i], PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, kOffsets[i]);
    if (ring.maps[i] != MAP_FAILED) continue;
    if (i == 1) munmap(ring.maps[0], ring.sizes[0]);
    return false;
  }
  auto* base = static_cast<char*>(ring.maps[0]);
  const auto word = [base](uint32_t offset) { return reinterpret_cast<uint32_t*>(base + offset); };
  ring.head = word(o.head);
  ring.tail = word(o.tail);
  ring.queue = {static_cast<io_uring_sqe*>(ring.maps[1]), ordered ? nullptr : word(o.array),
                *word(o.ring_mask), p.sq_entries, shift};
  // The program wakes the thread that it believes in for each request, and so comes here.
  if (ring.polled) __atomic_fetch_or(word(o.flags), IORING_SQ_NEED_WAKEUP, __ATOMIC_SEQ_CST);
  return true;
}

void drop(int first, int last) {
  const MutexLock held(lock);
  if (rings == nullptr) return;
  std::erase_if(*rings, [=](Ring& ring) {
    const bool gone = ring.fd >= first && ring.fd <= last;
    if (gone) unmap(ring);
    return gone;
  });
  ring_count.store(static_cast<uint32_t>(rings->size()), std::memory_order_relaxed);
}

bool note(int fd, const io_uring_params& p, bool polled) {
  Ring ring{};
  ring.fd = fd;
  ring.process = getpid();
  ring.polled = polled;
  if ((p.flags & (kNoMmap | kRegisteredOnly)) != 0 || (p.flags & ~kLayoutKnown) != 0) return false;
  if (!map(ring, p)) return false;
  drop(fd, fd);  // closed past us
  const MutexLock held(lock);
  if (rings == nullptr) rings = new std::vector<Ring>;
  rings->push_back(ring);
  ring_count.store(static_cast<uint32_t>(rings->size()), std::memory_order_relaxed);
  return true;
}

/// False: not one that was seen.
bool find(int fd, Ring* found) {
  bool any = false;
  const MutexLock held(lock);
  if (rings != nullptr)
    for (const Ring& ring : *rings)
      if (ring.fd == fd && ring.process == getpid()) {
        *found = ring;
        any = true;
      }
  return any;
}

void unseen() {
  if (on()) served([] { posix::io_uring_used(); });
}

}  // namespace

constinit std::atomic<uint32_t> ring_count{0};

bool is_known_ring(int fd) {
  Ring ring{};
  return find(fd, &ring);
}

unsigned forget_rings(unsigned first, unsigned last) {
  if (ring_count.load(std::memory_order_relaxed) != 0)
    drop(static_cast<int>(std::min<unsigned>(first, INT_MAX)),
         static_cast<int>(std::min<unsigned>(last, INT_MAX)));
  return first;
}

/// The child has this thread only, and another may have held the lock.
void forget_parents_rings() ACCEL_LOCKS_UNCHECKED {
  new (&lock) Mutex;
  rings = nullptr;
  ring_count.store(0, std::memory_order_relaxed);
}

long ring_setup(uint32_t entries, io_uring_params* parameters) {
  const auto libc = [=] {
    return real.syscall(SYS_io_uring_setup, static_cast<long>(entries), parameters, 0L, 0L, 0L, 0L);
  };
  if (!on() || !can_read(parameters, sizeof *parameters)) return libc();
  // A thread of the kernel's would take requests at any moment.
  constexpr uint32_t kPolled = IORING_SETUP_SQPOLL | IORING_SETUP_SQ_AFF;
  const uint32_t wanted = parameters->flags;
  const bool polled = (wanted & IORING_SETUP_SQPOLL) != 0;
  const uint32_t cpu = parameters->sq_thread_cpu, idle = parameters->sq_thread_idle;
  if (polled) {
    parameters->flags &= ~kPolled;
    parameters->sq_thread_cpu = parameters->sq_thread_idle = 0;
  }
  const long fd = libc();
  if (fd >= 0 && !note(static_cast<int>(fd), *parameters, polled)) unseen();
  if (polled) {
    parameters->flags |= wanted & kPolled;
    parameters->sq_thread_cpu = cpu;
    parameters->sq_thread_idle = idle;
  }
  return fd;
}

uint32_t before_ring_enter(int fd, uint32_t to_submit, uint32_t flags) {
  Ring ring{};
  constexpr uint32_t kRegisteredRing = 1u << 4;
  if ((flags & kRegisteredRing) != 0 || !find(fd, &ring)) {
    if (to_submit > 0) unseen();
    return to_submit;
  }
  const uint32_t head = __atomic_load_n(ring.head, __ATOMIC_ACQUIRE);
  const uint32_t pending = __atomic_load_n(ring.tail, __ATOMIC_ACQUIRE) - head;
  if (ring.polled) to_submit = pending;
  before_entries(ring.queue, head, head + std::min(to_submit, pending));
  return to_submit;
}

void before_ring_register(uint32_t what, const void* argument, uint32_t count) {
  constexpr uint32_t kFiles = 2, kFilesUpdate = 6, kFiles2 = 13, kFilesUpdate2 = 14;
  if (what == kFiles) return before_registration(static_cast<const int*>(argument), count);
  if (what == kFilesUpdate && can_read(argument, sizeof(io_uring_files_update))) {
    const auto& update = *static_cast<const io_uring_files_update*>(argument);
    before_registration(reinterpret_cast<const int*>(static_cast<uintptr_t>(update.fds)), count);
  } else if (what == kFiles2 && can_read(argument, sizeof(io_uring_rsrc_register))) {
    const auto& r = *static_cast<const io_uring_rsrc_register*>(argument);
    before_registration(reinterpret_cast<const int*>(static_cast<uintptr_t>(r.data)), r.data != 0 ? r.nr : 0);
  } else if (what == kFilesUpdate2 && can_read(argument, sizeof(io_uring_rsrc_update2))) {
    const auto& r = *static_cast<const io_uring_rsrc_update2*>(argument);
    before_registration(reinterpret_cast<const int*>(static_cast<uintptr_t>(r.data)), r.nr);
  }
}

}  // namespace accel::preload
