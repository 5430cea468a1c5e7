// SO_REUSEPORT groups in which a program of the kernel's chooses (SO_ATTACH_REUSEPORT_CBPF, _EBPF): all
// members are the kernel's, in whatever process. The process that attaches the program tells the others
// (posix/peer_requests.h), and leaves a marker for later ones (posix/reuseport_markers.h). Taking the program
// off changes nothing: the kernel chooses among its sockets by itself then, and ours would take what is
// theirs.
#pragma once

#include <sys/socket.h>

#include "base/ip.h"

namespace accel::posix {

inline bool attaches_program(int level, int name) {
  return level == SOL_SOCKET && (name == SO_ATTACH_REUSEPORT_CBPF || name == SO_ATTACH_REUSEPORT_EBPF);
}
/// The socket `fd` has been given one. Without a Guard.
void attach_group_program(int fd);
/// bind() has given `fd` a name: a program that it had before is its group's from now on.
void socket_has_name(int fd);
/// Another process says so of a group. On the request thread, without a Guard.
void group_got_program(Protocol protocol, const Endpoint& local);
}  // namespace accel::posix
