// pidfd_getfd(): a process takes another's descriptor without the other's doing. What the descriptor means is
// in the other's stack. So with libaccel in both the caller asks for it at the other's request socket
// (posix/peer_requests.h), and the request thread there hands back what is asked for. A forked child without
// an engine has what it has not used yet from its parent, or an earlier ancestor, which is asked instead. The
// kernel has decided whether the caller may have the descriptor: the caller shows the one that it got from
// pidfd_getfd().
#pragma once

#include "posix/peer_requests.h"

namespace accel::posix {

/// On the request thread, without a Guard: this process's descriptor is another's, too. 0, or an errno:
/// ENOENT, it has none such; EPERM: `proof`, a descriptor of the asker's, is not of the same socket. Of an
/// epoll set none can tell: there the asker must be `trusted` (peer_is_trusted()).
int detach_taken(const PeerRequest& wanted, int proof, bool trusted);

}  // namespace accel::posix
