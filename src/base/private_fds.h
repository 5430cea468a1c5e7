// Descriptors that the library opens for itself and keeps. The program has not opened them: closing "all from
// 3 on" leaves them out (posix/descriptors.cc).
#pragma once

#include <cstdint>

namespace accel {

/// Whoever opens one says so, and again just before it is closed. Any number; those beyond the table are not
/// kept.
void note_private(int fd, bool open);
bool is_private(int fd);

/// Moves `fd`, made just now, above the numbers that programs use by name (dup2() in a shell or a
/// supervisor), yet below the usual limit of 1024. Returns the new number, or `fd` where that cannot be; -1
/// stays -1.
int move_high(int fd);
/// The same, and notes it.
int keep_private(int fd);
void close_private(int fd);

/// The descriptor is this file: the program may have closed it by a system call of its own, and have another
/// one by that number.
bool is_file(int fd, uint64_t device, uint64_t inode);

/// While it lives, sockets that another library makes on this thread are moved high too (preload's socket()).
class MakingPrivate {
 public:
  MakingPrivate();
  ~MakingPrivate();
  MakingPrivate(const MakingPrivate&) = delete;
  MakingPrivate& operator=(const MakingPrivate&) = delete;
  static bool now();
};

}  // namespace accel
