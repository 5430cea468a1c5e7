// Descriptors that are opened, read and closed at once, on threads of the library's own. The kernel gives the
// lowest free number, which a program of one thread takes to be its own next one: it would get another, or
// close the library's. So such threads open them in a table of descriptors that nobody else has.
#pragma once

#include <cstdint>
#include <type_traits>

namespace accel {

/// The calling thread is the library's, for its whole life, and runs in_own_table() on `stack`.
void begin_own_tables(void* stack, unsigned long size);

/// Tasks of in_own_table(), which the kernel counts as threads of the process. One that is about to begin is
/// counted already, one that ends until the kernel has forgotten it.
struct OwnTableTasks {
  uint64_t begun;  ///< ever
  int now;
  bool operator==(const OwnTableTasks&) const = default;
};
OwnTableTasks own_table_tasks();
/// There are none of the parent's.
void own_tables_after_fork_in_child();

/// Runs `work(context)` in a task of the kernel's beside the calling thread, which waits: with its memory,
/// its thread-local variables and signal mask, and an empty table of descriptors. What it opens is closed
/// when it ends. In other threads, and where the kernel refuses (RLIMIT_NPROC, before Linux 5.9), it is
/// called as it is. It may nest. What it may throw is std::bad_alloc. Linux: clone(2) with CLONE_VFORK,
/// close_range(2).
void in_own_table(void (*work)(void*), void* context);

template <class F>
void in_own_table(F&& work) {
  in_own_table([](void* f) { (*static_cast<std::remove_reference_t<F>*>(f))(); }, &work);
}

}  // namespace accel
