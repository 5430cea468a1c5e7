// pidfd_getfd(): a process takes another's descriptor without the other's doing. What the descriptor means is
// in the other's stack, so with libaccel in both the taker asks for it: each process with an engine has a
// door, named after its number, at which its attendant hands back what is asked for. A forked child without
// one has what it has not used yet by its parent, or one before, who is asked instead.
#pragma once

#include "base/result.h"

namespace accel::posix {

/// The door of this process; -1: there can be none.
int open_process_door();
/// On the attendant thread, without a Guard: lets in who stands before it.
void serve_taker(int door);

}  // namespace accel::posix
