// A filter of system calls (seccomp(2)) that the process was started under: a container's, systemd's
// SystemCallFilter=. It refuses a call with an error, which we take as any other, or kills for it.
#pragma once

namespace accel {

/// The system call of ours for which the filter kills; nullptr: none, or there is no filter. Found out by a
/// process of its own, of which no wait() of the program's knows, once; where there is no filter it is one
/// look into /proc.
const char* killing_filter();

}  // namespace accel
