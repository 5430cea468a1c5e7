// Descriptors of the module's that the program has not opened (base/private_fds.h, which is not linked here).
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace accel::mlx5 {

/// Mlx5Options::note_descriptor.
inline void (*note_descriptor)(int fd, bool open) = nullptr;
inline void note(int fd, bool open) {
  if (note_descriptor != nullptr && fd >= 0) note_descriptor(fd, open);
}

/// Moves it above the numbers that programs use by name, and notes it; -1 stays -1.
inline int keep(int fd) {
  constexpr int kHighDescriptor = 700;
  if (fd < 0) return fd;
  if (const int high = fcntl(fd, F_DUPFD_CLOEXEC, kHighDescriptor); high >= 0) {
    ::close(fd);
    fd = high;
  }
  note(fd, true);
  return fd;
}

inline void let_go(int& fd) {
  if (fd < 0) return;
  note(fd, false);
  ::close(std::exchange(fd, -1));
}

}  // namespace accel::mlx5
