// Descriptors that the library opens for itself and keeps. The program has not opened them: closing "all from
// 3 on" leaves them out (posix/descriptors.cc).
#pragma once

namespace accel {

/// Whoever opens one says so, and again just before it is closed. Any number; those beyond the table are not
/// kept.
void note_private(int fd, bool open);
bool is_private(int fd);

/// Returns fd.
inline int keep_private(int fd) {
  note_private(fd, true);
  return fd;
}
void close_private(int fd);

}  // namespace accel
