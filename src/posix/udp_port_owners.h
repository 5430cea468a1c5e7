// Several UDP sockets with one port and address, by SO_REUSEADDR alone: the kernel gives what comes for the
// address to the one that was bound last, until that is closed. That one is the port owner. A process learns
// from the kernel (sock_diag(7)) whether its socket is the port owner, and has its device bring the datagrams
// only then. Else they are the kernel's, which knows the owner (posix/udp_port_claims.h: who looks again).
//
// Members of a SO_REUSEPORT group are none: they divide what comes (mlx5/shares.h, the queues of AF_XDP).
#pragma once

#include <vector>

#include "base/ip.h"
#include "posix/socket.h"

namespace accel::posix {

/// Visits the UDP sockets that are open in this process's stack, which chooses among them itself. Under the
/// Guard.
template <class F>
void for_each_open_udp(F visit) {
  fds.for_each(0, fds.limit(), [&](int fd, File* file) {
    if (file->kind() == FileKind::kUdp && file->bound_flow() != nullptr && fds.first_of(file) == fd)
      visit(static_cast<Socket&>(*file));
  });
}

/// A UDP socket of this host's network namespace.
struct UdpUser {
  Endpoint local, remote;  ///< remote.port 0: not connected
  int ifindex = 0;         ///< SO_BINDTODEVICE
  bool v6 = false, v6_only = false;
  uint64_t cookie = 0;
};

/// Of each family the last that was bound first. Empty, too, where the kernel does not tell.
std::vector<UdpUser> users_of_udp_port(uint16_t port);

/// Whether a socket owns its port.
enum class PortOwnership : uint8_t {
  kSole,      ///< no other takes what it does
  kOwner,     ///< what both would take is its own
  kNotOwner,  ///< of what both would take some is another's
};
/// `users`: without those among which this process's stack chooses, but for the socket itself.
PortOwnership ownership_of(uint64_t cookie, const std::vector<UdpUser>& users);
/// The same as of now. Under the Guard.
PortOwnership ownership_at(uint16_t port, uint64_t cookie);

/// Another of `users` than this process's sockets of the port that are open in the stack, and `cookie`'s,
/// would take what comes to multicast groups. Under the Guard.
bool others_take_groups(const std::vector<UdpUser>& users, uint16_t port, uint64_t cookie = 0);

}  // namespace accel::posix
