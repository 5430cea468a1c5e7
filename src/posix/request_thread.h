// Request thread: sleeps until another process requests a connection or takes a descriptor, or a fatal
// signal's handler needs the process finished (which no handler can do itself: it may have interrupted
// malloc). What it does may wait for other processes, which the control thread never does.
#pragma once

namespace accel::posix {

/// Starts it, once in a process. Not in a signal handler.
void start_request_thread();
/// The eventfd that wakes it; -1: it does not run. Valid in children made by fork() as well.
int request_thread_wake_fd();
/// It watches the hand-off sockets of listeners (posix/listener_handoff.h): they have changed.
void request_thread_look_again();
/// Has it call detach_for_foreign_waits() (posix/calls.h). Without a Guard.
void request_thread_detach_for_foreign_waits();
/// It is over when this returns. From any other thread, without a Guard.
void end_request_thread();
/// In the child after fork(): it does not run here. `keep`: the parent's eventfd stays open, for requests.
void request_thread_after_fork_in_child(bool keep);

}  // namespace accel::posix
