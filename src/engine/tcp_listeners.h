// Who listens at a TCP port of this network namespace, as the kernel tells it (sock_diag(7)). /proc/net/tcp
// has every connection and TIME-WAIT beside the listeners: reading it took seconds where there were
// thousands.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"

namespace accel {

/// How many sockets listen at `port` (host order), of both families. Errors: the kernel's (sock_diag(7));
/// ENOENT: it has no tcp_diag.
Result<size_t> tcp_listeners_at(uint16_t port);

}  // namespace accel
