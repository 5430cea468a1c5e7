// Fork state, of posix/process.h (fork, exit) and posix/programs.cc (exec, spawn, passing): which other
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

/// Before the last descriptor of an accelerated connection is closed here: does another process that
/// inherited it still live? Then the connection is to be handed back instead of closed.
bool inherited_elsewhere(const File* file);

/// Another process has it open as well, by fork().
bool others_have(const File* file);

/// The file is gone from here: its connection is the kernel's now (`in_kernel`), or over. Tells those who
/// inherited it. Called by FdTable::forget and File::release.
void settle_descendants(const File* file, bool in_kernel);

/// learn_of_programs() (posix/process.h) of what forked children have started.
void learn_of_descendants_programs(File* file);
/// Forks of which no descendant is left are forgotten, and the programs that those have started learned of.
void forget_ended_forks();

}  // namespace accel::posix
