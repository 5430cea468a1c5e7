// What the kernel is about to take from an io_uring's submission queue. Requests that concern descriptors of
// ours are served here where they can be (epoll_ctl), or the descriptor becomes the kernel's.
#pragma once

#include <linux/io_uring.h>

#include <cstdint>

namespace accel::preload {

/// Entries of a submission queue, between the kernel's head and the program's tail. Memory that the program
/// writes, read once.
struct PendingEntries {
  io_uring_sqe* entries;
  const uint32_t* order;  ///< indices of entries; nullptr: they are in order (IORING_SETUP_NO_SQARRAY)
  uint32_t mask;
  uint32_t count;  ///< of the queue
  unsigned shift;  ///< 1: entries of 128 bytes
};

/// Before the kernel takes [head, tail).
void before_entries(const PendingEntries& queue, uint32_t head, uint32_t tail);

/// Before the kernel gets `files`, which requests will name by their index.
void before_registration(const int* files, uint64_t count);

}  // namespace accel::preload
