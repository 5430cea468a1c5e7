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

/// Before the last descriptor of an accelerated connection is closed here: does another process that
/// inherited it still live? Then the connection is to be handed back instead of closed.
bool inherited_elsewhere(const File* file);

/// By fork(), another process has it open as well.
bool others_have(const File* file);

/// Programs that forked children have started, and that have this listener or UDP socket, are known from now
/// on (File::has_program).
void learn_of_programs(File* file);

/// The file is gone from here: its connection is the kernel's now (`in_kernel`), or over. Tells those who
/// inherited it. Called by FdTable::forget and File::release.
void settle_descendants(const File* file, bool in_kernel);

/// What has to be the kernel's from now on, since other processes use it: a socket, or a set with its members
/// and those of nested sets. False: a live connection that could not be moved; it is untouched.
bool detach(Pass* pass, File* file, Reason reason);

/// The same for what came by fork(), exec() or in a message and has not been used here: those who have it
/// open are asked for it. False: it could not follow.
bool detach_inherited(File* file, Reason reason);

/// Another process is about to have this descriptor, if it is one of ours. EOPNOTSUPP: it is an iWARP
/// connection, which cannot. Without a Guard.
Result<void> pass_on(int fd);

/// A listener or UDP socket of this process is about to be passed on (posix/inherited.cc). Under the lock.
void note_passed();

/// Moves what other processes have requested into the kernel. On the request thread, without a Guard.
void serve_fork_requests();

/// On the request thread, without a Guard: adds the hand-off sockets of this process's listeners
/// (posix/listener_handoff.h); one is readable.
void add_handoff_sockets(std::vector<pollfd>& watched);
void serve_handoff_socket(int handoff_socket);

/// Nothing that send() accepted is lost, and descendants find their connections in the kernel. Without a
/// Guard, at the end of the process.
void hand_back_all();

}  // namespace accel::posix
