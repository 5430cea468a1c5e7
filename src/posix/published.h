// The sockets of this process as `accel stat` shows them.
#pragma once

#include "engine/stats.h"

namespace accel::posix {

/// stats::Source: each file of the table that is a socket, once, by its lowest descriptor.
void publish_sockets(Pass& pass, stats::Writer& writer, Instant now);

}  // namespace accel::posix
