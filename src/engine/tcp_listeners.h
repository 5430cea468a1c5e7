// Listeners of a TCP port of this network namespace, as the kernel counts them. /proc/net/tcp has every
// connection and TIME-WAIT beside the listeners: reading it took seconds where there were thousands.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"

namespace accel {

/// How many sockets listen at `port` (host order), of both families. Errors: those of dump_sockets().
Result<size_t> tcp_listeners_at(uint16_t port);

}  // namespace accel
