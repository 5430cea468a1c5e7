// The sockets of this network namespace, as the kernel tells of them (sock_diag(7)).
#pragma once

#include <linux/netlink.h>

#include <cstddef>
#include <type_traits>

#include "base/result.h"

namespace accel {

/// `request`: what follows the netlink header, inet_diag_req_v2 or unix_diag_req, of `size` bytes. Messages
/// with less than `least` bytes behind their header are left out. Errors: the kernel's; ENOENT: it has no
/// such module. Messages before an error have been visited.
Result<void> dump_sockets(const void* request, size_t size, size_t least,
                          void (*visit)(const nlmsghdr& message, void* context), void* context);

/// As dump_sockets(), of the one socket that `request` names by its addresses and ports. Errors: ENOENT:
/// none.
Result<void> find_socket(const void* request, size_t size, size_t least,
                         void (*visit)(const nlmsghdr& message, void* context), void* context);

template <class F>
void call_visitor(const nlmsghdr& message, void* visit) {
  (*static_cast<F*>(visit))(message);
}

/// `Told`: the structure that each message begins with, inet_diag_msg or unix_diag_msg.
template <class Told, class Request, class F>
Result<void> dump_sockets(const Request& request, F&& visit) {
  return dump_sockets(&request, sizeof request, sizeof(Told), &call_visitor<std::remove_reference_t<F>>,
                      &visit);
}

template <class Told, class Request, class F>
Result<void> find_socket(const Request& request, F&& visit) {
  return find_socket(&request, sizeof request, sizeof(Told), &call_visitor<std::remove_reference_t<F>>,
                     &visit);
}

}  // namespace accel
