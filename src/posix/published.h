// The sockets of this process as `accel stat` shows them.
#pragma once

#include "engine/engine.h"

namespace accel::posix {

/// One answer to its readers: each file of the table that is a socket, once, by its lowest descriptor.
void publish_sockets(Pass& pass);

}  // namespace accel::posix
