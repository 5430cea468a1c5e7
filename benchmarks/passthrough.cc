// What the shim adds to a call on a kernel descriptor: each call is timed by its plain name, which is the
// wrapper when the library is preloaded, and by libc's own address, turn about in the same process. Calls
// that fail at once in libc (a bad descriptor) leave the least of the kernel's own time in the difference.
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

namespace {

constexpr int kRounds = 300;
int calls = 500;  // short, so that some rounds are not interrupted

double now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

template <class F>
double once(F call) {
  const double start = now_ns();
  for (int i = 0; i < calls; ++i) call();
  return (now_ns() - start) / calls;
}

/// libc's own function, past a preloaded one.
template <class F>
F* of_libc(F*, const char* name) {
  static void* libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<F*>(dlsym(libc, name));
}

bool first = true;

template <class Plain, class Libc>
void measure(const char* name, Plain plain, Libc libc) {
  double with = 1e18, without = 1e18;  // the least of many rounds: what else the machine does only adds
  for (int i = 0; i < kRounds; ++i) {
    with = std::min(with, once(plain));
    without = std::min(without, once(libc));
  }
  printf("%s\n  {\"call\": \"%s\", \"libc_ns\": %.1f, \"added_ns\": %.1f}", first ? "" : ",", name, without,
         with - without);
  first = false;
}

#define MEASURE(name, ...)                                                            \
  do {                                                                                \
    auto libc = of_libc(&name, #name);                                                \
    measure(                                                                          \
        #name, [&] { sink = name(__VA_ARGS__); }, [&] { sink = libc(__VA_ARGS__); }); \
  } while (0)

}  // namespace

int main(int count, char** arguments) {
  if (count > 1) calls = atoi(arguments[1]);
  volatile long sink = 0;
  char data[16] = {};
  iovec v{data, sizeof data};
  msghdr m{};
  m.msg_iov = &v;
  m.msg_iovlen = 1;
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, pair) != 0) return 1;
  const int fd = pair[0];
  const int set = epoll_create1(0);
  epoll_event event{};
  pollfd p[8];
  for (pollfd& one : p) one = {fd, POLLOUT, 0};
  fd_set readable;
  timeval nothing{};

  printf("{\"benchmark\": \"passthrough\", \"preloaded\": %s, \"rows\": [",
         getenv("LD_PRELOAD") != nullptr ? "true" : "false");
  MEASURE(read, fd, data, 16);
  MEASURE(write, -1, data, 16);
  MEASURE(recv, fd, data, 16, MSG_DONTWAIT);
  MEASURE(send, -1, data, 16, 0);
  MEASURE(recvmsg, fd, &m, MSG_DONTWAIT);
  MEASURE(sendmsg, -1, &m, 0);
  MEASURE(readv, fd, &v, 1);
  MEASURE(close, -1);
  MEASURE(fcntl, fd, F_GETFL);
  MEASURE(poll, p, 8, 0);
  FD_ZERO(&readable);
  MEASURE(select, 0, &readable, nullptr, nullptr, &nothing);
  MEASURE(epoll_wait, set, &event, 1, 0);
  MEASURE(epoll_ctl, -1, EPOLL_CTL_DEL, fd, &event);
  MEASURE(syscall, SYS_getppid);
  printf("]}\n");
  return sink == 12345;
}
