// Ownership of a file descriptor in the modules (libaccel-xdp.so, libaccel-mlx5.so), where base/private_fds.h
// is not linked: the library is told of each.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace accel {

/// XdpOptions::note_descriptor, Mlx5Options::note_descriptor; a variable in each module.
inline void (*note_descriptor)(int fd, bool open) = nullptr;
inline void note(int fd, bool open) {
  if (note_descriptor != nullptr && fd >= 0) note_descriptor(fd, open);
}

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) { note(fd, true); }
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() {
    if (fd_ < 0) return;
    note(fd_, false);
    ::close(fd_);
  }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// Above the numbers that programs use by name, as base/private_fds.h has it. -1: there is no room.
inline int copy_high(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 700); }
inline Fd high(Fd fd) {
  if (!fd) return fd;
  Fd moved(copy_high(fd.get()));
  return moved ? std::move(moved) : std::move(fd);
}
/// The same for one that a library has opened and will close.
inline void raise_descriptor(int& fd) {
  const int moved = copy_high(fd);
  if (moved < 0) return;
  ::close(fd);
  fd = moved;
}

}  // namespace accel
