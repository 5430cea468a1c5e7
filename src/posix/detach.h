// Sockets and sets that become the kernel's while they are open.
#pragma once

#include "posix/file.h"

namespace accel::posix {

/// What has to be the kernel's from now on, since other processes use it: a socket, or a set with its members
/// and those of nested sets. False: a live connection that could not be moved; it is untouched.
bool detach(Pass* pass, File* file, Reason reason);

}  // namespace accel::posix
