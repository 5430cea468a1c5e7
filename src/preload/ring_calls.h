// io_uring by system calls (ring_calls.cc).
#pragma once

#include <atomic>
#include <cstdint>

struct io_uring_params;

namespace accel::preload {

/// Makes the ring. One that a thread of the kernel's is to poll (IORING_SETUP_SQPOLL) is made without it:
/// each request then comes by io_uring_enter(), which the program calls to wake that thread.
long ring_setup(uint32_t entries, io_uring_params* parameters);

/// Looks at what the kernel is about to take. Returns how many requests it is to take.
uint32_t before_ring_enter(int fd, uint32_t to_submit, uint32_t flags);

/// How many rings are known.
extern constinit std::atomic<uint32_t> ring_count;
bool is_known_ring(int fd);
inline bool is_ring(int fd) { return ring_count.load(std::memory_order_relaxed) != 0 && is_known_ring(fd); }
/// What has such a number closes: a mapping would keep the ring, and its requests, alive. Returns `first`.
unsigned forget_rings(unsigned first, unsigned last);

/// In a child: another thread may have been changing the list, and the mappings are the parent's.
void forget_parents_rings();

/// io_uring_register(): descriptors that requests will name by an index.
void before_ring_register(uint32_t what, const void* argument, uint32_t count);

}  // namespace accel::preload
