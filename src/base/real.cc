#include "base/real.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <unistd.h>

namespace accel {
namespace {

/// Answers for a function that this libc does not have (epoll_pwait2 came with 2.35, close_range with 2.34).
template <class R, class... P>
R missing(P...) {
  errno = ENOSYS;
  if constexpr (std::is_pointer_v<R>)
    return nullptr;
  else if constexpr (!std::is_void_v<R>)
    return static_cast<R>(-1);
}

template <class R, class... P>
void resolve(RealCall<R(P...)>& call, const char* name) {
  void* found = find_real(name);
  call.set(found != nullptr ? reinterpret_cast<R (*)(P...)>(found) : &missing<R, P...>);
}

template <class R, class... P>
void resolve(RealCall<R(P..., ...)>& call, const char* name) {
  call.set(reinterpret_cast<R (*)(P..., ...)>(find_real(name)));  // all of them as old as glibc itself
}

}  // namespace

constinit RealCalls real;

void* find_real(const char* name) {
  const int saved = errno;
  void* found = dlsym(RTLD_NEXT, name);
  errno = saved;
  return found;
}

void resolve_real() {
#define REAL(result, name, parameters, arguments) resolve(real.name, #name);
#include "base/real.def"
#undef REAL
  resolve(real.open, "open");
  resolve(real.openat, "openat");
  resolve(real.fcntl, "fcntl");
  resolve(real.ioctl, "ioctl");
  resolve(real.syscall, "syscall");
}

void find_libcs_clock() {
  static std::atomic<bool> found{false};
  if (found.exchange(true, std::memory_order_relaxed)) return;
  using Clock = decltype(real.clock_gettime)::Pointer;
  void* libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  if (void* clock = libc != nullptr ? dlsym(libc, "clock_gettime") : nullptr)
    real.clock_gettime.set(reinterpret_cast<Clock>(clock));
}

namespace real_stub {

int clock_gettime(clockid_t clock, timespec* now) { return ::clock_gettime(clock, now); }

#define REAL(result, name, parameters, arguments) \
  result name parameters {                        \
    resolve(real.name, #name);                    \
    return real.name arguments;                   \
  }
#include "base/real.def"
#undef REAL

// The optional argument is an int or a pointer; as a long either arrives whole.
int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = va_arg(list, mode_t);
  va_end(list);
  resolve(real.open, "open");
  return real.open(path, flags, mode);
}

int openat(int directory, const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = va_arg(list, mode_t);
  va_end(list);
  resolve(real.openat, "openat");
  return real.openat(directory, path, flags, mode);
}

int fcntl(int fd, int command, ...) {
  va_list list;
  va_start(list, command);
  void* argument = va_arg(list, void*);
  va_end(list);
  resolve(real.fcntl, "fcntl");
  return real.fcntl(fd, command, argument);
}

int ioctl(int fd, unsigned long request, ...) {
  va_list list;
  va_start(list, request);
  void* argument = va_arg(list, void*);
  va_end(list);
  resolve(real.ioctl, "ioctl");
  return real.ioctl(fd, request, argument);
}

/// As libc's: it passes six on, whatever the caller has given.
#if defined(__clang__)
__attribute__((no_sanitize("address")))
#endif
long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& value : a) value = va_arg(list, long);
  va_end(list);
  resolve(real.syscall, "syscall");
  return real.syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

}  // namespace real_stub
}  // namespace accel
