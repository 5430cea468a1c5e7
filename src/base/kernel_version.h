// The running kernel's version, where nothing else tells what it can do.
#pragma once

#include <sys/utsname.h>

#include <cstdio>
#include <utility>

namespace accel {

/// False also where uname(2) does not tell.
inline bool kernel_is_at_least(int major, int minor) {
  utsname kernel{};
  std::pair<int, int> version;
  return uname(&kernel) == 0 && std::sscanf(kernel.release, "%d.%d", &version.first, &version.second) == 2 &&
         version >= std::pair(major, minor);
}

}  // namespace accel
