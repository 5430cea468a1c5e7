// A process that gives up root (setuid, capset): ports and steering are opened by privilege and used without
// it, so what this process will need is opened before.
#pragma once

namespace accel::posix {

/// Before a call that may take CAP_NET_RAW from this process. Opened are the devices of listeners and bound
/// UDP sockets whose queues are released (a prefork server's worker drops root before it uses what it
/// inherited: nginx, HAProxy) and of sockets that are bound but not yet used, and with the setting
/// `early_ports` all others. Not those of unused sockets where the process `may_return`, having kept root as
/// its real or saved user: a master that does a few things as another (Varnish) would hold the queues that
/// its children need. A device whose queues are all held is made ready, so that a queue that comes free can
/// be taken later. Does nothing in a process that has no such privilege, or within another call of ours (a
/// signal's handler).
void before_privileges_go(bool may_return);

/// After such a call, and after one that may bring them back (seteuid(0)): what failed for lack of them is
/// tried again, and the others that have a listener hear of this process.
void after_privileges_changed();

/// Between the two: whoever hands us connections of a shared listener would be judged by a user whom we are
/// about to leave (posix/listener_handoff.h).
bool privileges_are_going();

}  // namespace accel::posix
