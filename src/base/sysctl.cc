#include "base/sysctl.h"

#include <fcntl.h>

#include <cstdlib>

#include "base/real.h"

namespace accel {

int sysctl(const char* path, int otherwise) {
  char text[16] = {};
  const int fd = real.open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return otherwise;
  const ssize_t n = real.read(fd, text, sizeof text - 1);
  real.close(fd);
  return n > 0 ? std::atoi(text) : otherwise;
}

}  // namespace accel
