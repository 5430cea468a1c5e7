// An int option of a kernel socket.
#pragma once

#include <sys/socket.h>

#include "base/real.h"

namespace accel {

/// `otherwise` where it cannot be read: `fd` is no socket, or has no such option.
inline int int_option(int fd, int level, int name, int otherwise = 0) {
  int value = 0;
  socklen_t length = sizeof value;
  return real.getsockopt(fd, level, name, &value, &length) == 0 ? value : otherwise;
}

}  // namespace accel
