// A process that binds a UDP port which others have (posix/udp_port_owners.h) has them look again whose it
// is.
#pragma once

#include <cstdint>

namespace accel::posix {

/// After bind(), without a Guard: those who have the port look again, here and elsewhere.
void claim_udp_port(int fd);
/// This process's sockets of the port look again. Without a Guard.
void settle_udp_port(uint16_t port);

}  // namespace accel::posix
