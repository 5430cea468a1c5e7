// Knowledge that posix/process.cc (fork, exit) and posix/programs.cc (exec, spawn, passing) share: which
// other processes have this one's sockets, by fork(). Under the lock.
#pragma once

#include <memory>
#include <vector>

#include "posix/heritage.h"

namespace accel::posix {

using Heritages = std::vector<std::unique_ptr<Heritage>>;

struct Family {
  Heritages bequests;                    ///< of forks by this process
  Heritages inheritances;                ///< of forks by those before it
  bool programs_have_listeners = false;  ///< that are open here: programs that exec() has started
};
/// Never destroyed: exit() may still need it.
Family& family();

/// A listener or UDP socket that came by fork() or otherwise.
inline bool dormant(const File& file) { return file.revivable() && file.kind() != FileKind::kIwarp; }

/// The connection that its parent carries moves to the kernel. Errors: ECONNRESET.
Result<bool> claim_connection(File* file);
/// The processes that had it open when they forked, and wait on it no more, give up what they have of it.
void ask_owners(const File* file);
/// A listener or UDP socket rests, as if it had done so at the fork: what is queued is for those who have it.
void rest_for_heirs(Pass& pass, File* file);
/// Heirs get the sockets that they have claimed; with `all` every one, since this process ends.
void serve_heirs(Pass* pass, bool all);

}  // namespace accel::posix
