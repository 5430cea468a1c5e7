// Process life: what fork(), exec and exit mean for descriptors of ours.
//
// fork() copies our memory but not our stack's work: the parent's connections stay the parent's. The two
// processes share a page for the connections that the child inherits (posix/fork_sharing.h). The process that
// comes to need one has it moved into the shadow, whose open file description both have: the child by a
// request at its first use, the parent when it closes its last descriptor while a descendant lives. From then
// on the kernel serves both. Until then bytes are read and sent by the parent alone.
#pragma once

#include <poll.h>

#include <vector>

#include "posix/file.h"
#include "posix/guard.h"

namespace accel::posix {

/// To be called by every call on a file whose `inherited` is not kNo, before it uses it. True: go on, the
/// file is ready (guard may have opened the engine). False: the kernel serves the descriptor from now on (the
/// file has left the table). Error: ECONNRESET, the connection could not follow. `waits`: for a wait alone;
/// it may stay released, since a program of a descendant's has got it meanwhile (File::opens_for_wait).
Result<bool> settle_inherited(Guard& guard, File* file, bool waits = false);

/// Programs that forked children have started, and that have this listener or UDP socket, are known from now
/// on (File::has_program).
void learn_of_programs(File* file);

/// The connection that its parent carries moves to the kernel. Errors: ECONNRESET.
Result<bool> take_connection(File* file);
/// The processes that had it open when they forked, and wait on it no more, give up what they have of it.
void ask_owners(const File* file);
/// A listener or UDP socket releases its queues, as if it had done so at the fork: what is queued is for
/// those who have it.
void release_for_descendants(Pass& pass, File* file);
/// Descendants get the sockets that they have requested; with `all` every one, since this process ends.
void serve_descendants(Pass* pass, bool all);

/// detach() (posix/detach.h) of what came by fork(), exec() or in a message and has not been used here: those
/// who have it open are asked for it. False: it could not follow.
bool detach_inherited(File* file, Reason reason);

/// Another process is about to have this descriptor, if it is one of ours. EOPNOTSUPP: it is an iWARP
/// connection, which cannot. Without a Guard.
Result<void> pass_on(int fd);

/// A listener or UDP socket of this process is about to be passed on (posix/inherited.cc). Under the lock.
void note_passed();

/// Moves what other processes have requested into the kernel. On the request thread, without a Guard.
void serve_fork_requests();

/// On the request thread, without a Guard: adds the hand-off sockets of this process's listeners
/// (posix/listener_handoff.h), and what has come there and not spoken; returns the longest that it may sleep,
/// in milliseconds, or -1: any time. One is readable.
int add_handoff_sockets(std::vector<pollfd>& watched);
void serve_handoff_socket(int handoff_socket);

/// Nothing that send() accepted is lost, and descendants find their connections in the kernel. Without a
/// Guard, at the end of the process.
void hand_back_all();

}  // namespace accel::posix
