// Waits that come past us: a language runtime that makes the system calls of epoll or poll itself (Bun's
// epoll_pwait2, inline assembly) while its sockets are made by libc's functions. Such a wait sees the shadows
// only, and of a set that has members of ours their tags. Nothing announces it, but the kernel tells in which
// call a thread sleeps (/proc/PID/task/TID/syscall). Once one is found every socket becomes the kernel's.
#pragma once

namespace accel::posix {

/// On the control thread, at each tick, without a Guard. `absent`: the application has made no pass since the
/// last.
void look_for_foreign_waits(bool absent);

}  // namespace accel::posix
