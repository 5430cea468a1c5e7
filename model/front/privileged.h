// What a driver does for its callers takes none of their privileges, but here the hardware is a part of the
// process, which may give them up.
#pragma once

namespace model {

/// A system call with the credentials that the process had when it first opened a device or started its
/// helper.
long privileged_call(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0);

/// Whether a process, or with 0 the calling thread, may make rules.
bool has_net_raw(long pid);

/// The calling thread goes before the programs': among those that spin on few CPUs its turn would come
/// milliseconds late.
void be_hardware();

/// Starts it. Does nothing when it runs.
void keep_privileges();

}  // namespace model
