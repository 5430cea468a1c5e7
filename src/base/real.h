// libc itself. Inside the preloaded library the plain names (recv, close ...) are our own wrappers, so every
// layer calls libc through here: real.recv(fd, data, size, flags), with libc's result and errno.
//
// An entry starts as a stub that finds the function behind us (dlsym RTLD_NEXT) and replaces itself: calls
// arrive before our constructor, from other libraries' constructors and from inside malloc. The stubs are
// constant-initialised and allocate nothing. In an ordinary executable (unit tests) the same look-up finds
// libc's.
#pragma once

#include <linux/capability.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#include <atomic>
#include <cerrno>
#include <type_traits>

#include "base/result.h"

namespace accel {

template <class Signature>
class RealCall;

/// A pointer to libc's function, called as the function is.
template <class R, class... P>
class RealCall<R(P...)> {
 public:
  using Pointer = R (*)(P...);
  constexpr explicit RealCall(Pointer stub) : pointer_(stub) {}
  R operator()(P... arguments) const { return get()(arguments...); }
  Pointer get() const { return pointer_.load(std::memory_order_relaxed); }
  void set(Pointer function) { pointer_.store(function, std::memory_order_relaxed); }

 private:
  std::atomic<Pointer> pointer_;
};

template <class R, class... P>
class RealCall<R(P..., ...)> {
 public:
  using Pointer = R (*)(P..., ...);
  constexpr explicit RealCall(Pointer stub) : pointer_(stub) {}
  template <class... More>
  R operator()(P... arguments, More... more) const {
    return get()(arguments..., more...);
  }
  Pointer get() const { return pointer_.load(std::memory_order_relaxed); }
  void set(Pointer function) { pointer_.store(function, std::memory_order_relaxed); }

 private:
  std::atomic<Pointer> pointer_;
};

/// The stubs' signatures, one for each name of real.def.
namespace real_stub {
#define REAL(result, name, parameters, arguments) result name parameters;
#include "base/real.def"
#undef REAL
int open(const char* path, int flags, ...);
int openat(int directory, const char* path, int flags, ...);
int fcntl(int fd, int command, ...);
int ioctl(int fd, unsigned long request, ...);
long syscall(long number, ...);
int clock_gettime(clockid_t clock, timespec* now);
}  // namespace real_stub

struct RealCalls {
#define REAL(result, name, parameters, arguments) RealCall<result parameters> name{real_stub::name};
#include "base/real.def"
#undef REAL
  RealCall<int(const char* path, int flags, ...)> open{real_stub::open};
  RealCall<int(int directory, const char* path, int flags, ...)> openat{real_stub::openat};
  RealCall<int(int fd, int command, ...)> fcntl{real_stub::fcntl};
  RealCall<int(int fd, unsigned long request, ...)> ioctl{real_stub::ioctl};
  RealCall<long(long number, ...)> syscall{real_stub::syscall};
  /// The program's until find_libcs_clock().
  RealCall<int(clockid_t clock, timespec* now)> clock_gettime{real_stub::clock_gettime};
};

extern RealCalls real;

/// libc's own `name`, past the wrappers of this library; ENOSYS's stand-in is nullptr. Allocates nothing when
/// it is found.
void* find_real(const char* name);

/// Resolves every entry now, so that later calls (from signal handlers, say) meet no dynamic linker.
void resolve_real();

/// libc's clock_gettime() also where another preloaded library (libfaketime) stands before it: timeouts are
/// in the kernel's time. Not in a signal's handler, nor under a lock: it asks the dynamic linker.
void find_libcs_clock();

/// The result of one of them.
template <class T>
Result<T> from_libc(T r) {
  if (r == static_cast<T>(-1)) return err(errno);
  return r;
}

}  // namespace accel
