// What the calls for one message share with those for several (posix/message_batches.cc).
#pragma once

#include <sys/socket.h>

#include "base/result.h"
#include "engine/pass.h"

namespace accel::posix {

/// sendmsg(), with the look at the device that goes before it.
Result<ssize_t> send_message(int fd, const msghdr* message, int flags, Pass::Polling polling);

/// What copying in a message's name and control does: false for those that are not there (EFAULT).
bool can_read_parts(const msghdr& m);

/// recvmsg()'s header, from the program's memory. False: it cannot be read, or its name has a negative size;
/// the kernel says so.
bool take_header(msghdr& m, const msghdr* message);
/// What recvmsg() tells, into the program's memory. False: EFAULT.
bool give_header(msghdr& m, msghdr* message, int flags);

}  // namespace accel::posix
