// Threads of the library's own in the program's process.
#pragma once

#include <pthread.h>

#include "base/result.h"

namespace accel::posix {

/// The thread has 512 KiB of stack, and no signal of the program's reaches it. libc's own do (SIGSETXID):
/// setuid() waits for every thread. Errors: as pthread_create(3).
Result<void> start_own_thread(pthread_t* thread, void* (*run)(void*), void* argument);
void join_own_thread(pthread_t thread);
/// The caller is such a thread, and about to end: nobody joins it.
void detach_own_thread();
/// They are not there.
void own_threads_after_fork_in_child();

/// There are such threads in the process, and no other beside the caller.
bool alone_but_for_own_threads();
/// For a process that has ended them: pthread_join(3) returns before the kernel has taken the thread out of
/// the process, and unshare(2) refuses a process of two threads. 1 s at most.
void wait_until_alone();

}  // namespace accel::posix
