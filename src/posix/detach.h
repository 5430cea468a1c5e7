// Sockets and sets that become the kernel's while they are open.
#pragma once

#include "posix/file.h"

namespace accel::posix {

/// A socket, or a set with its members and those of nested sets, becomes the kernel's, since other processes
/// use it. False: a live connection that could not be moved; it is untouched.
bool detach(Pass* pass, File* file, Reason reason);

}  // namespace accel::posix
