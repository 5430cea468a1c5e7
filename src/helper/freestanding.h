// What the helper's program has instead of libc.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>  // memcpy() and memset() are main.cc's

#include "base/bare_syscall.h"

namespace accel::helper {

/// The kernel's answer: negative errno values.
template <class... A>
long call(long number, A... arguments) {
  return bare_syscall(number, (long)arguments...);  // NOLINT: pointers and numbers alike
}

/// The field of that index in a file of numbers; `otherwise` where there is none.
inline long number_in(const char* path, int index, long otherwise) {
  const long fd = call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return otherwise;
  char text[128] = {};
  const long n = call(SYS_read, fd, text, sizeof text - 1);
  call(SYS_close, fd);
  long value = 0;
  bool digits = false;
  for (long i = 0; i < n; ++i) {
    if (text[i] >= '0' && text[i] <= '9') {
      value = digits ? value * 10 + (text[i] - '0') : text[i] - '0';
      digits = true;
      continue;
    }
    if (digits && index-- == 0) return value;
    digits = false;
  }
  return digits && index == 0 ? value : otherwise;
}

}  // namespace accel::helper
