// Whether rules of the kernel's restrict connect(): Landlock's (landlock(7),
// LANDLOCK_ACCESS_NET_CONNECT_TCP), a security module's, a filter of system calls, a cgroup's program. An
// accelerated connection makes no such call, so that none of them would be asked.
#pragma once

namespace accel::posix {

/// Of the calling thread, since each thread may have rules of its own. A socket of ours tries, once a thread
/// and once more after connect_rules_change(): connect() to port 0 of the broadcast address. Rules that know
/// what they allow do not name it, and else TCP says ENETUNREACH without a packet (tcp_v4_connect()).
bool connect_is_restricted();

/// landlock_restrict_self(2), of any thread.
void connect_rules_change();

}  // namespace accel::posix
