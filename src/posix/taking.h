// pidfd_getfd(): a process takes another's descriptor without the other's doing. What the descriptor means is
// in the other's stack, so with libaccel in both the taker asks for it at the other's door
// (posix/process_door.h), and its attendant hands back what is asked for. A forked child without an engine
// has what it has not used yet by its parent, or one before, who is asked instead. Whether the taker may have
// it the kernel has decided: it shows the descriptor that pidfd_getfd() has given it.
#pragma once

#include "posix/process_door.h"

namespace accel::posix {

/// On the attendant thread, without a Guard: this process's descriptor is another's, too. 0, or an errno:
/// ENOENT, it has none such; EPERM: `proof`, a descriptor of the asker's, is not of the same socket. Of an
/// epoll set none can tell: there the asker must be `trusted` (peer_is_trusted()).
int give_taken(const Question& wanted, int proof, bool trusted);

}  // namespace accel::posix
