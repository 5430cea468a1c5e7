// sockaddr and Endpoint.
#pragma once

#include <sys/socket.h>

#include "base/ip.h"
#include "base/result.h"

namespace accel::posix {

/// sockaddr <-> Endpoint. Errors: EINVAL (short), EAFNOSUPPORT. IPv4 in an AF_INET6 address is taken as
/// mapped.
Result<Endpoint> from_sockaddr(const sockaddr* address, socklen_t length, int domain);
/// An address that an engine could have a part in; any() is this host.
inline bool is_outside(const IpAddress& to) { return !to.is_any() && !to.is_loopback(); }
/// The family of an address that has one. The address need not be aligned.
sa_family_t family_of(const sockaddr* address);
/// AF_UNSPEC, with which connect() ends a connection.
bool is_unspecified(const sockaddr* address, socklen_t length);
/// Gives the program an address as accept(2) does: at most *length bytes, and *length becomes the full size.
/// Errors: EFAULT, EINVAL (a negative *length).
Result<void> put_address(const void* from, socklen_t size, sockaddr* address, socklen_t* length);
/// The same of an Endpoint. domain AF_INET6 shows IPv4 as mapped.
Result<void> to_sockaddr(const Endpoint& endpoint, int domain, sockaddr* address, socklen_t* length,
                         uint32_t scope = 0, uint32_t flowinfo = 0);

/// The name of a socket of the kernel's, of whatever family; port 0: not bound.
Endpoint kernel_name(int fd);
/// The name of its peer; port 0: not connected.
Endpoint kernel_peer_name(int fd);

}  // namespace accel::posix
