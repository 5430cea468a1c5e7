// ppoll(2) refuses more descriptors than RLIMIT_NOFILE lets be opened, whatever is open (EINVAL).
#pragma once

#include <poll.h>
#include <signal.h>
#include <time.h>

#include <span>

namespace accel {

/// ppoll() on the program's descriptors and our own. It may poll as many as its limit allows, and a sandbox
/// lowers that to nothing: then by pselect(), which knows POLLIN, POLLOUT and POLLPRI only.
int poll_beyond_limit(std::span<pollfd> descriptors, const timespec* timeout, const sigset_t* mask);

}  // namespace accel
