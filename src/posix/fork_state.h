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

/// By fork(), another process has it open as well.
bool others_have(const File* file);

/// The file is gone from here: its connection is the kernel's now (`in_kernel`), or over. Tells those who
/// inherited it. Called by FdTable::forget and File::release.
void settle_descendants(const File* file, bool in_kernel);

/// Programs that forked children have started, and that have this listener or UDP socket, are known from now
/// on (File::has_program).
void learn_of_descendants_programs(File* file);
/// No descendant of those is left, but their programs may be.
void forget_ended_forks();

}  // namespace accel::posix
