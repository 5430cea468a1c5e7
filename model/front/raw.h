// System calls past every interposer: libaccel in front of us, and our own hooks.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "base/bare_syscall.h"

namespace model::raw {

inline long call(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
  return accel::bare_syscall(number, a, b, c, d, e, f);
}

template <class T>
long word(T v) {
  if constexpr (requires { reinterpret_cast<long>(v); }) {
    return reinterpret_cast<long>(v);
  } else {
    return static_cast<long>(v);
  }
}

/// As libc's: -1 and errno.
inline long to_libc(long result) {
  if (result >= 0 || result < -4095) return result;
  errno = static_cast<int>(-result);
  return -1;
}

/// The hardware's descriptors. A program whose NIC is a real one has none of them: to its close() they are
/// not open, and their numbers are above those that it reckons with.
constexpr int kHighDescriptor = 800;
inline std::array<std::atomic<bool>, 65536> kept{};
inline int keep(int fd) {
  if (const long high = fd < 0 ? -1 : call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, kHighDescriptor); high >= 0) {
    call(SYS_close, fd);
    fd = static_cast<int>(high);
  }
  if (fd >= 0 && fd < static_cast<int>(kept.size())) kept[static_cast<size_t>(fd)] = true;
  return fd;
}
inline bool is_kept(unsigned fd) { return fd < kept.size() && kept[fd].load(std::memory_order_relaxed); }

inline int openat(const char* path, int flags, mode_t mode) {
  return keep(static_cast<int>(call(SYS_openat, AT_FDCWD, word(path), flags, mode)));
}
inline void close(int fd) {
  if (is_kept(static_cast<unsigned>(fd))) kept[static_cast<size_t>(fd)] = false;
  call(SYS_close, fd);
}
inline long write(int fd, const void* data, size_t size) {
  return call(SYS_write, fd, word(data), word(size));
}
inline long read(int fd, void* data, size_t size) { return call(SYS_read, fd, word(data), word(size)); }
inline int pipe(int (&fds)[2], int flags) { return static_cast<int>(call(SYS_pipe2, word(&fds[0]), flags)); }
inline void* mmap(size_t size, int protection, int flags, int fd, off_t offset) {
  return reinterpret_cast<void*>(call(SYS_mmap, 0, word(size), protection, flags, fd, word(offset)));
}
inline bool failed(const void* p) { return reinterpret_cast<uintptr_t>(p) > static_cast<uintptr_t>(-4096); }
inline void munmap(void* p, size_t size) { call(SYS_munmap, word(p), word(size)); }
inline int socket(int family, int type, int protocol) {
  return keep(static_cast<int>(call(SYS_socket, family, type, protocol)));
}
inline long setsockopt(int fd, int level, int name, const void* value, socklen_t size) {
  return call(SYS_setsockopt, fd, level, name, word(value), size);
}
inline int poll(pollfd* fds, size_t count, uint64_t ns) {
  timespec wait{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  return static_cast<int>(call(SYS_ppoll, word(fds), word(count), word(&wait), 0, 0));
}
inline void sleep(uint64_t ns) { poll(nullptr, 0, ns); }

}  // namespace model::raw
