// Multicast groups that a UDP socket has joined, and whether its process may have the devices bring them.
//
// The shadow has the memberships. A device that brings a group's datagrams to this process brings them to
// nobody else of the host: not to the kernel's sockets, nor to other programs' that have joined it. So the
// groups are taken while no socket but those in this process's stack has the port. Programs with libaccel say
// so when they bind (posix/udp_port_claims.h). For others the control thread looks at the kernel's table of
// sockets.
#pragma once

#include <cstdint>

#include "base/instant.h"
#include "posix/guard.h"

namespace accel::posix {

/// This process's sockets of the port, where they have joined groups, take them or leave them.
void settle_groups(Pass& pass, uint16_t port);

/// A socket has joined a group: the control thread looks soon.
void ask_for_look(Engine& engine);

/// The control thread's look at who else has the ports of groups. Without a Guard. Returns when the next one
/// is due; kNever: no socket has joined a group.
Instant look_at_groups();

}  // namespace accel::posix
