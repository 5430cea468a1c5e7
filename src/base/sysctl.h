// Numbers of /proc/sys.
#pragma once

namespace accel {

/// The number in a file of /proc/sys, or `otherwise` where it cannot be read.
int sysctl(const char* path, int otherwise);

}  // namespace accel
