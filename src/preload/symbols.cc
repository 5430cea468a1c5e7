// The wrappers of symbols.def. On a kernel descriptor each is a look into the table of descriptors and a jump
// to libc.
#include <fcntl.h>
#include <linux/sockios.h>

#include "preload/candidates.h"
#include "preload/preload.h"

namespace accel::preload {

Result<int> at_mark(int fd) {
  int mark = 0;
  Result<int> r = posix::ioctl(fd, SIOCATMARK, &mark);
  return r ? Result<int>(mark) : r;
}

namespace {

timespec from_ms(int ms) { return {ms / 1000, ms % 1000 * 1000000L}; }

}  // namespace

int closing_ring(int fd) {
  if (fd >= 0) forget_rings(static_cast<unsigned>(fd), static_cast<unsigned>(fd));
  return fd;
}

/// A socket that has become standard input, output or error (inetd's way) is read and written by libc's
/// streams.
Result<int> for_stdio(int fd, Result<int> made) {
  if (made && fd <= STDERR_FILENO && posix::fds.owns(fd)) (void)posix::before_stdio(fd);
  return made;
}

/// The new descriptor has got such a number, since the program had closed what it was.
Result<int> for_stdio(Result<int> made) { return made ? for_stdio(*made, made) : made; }

/// Before it connects: a listener with such a number (a daemon has closed its three, no more) has no streams.
int connecting_stdio(int fd) {
  (void)for_stdio(fd, fd);
  return fd;
}

Result<int> ppoll_ms(pollfd* descriptors, nfds_t count, int timeout) {
  const timespec t = from_ms(timeout);
  return posix::ppoll(descriptors, count, timeout < 0 ? nullptr : &t, nullptr);
}

Result<int> epoll_ms(int set, epoll_event* events, int size, int timeout, const sigset_t* mask) {
  const timespec t = from_ms(timeout);
  return posix::epoll_wait(set, events, size, timeout < 0 ? nullptr : &t, mask);
}

/// select(2) on Linux tells in `timeout` what is left of it, and takes microseconds beyond a second.
Result<int> select_us(int count, fd_set* read, fd_set* write, fd_set* except, timeval* timeout) {
  if (timeout == nullptr) return posix::pselect(count, read, write, except, nullptr, nullptr, nullptr);
  if (timeout->tv_sec < 0 || timeout->tv_usec < 0) return err(EINVAL);
  const timespec t{timeout->tv_sec + timeout->tv_usec / 1000000, timeout->tv_usec % 1000000 * 1000};
  timespec left = t;
  Result<int> r = posix::pselect(count, read, write, except, &t, nullptr, &left);
  if (r || r.is(EINTR)) *timeout = {left.tv_sec, left.tv_nsec / 1000};
  return r;
}

}  // namespace accel::preload

using namespace accel;           // NOLINT: the table's expressions read as posix::recv(...), real.recv(...)
using namespace accel::preload;  // NOLINT

// A row's condition may be the only one to look at a parameter.
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define UNWRAP(...) __VA_ARGS__
#define FD_CALL(result, name, parameters, arguments, ours) \
  CALL(result, name, parameters, arguments, posix::fds.owns(fd), ours)
#define CALL(result, name, parameters, arguments, condition, ours)                          \
  static inline result serve_##name parameters {                                            \
    return served<is_cancellation_point(#name)>([=]() mutable { return to_libc((ours)); }); \
  }                                                                                         \
  extern "C" result accel_call_##name parameters {                                          \
    if (condition) [[unlikely]]                                                             \
      if (!ServedCall::inside()) return serve_##name arguments;                             \
    return on_kernel<candidate_use(#name)>(                                                 \
        [=]() mutable { return real.name arguments; },                                      \
        [=]() mutable {                                                                     \
          if (condition) return serve_##name arguments;                                     \
          return real.name arguments; /* no bytes, say, of a descriptor of ours */          \
        },                                                                                  \
        UNWRAP arguments);                                                                  \
  }                                                                                         \
  Served<result> accel::preload::by_number::name parameters {                               \
    if (condition) return {true, serve_##name arguments};                                   \
    forget_candidate<candidate_use(#name)>(UNWRAP arguments);                               \
    return {};                                                                              \
  }
#define HAND(name)
#define ALIAS(alias, name) ACCEL_ALIAS(alias, name)
#define HAND_ALIAS(alias, name)
#define KERNEL(name, why)
#include "preload/symbols.def"
