// The control thread: a libev loop that does the engine's housekeeping, and gives what that finds to the
// sockets. It is of this layer, which owns them, so that no call goes upwards.
#pragma once

#include "engine/engine.h"

namespace accel::posix {

/// For Engine::open(): it runs, all signals blocked, when this returns.
Result<void> start_control_thread(Engine& engine);
/// It is over when this returns. From any other thread, without a Guard.
void end_control_thread();
/// In the child after fork(), where it is not. Frees nothing.
void control_thread_after_fork_in_child();

}  // namespace accel::posix
