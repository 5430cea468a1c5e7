// Threads of the library's own in the program's process.
#pragma once

#include <pthread.h>

#include "base/result.h"

namespace accel::posix {

/// The thread has 512 KiB of stack, and no signal of the program's reaches it. libc's own do (SIGSETXID):
/// setuid() waits for every thread. Errors: as pthread_create(3).
Result<void> start_own_thread(pthread_t* thread, void* (*run)(void*), void* argument);

}  // namespace accel::posix
