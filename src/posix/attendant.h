// A thread that sleeps until another process claims a connection or takes a descriptor, or a fatal signal's
// handler needs the process finished (which no handler can do itself: it may have interrupted malloc). What
// it does may wait for other processes, which the control thread never does.
#pragma once

namespace accel::posix {

/// Starts it, once in a process. Not in a signal handler.
void start_attendant();
/// The eventfd that wakes it; -1: it does not run. Valid in children made by fork() as well.
int attendant_wake_fd();
/// It watches the doors of listeners (posix/succession.h): they have changed.
void attendant_look_again();
/// Has it call leave_for_foreign_waits() (posix/calls.h). Without a Guard.
void attendant_leave_for_foreign_waits();
/// It is over when this returns. From any other thread, without a Guard.
void end_attendant();
/// In the child after fork(): it does not run here. `keep`: the parent's eventfd stays open, for claims.
void attendant_after_fork_in_child(bool keep);

}  // namespace accel::posix
