// Fork state, of posix/process.cc (fork, exit) and posix/programs.cc (exec, spawn, passing): which other
// processes have this one's sockets, by fork(). Under the lock.
#pragma once

#include <memory>
#include <vector>

#include "posix/fork_sharing.h"

namespace accel::posix {

using ForkSharings = std::vector<std::unique_ptr<ForkSharing>>;

struct ForkState {
  ForkSharings own_forks;                ///< of forks by this process
  ForkSharings parents_forks;            ///< of forks by those before it
  bool programs_have_listeners = false;  ///< that are open here: programs that exec() has started
};
/// Never destroyed: exit() may still need it.
ForkState& fork_state();

/// A listener or UDP socket that came by fork() or otherwise.
inline bool dormant(const File& file) { return file.revivable() && file.kind() != FileKind::kIwarp; }

/// The connection that its parent carries moves to the kernel. Errors: ECONNRESET.
Result<bool> take_connection(File* file);
/// The processes that had it open when they forked, and wait on it no more, give up what they have of it.
void ask_owners(const File* file);
/// A listener or UDP socket releases its queues, as if it had done so at the fork: what is queued is for
/// those who have it.
void release_for_descendants(Pass& pass, File* file);
/// Descendants get the sockets that they have requested; with `all` every one, since this process ends.
void serve_descendants(Pass* pass, bool all);

}  // namespace accel::posix
