// Signals: a program's handlers run through a trampoline of ours, so that a blocked call knows that one ran,
// and no handler runs inside our lock.
#pragma once

#include <signal.h>

namespace accel::posix {

/// The process has an engine: from now on a signal whose default action ends the process first has what
/// send() accepted delivered or handed to the kernel. sigaction() still reports SIG_DFL. Idempotent.
void guard_fatal_signals();

/// Handlers that were installed before the library took part (another library's constructor) run behind the
/// trampoline, too. Idempotent.
void adopt_handlers();

/// From now on the checks of base/user_memory.h answer. sigaction() still reports what the program has set.
/// Idempotent.
void check_memory_by_faults();

/// In the child after fork(): signals put off in the parent's copy of this thread are let in again.
void signals_after_fork_in_child();

}  // namespace accel::posix
