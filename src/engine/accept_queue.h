// The program that Engine::queue_in_kernel() keeps loaded.
#pragma once

namespace accel {

/// In a forked child: it is the parent's.
void abandon_accept_queue_in_child();
/// Under the lock.
void close_accept_queue();

}  // namespace accel
