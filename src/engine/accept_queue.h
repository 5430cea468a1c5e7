// The accept queue of a kernel socket, which takes connections of ours by a program that is kept loaded.
#pragma once

#include <cstddef>

#include "base/result.h"

namespace accel {

struct BoundFlow;
class Pass;

/// The listener's unaccepted connections join the accept queue of its kernel socket, the oldest first.
/// Returns how many did. Errors: none could (the kernel is too old, or the privilege is gone); what could
/// not is still the listener's.
Result<size_t> queue_in_kernel(Pass& pass, BoundFlow& flow, int shadow);

/// In a forked child: it is the parent's.
void abandon_accept_queue_in_child();
/// Under the lock.
void close_accept_queue();

}  // namespace accel
