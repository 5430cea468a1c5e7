// The calls of include/accel.h, as far as they are about descriptors and threads.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/result.h"
#include "engine/path.h"

namespace accel::posix {

/// The path of a descriptor at this moment, and its reason. The texts live as long as the process.
struct Description {
  PathKind path = PathKind::kKernel;
  const char* path_name = "";
  const char* reason = "";  ///< its name; "unknown": nobody has noted why it is the kernel's
  const char* text = "";
  std::string detail;    ///< what the reason is about
  int ifindex = 0;       ///< 0: no device's queues carry it, or those of several
  bool listens = false;  ///< on our stack
  bool lends = false;    ///< receive_lease() has buffers of it
};
/// `off`: the library takes no part in the process. Errors: EBADF, EAGAIN (a handler that has interrupted the
/// library).
Result<Description> describe(int fd, bool off);

struct LeaseCall;  // posix/lease.h
/// The next datagram, or what has come of a connection's text, in buffers that are the program's until
/// release_lease(). Errors: as recvmsg(); EINVAL (flags, no room), EOPNOTSUPP (it lies in no buffer of ours),
/// ENOBUFS (so many leases are out), EMSGSIZE.
Result<ssize_t> receive_lease(int fd, LeaseCall& call);
/// Errors: EINVAL (no lease of this process), EAGAIN (a handler that has interrupted the library).
Result<void> release_lease(uint64_t number);

/// In microseconds; negative: as the setting says. Engine::set_thread_spin().
void set_thread_spin(int longest);
int thread_spin();

}  // namespace accel::posix
