// Process life: what fork(), exec and exit mean for descriptors of ours.
#pragma once

#include "posix/file.h"
#include "posix/guard.h"

namespace accel::posix {

/// To be called by every call on a file whose `inherited` is not kNo, before it uses it. True: go on, the
/// file is ready (guard may have opened the engine). False: the kernel serves the descriptor from now on (the
/// file has left the table). Error: ECONNRESET, the connection could not follow. May let go of the guard's
/// lock while it waits.
Result<bool> settle_inherited(Guard& guard, File* file);

/// Tells a new engine whom to notify (called by Guard::open_engine, once for each engine).
void attach_engine(Engine& engine);

/// Before the last descriptor of an accelerated connection is closed here: does another process that
/// inherited it still live? Then the connection is to be handed back instead of closed. `fd`: any descriptor
/// of it.
bool inherited_elsewhere(const File* file);

}  // namespace accel::posix
