// A library that stands in front of libc, as others do that a program may have beside libaccel. Built twice:
// BY_NUMBER: its functions make the system call by syscall(), as shims do that want no dynamic linker;
// else they ask about the descriptor first, by the plain names, and go on by dlsym(RTLD_NEXT), as tsocks
// does. Each counts its calls, and ends the program when it comes to be called by itself.
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

namespace {

struct Function {
  const char* name;
  std::atomic<unsigned> calls{0};
};
Function functions[] = {{"socket"},     {"bind"},       {"listen"},      {"connect"}, {"accept4"},
                        {"getsockopt"}, {"setsockopt"}, {"getsockname"}, {"close"},   {"dup"},
                        {"dup3"},       {"read"},       {"write"},       {"sendto"},  {"recvfrom"},
                        {"epoll_ctl"},  {"epoll_wait"}, {"execve"},      {"fcntl"}};

Function& function(const char* name) {
  for (Function& f : functions)
    if (strcmp(f.name, name) == 0) return f;
  abort();
}

/// One call. `inside`: of this thread and function.
class Entry {
 public:
  Entry(const char* name, bool* inside) : inside_(inside) {
    if (*inside_) {
      constexpr char kText[] = "an interposer was called by itself\n";
      syscall(SYS_write, STDERR_FILENO, kText, sizeof kText - 1);
      abort();
    }
    *inside_ = true;
    ++function(name).calls;
  }
  ~Entry() { *inside_ = false; }

 private:
  bool* inside_;
};

template <class F>
F next(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

[[maybe_unused]] void ask_about(int fd) {
  int type = 0;
  socklen_t length = sizeof type;
  const int saved = errno;
  getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length);
  pollfd look{fd, POLLIN, 0};
  poll(&look, 1, 0);
  errno = saved;
}

}  // namespace

extern "C" unsigned interposer_calls(const char* name) { return function(name).calls.load(); }

#if defined(BY_NUMBER)
#define GO_ON(result, name, ...) return static_cast<result>(syscall(SYS_##name, __VA_ARGS__))
#define ASK(fd)
#else
#define GO_ON(result, name, ...) return next<decltype(&::name)>(#name)(__VA_ARGS__)
#define ASK(fd) ask_about(fd)
#endif
#define INTERPOSE(result, name, parameters, fd, ...) \
  extern "C" result name parameters {                \
    static thread_local bool inside = false;         \
    const Entry entry(#name, &inside);               \
    ASK(fd);                                         \
    GO_ON(result, name, __VA_ARGS__);                \
  }

INTERPOSE(int, socket, (int domain, int type, int protocol) noexcept, -1, domain, type, protocol)
INTERPOSE(int, bind, (int fd, const sockaddr* a, socklen_t n) noexcept, fd, fd, a, n)
INTERPOSE(int, listen, (int fd, int backlog) noexcept, fd, fd, backlog)
INTERPOSE(int, connect, (int fd, const sockaddr* a, socklen_t n), fd, fd, a, n)
INTERPOSE(int, accept4, (int fd, sockaddr* a, socklen_t* n, int flags), fd, fd, a, n, flags)
INTERPOSE(int, setsockopt, (int fd, int level, int name, const void* v, socklen_t n) noexcept, fd, fd, level,
          name, v, n)
INTERPOSE(int, getsockname, (int fd, sockaddr* a, socklen_t* n) noexcept, fd, fd, a, n)
INTERPOSE(int, close, (int fd), fd, fd)
INTERPOSE(int, dup, (int fd) noexcept, fd, fd)
INTERPOSE(int, dup3, (int from, int to, int flags) noexcept, from, from, to, flags)
INTERPOSE(ssize_t, read, (int fd, void* data, size_t size), fd, fd, data, size)
INTERPOSE(ssize_t, write, (int fd, const void* data, size_t size), fd, fd, data, size)
INTERPOSE(ssize_t, sendto, (int fd, const void* d, size_t n, int flags, const sockaddr* a, socklen_t l), fd,
          fd, d, n, flags, a, l)
INTERPOSE(ssize_t, recvfrom, (int fd, void* d, size_t n, int flags, sockaddr* a, socklen_t* l), fd, fd, d, n,
          flags, a, l)
INTERPOSE(int, epoll_ctl, (int set, int operation, int fd, epoll_event* e) noexcept, fd, set, operation, fd,
          e)
INTERPOSE(int, epoll_wait, (int set, epoll_event* e, int n, int timeout), -1, set, e, n, timeout)
INTERPOSE(int, execve, (const char* path, char* const* a, char* const* e) noexcept, -1, path, a, e)
#if defined(BY_NUMBER)  // the other's question
INTERPOSE(int, getsockopt, (int fd, int level, int name, void* v, socklen_t* n) noexcept, fd, fd, level, name,
          v, n)
#endif
