// The sockets of this process as `accel stat` shows them.
#pragma once

#include "posix/socket.h"

namespace accel::posix {

/// The path of a socket of the table, and why, as `accel stat` shows it. `pass`: nullptr while there is no
/// engine.
PathChoice path_of(Pass* pass, const Socket& s);

/// One answer to its readers: each file of the table that is a socket, once, by its lowest descriptor.
void publish_sockets(Pass& pass);

}  // namespace accel::posix
