// A call that succeeds leaves errno alone, whatever the library does on the way: each name of symbols.def is
// called by a case of its own. The stub's posix leaves an errno behind in every function.
#include <aio.h>
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <liburing.h>
#include <linux/aio_abi.h>
#include <linux/capability.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

extern char** environ;

namespace {

constexpr int kBefore = EDOM;

struct Name {
  const char* name;
  const char* case_of;  ///< an alias is called as the name that it stands for
};
const Name kNames[] = {
#define FD_CALL(result, name, parameters, arguments, ours) {#name, #name},
#define CALL(result, name, parameters, arguments, condition, ours) {#name, #name},
#define HAND(name) {#name, #name},
#define ALIAS(alias, name) {#alias, #name},
#define HAND_ALIAS(alias, name) {#alias, #name},
#define KERNEL(name, why)
#include "preload/symbols.def"
};

/// Calls the function under the name that is tested, with an errno before it, and keeps that of behind it.
class Call {
 public:
  explicit Call(void* function) : function_(function) {}
  template <class Signature, class... A>
  auto as(A... arguments) {
    auto f = reinterpret_cast<std::add_pointer_t<Signature>>(function_);
    errno = kBefore;
    if constexpr (std::is_void_v<decltype(f(arguments...))>) {
      f(arguments...);
      after = errno;
    } else {
      auto result = f(arguments...);
      after = errno;
      return result;
    }
  }
  int after = kBefore;

 private:
  void* function_;
};

/// Internet sockets over loopback: both belong to the stub.
struct Connected {
  Connected() {
    sockaddr_in address{};
    socklen_t length = sizeof address;
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    near = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(listener, 5), 0);
    EXPECT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), 0);
    name = address;
    EXPECT_EQ(connect(near, name_of(), sizeof name), 0);
    far = accept(listener, nullptr, nullptr);
    EXPECT_EQ(send(far, "0123456789", 10, 0), 10);
  }
  ~Connected() {
    for (int fd : {listener, near, far}) close(fd);
  }
  sockaddr* name_of() { return reinterpret_cast<sockaddr*>(&name); }
  sockaddr_in name{};
  int listener = -1, near = -1, far = -1;
};

struct Piece : msghdr {
  Piece() : msghdr{} {
    msg_iov = &vector;
    msg_iovlen = 1;
  }
  char data[4] = {};
  iovec vector{data, sizeof data};
};

struct Pipe {
  Pipe() { EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0); }
  ~Pipe() {
    close(ends[0]);
    close(ends[1]);
  }
  int ends[2] = {-1, -1};
};

bool ended_well(pid_t child) {
  int status = -1;
  return waitpid(child, &status, 0) == child && status == 0;
}

/// What a child makes of a call that it is in itself.
bool in_child(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body() ? 0 : 1);
  return ended_well(child);
}

using Case = std::function<bool(Call&)>;
using Cases = std::map<std::string, Case>;

void add_sockets(Cases& c) {
  c["socket"] = [](Call& f) { return close(f.as<int(int, int, int)>(AF_INET, SOCK_DGRAM, 0)) == 0; };
  c["bind"] = [](Call& f) {
    Connected s;
    s.name.sin_port = 0;
    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    const int r = f.as<int(int, const sockaddr*, socklen_t)>(fd, s.name_of(), socklen_t{sizeof s.name});
    return close(fd) == 0 && r == 0;
  };
  c["bindresvport"] = [](Call& f) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    (void)f.as<int(int, void*)>(fd, nullptr);  // privileged: it may fail, and is libc's
    f.after = kBefore;
    return close(fd) == 0;
  };
  c["connect"] = [](Call& f) {
    Connected s;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const int r = f.as<int(int, const sockaddr*, socklen_t)>(fd, s.name_of(), socklen_t{sizeof s.name});
    return close(fd) == 0 && r == 0;
  };
  c["listen"] = [](Call& f) {
    Connected s;
    return f.as<int(int, int)>(s.listener, 7) == 0;
  };
  for (const char* name : {"accept", "accept4"})
    c[name] = [](Call& f) {
      Connected s;
      const int fd = socket(AF_INET, SOCK_STREAM, 0);
      EXPECT_EQ(connect(fd, s.name_of(), sizeof s.name), 0);
      const int got = f.as<int(int, sockaddr*, socklen_t*, int)>(s.listener, nullptr, nullptr, 0);
      return close(fd) == 0 && close(got) == 0;
    };
  c["shutdown"] = [](Call& f) {
    Connected s;
    return f.as<int(int, int)>(s.near, SHUT_WR) == 0;
  };
  for (const char* name : {"getsockname", "getpeername"})
    c[name] = [](Call& f) {
      Connected s;
      socklen_t length = sizeof s.name;
      return f.as<int(int, sockaddr*, socklen_t*)>(s.near, s.name_of(), &length) == 0;
    };
  c["getsockopt"] = [](Call& f) {
    Connected s;
    int value = 0;
    socklen_t length = sizeof value;
    return f.as<int(int, int, int, void*, socklen_t*)>(s.near, SOL_SOCKET, SO_ERROR, &value, &length) == 0;
  };
  c["setsockopt"] = [](Call& f) {
    Connected s;
    const int on = 1;
    return f.as<int(int, int, int, const void*, socklen_t)>(s.near, SOL_SOCKET, SO_KEEPALIVE, &on,
                                                            socklen_t{sizeof on}) == 0;
  };
  c["sockatmark"] = [](Call& f) {
    Connected s;
    return f.as<int(int)>(s.near) >= 0;
  };
  c["ioctl"] = [](Call& f) {
    Connected s;
    int waiting = 0;
    return f.as<int(int, unsigned long, ...)>(s.near, static_cast<unsigned long>(FIONREAD), &waiting) == 0;
  };
  c["fcntl"] = [](Call& f) {
    Connected s;
    return f.as<int(int, int, ...)>(s.near, F_GETFL) >= 0;
  };
}

void add_bytes(Cases& c) {
  c["read"] = [](Call& f) {
    Connected s;
    return f.as<ssize_t(int, void*, size_t)>(s.near, Piece().data, size_t{4}) == 4;
  };
  c["write"] = [](Call& f) {
    Connected s;
    return f.as<ssize_t(int, const void*, size_t)>(s.near, "abcd", size_t{4}) == 4;
  };
  c["recv"] = [](Call& f) {
    Connected s;
    return f.as<ssize_t(int, void*, size_t, int)>(s.near, Piece().data, size_t{4}, 0) == 4;
  };
  c["send"] = [](Call& f) {
    Connected s;
    return f.as<ssize_t(int, const void*, size_t, int)>(s.near, "abcd", size_t{4}, 0) == 4;
  };
  for (const char* name : {"readv", "writev"})
    c[name] = [](Call& f) {
      Connected s;
      Piece p;
      return f.as<ssize_t(int, const iovec*, int)>(s.near, &p.vector, 1) == 4;
    };
  for (const char* name : {"preadv2", "pwritev2"})
    c[name] = [](Call& f) {
      Connected s;
      Piece p;
      return f.as<ssize_t(int, const iovec*, int, off_t, int)>(s.near, &p.vector, 1, off_t{-1}, 0) == 4;
    };
  c["recvfrom"] = [](Call& f) {
    Connected s;
    return f.as<ssize_t(int, void*, size_t, int, sockaddr*, socklen_t*)>(s.near, Piece().data, size_t{4}, 0,
                                                                         nullptr, nullptr) == 4;
  };
  c["sendto"] = [](Call& f) {
    Connected s;
    return f.as<ssize_t(int, const void*, size_t, int, const sockaddr*, socklen_t)>(
               s.near, "abcd", size_t{4}, 0, nullptr, socklen_t{0}) == 4;
  };
  for (const char* name : {"recvmsg", "sendmsg"})
    c[name] = [](Call& f) {
      Connected s;
      Piece p;
      return f.as<ssize_t(int, msghdr*, int)>(s.near, &p, 0) == 4;
    };
  c["recvmmsg"] = [](Call& f) {
    Connected s;
    Piece p;
    mmsghdr one{p, 0};
    return f.as<int(int, mmsghdr*, unsigned, int, timespec*)>(s.near, &one, 1u, 0, nullptr) == 1;
  };
  c["sendmmsg"] = [](Call& f) {
    Connected s;
    Piece p;
    mmsghdr one{p, 0};
    return f.as<int(int, mmsghdr*, unsigned, int)>(s.near, &one, 1u, 0) == 1;
  };
  c["sendfile"] = [](Call& f) {
    Connected s;
    const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    const ssize_t n = f.as<ssize_t(int, int, off_t*, size_t)>(s.near, file, nullptr, size_t{4});
    return close(file) == 0 && n == 4;
  };
  c["splice"] = [](Call& f) {
    Connected s;
    Pipe p;
    return f.as<ssize_t(int, off64_t*, int, off64_t*, size_t, unsigned)>(s.near, nullptr, p.ends[1], nullptr,
                                                                         size_t{4}, 0u) == 4;
  };
  c["__read_chk"] = [](Call& f) {
    Connected s;
    return f.as<ssize_t(int, void*, size_t, size_t)>(s.near, Piece().data, size_t{4}, size_t{4}) == 4;
  };
  c["__recv_chk"] = [](Call& f) {
    Connected s;
    return f.as<ssize_t(int, void*, size_t, size_t, int)>(s.near, Piece().data, size_t{4}, size_t{4}, 0) == 4;
  };
  c["__recvfrom_chk"] = [](Call& f) {
    Connected s;
    return f.as<ssize_t(int, void*, size_t, size_t, int, sockaddr*, socklen_t*)>(
               s.near, Piece().data, size_t{4}, size_t{4}, 0, nullptr, nullptr) == 4;
  };
}

int print(Call& f, int fd, const char* format, ...) {
  va_list list;
  va_start(list, format);
  const int n = f.as<int(int, const char*, va_list)>(fd, format, list);
  va_end(list);
  return n;
}

int print_checked(Call& f, int fd, const char* format, ...) {
  va_list list;
  va_start(list, format);
  const int n = f.as<int(int, int, const char*, va_list)>(fd, 1, format, list);
  va_end(list);
  return n;
}

void add_streams(Cases& c) {
  c["fdopen"] = [](Call& f) {
    Connected s;
    FILE* stream = f.as<FILE*(int, const char*)>(dup(s.near), "r");
    return stream != nullptr && fclose(stream) == 0;
  };
  c["dprintf"] = [](Call& f) {
    Connected s;
    return f.as<int(int, const char*, ...)>(s.near, "%d", 42) == 2;
  };
  c["__dprintf_chk"] = [](Call& f) {
    Connected s;
    return f.as<int(int, int, const char*, ...)>(s.near, 1, "%d", 42) == 2;
  };
  c["vdprintf"] = [](Call& f) {
    Connected s;
    return print(f, s.near, "%d", 42) == 2;
  };
  c["__vdprintf_chk"] = [](Call& f) {
    Connected s;
    return print_checked(f, s.near, "%d", 42) == 2;
  };
  for (const char* name : {"aio_read", "aio_write"})
    c[name] = [](Call& f) {
      Connected s;
      Piece p;
      aiocb request{};
      request.aio_fildes = s.near;
      request.aio_buf = p.data;
      request.aio_nbytes = 4;
      const int r = f.as<int(aiocb*)>(&request);
      const aiocb* list[] = {&request};
      while (aio_error(&request) == EINPROGRESS) aio_suspend(list, 1, nullptr);
      return r == 0;
    };
  c["lio_listio"] = [](Call& f) {
    Connected s;
    Piece p;
    aiocb request{};
    request.aio_fildes = s.near;
    request.aio_buf = p.data;
    request.aio_nbytes = 4;
    request.aio_lio_opcode = LIO_WRITE;
    aiocb* list[] = {&request};
    return f.as<int(int, aiocb* const*, int, sigevent*)>(LIO_WAIT, list, 1, nullptr) == 0;
  };
  c["io_submit"] = [](Call& f) {
    Connected s;
    Piece p;
    iocb request{};
    request.aio_fildes = static_cast<uint32_t>(s.near);
    request.aio_lio_opcode = IOCB_CMD_PWRITE;
    iocb* list[] = {&request};
    (void)f.as<int(aio_context_t, long, iocb**)>(aio_context_t{0}, 1L, list);  // libaio's: a negative number
    return true;
  };
}

void add_descriptors(Cases& c) {
  c["close"] = [](Call& f) {
    Connected s;
    return f.as<int(int)>(dup(s.near)) == 0;
  };
  c["dup"] = [](Call& f) {
    Connected s;
    return close(f.as<int(int)>(s.near)) == 0;
  };
  c["dup2"] = [](Call& f) {
    Connected s;
    return f.as<int(int, int)>(s.near, 700) == 700 && close(700) == 0;
  };
  c["dup3"] = [](Call& f) {
    Connected s;
    return f.as<int(int, int, int)>(s.near, 700, O_CLOEXEC) == 700 && close(700) == 0;
  };
  c["close_range"] = [](Call& f) {
    Connected s;
    EXPECT_EQ(dup2(s.near, 700), 700);
    return f.as<int(unsigned, unsigned, int)>(700u, 701u, 0) == 0;
  };
  c["closefrom"] = [](Call& f) {
    Connected s;
    EXPECT_EQ(dup2(s.near, 700), 700);
    f.as<void(int)>(700);
    return fcntl(700, F_GETFD) == -1;
  };
  c["open"] = [](Call& f) {
    return close(f.as<int(const char*, int, ...)>("/dev/null", O_RDONLY | O_CLOEXEC)) == 0;
  };
  c["openat"] = [](Call& f) {
    return close(f.as<int(int, const char*, int, ...)>(AT_FDCWD, "/dev/null", O_RDONLY | O_CLOEXEC)) == 0;
  };
  c["creat"] = [](Call& f) { return close(f.as<int(const char*, mode_t)>("/dev/null", mode_t{0600})) == 0; };
  c["pipe"] = [](Call& f) {
    int ends[2];
    return f.as<int(int*)>(ends) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0;
  };
  c["pipe2"] = [](Call& f) {
    int ends[2];
    return f.as<int(int*, int)>(ends, O_CLOEXEC) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0;
  };
  c["socketpair"] = [](Call& f) {
    int ends[2];
    return f.as<int(int, int, int, int*)>(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && close(ends[0]) == 0 &&
           close(ends[1]) == 0;
  };
  c["pidfd_getfd"] = [](Call& f) {
    Connected s;
    const int self = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
    const int got = f.as<int(int, int, unsigned)>(self, s.near, 0u);
    if (getenv("ACCEL_STUB_LOG") == nullptr) close(got);  // the stub has made none
    return close(self) == 0 && got >= 0;
  };
}

void add_readiness(Cases& c) {
  static const timespec kSecond{1, 0};
  for (const char* name : {"poll", "__poll_chk"})
    c[name] = [](Call& f) {
      Connected s;
      pollfd p{s.near, POLLIN, 0};
      return f.as<int(pollfd*, nfds_t, int, size_t)>(&p, nfds_t{1}, 1000, sizeof p) == 1;
    };
  for (const char* name : {"ppoll", "__ppoll_chk"})
    c[name] = [](Call& f) {
      Connected s;
      pollfd p{s.near, POLLIN, 0};
      return f.as<int(pollfd*, nfds_t, const timespec*, const sigset_t*, size_t)>(&p, nfds_t{1}, &kSecond,
                                                                                  nullptr, sizeof p) == 1;
    };
  c["select"] = [](Call& f) {
    Connected s;
    fd_set set;
    FD_ZERO(&set);
    FD_SET(s.near, &set);
    timeval second{1, 0};
    return f.as<int(int, fd_set*, fd_set*, fd_set*, timeval*)>(s.near + 1, &set, nullptr, nullptr, &second) ==
           1;
  };
  c["pselect"] = [](Call& f) {
    Connected s;
    fd_set set;
    FD_ZERO(&set);
    FD_SET(s.near, &set);
    return f.as<int(int, fd_set*, fd_set*, fd_set*, const timespec*, const sigset_t*)>(
               s.near + 1, &set, nullptr, nullptr, &kSecond, nullptr) == 1;
  };
  c["epoll_create"] = [](Call& f) { return close(f.as<int(int)>(1)) == 0; };
  c["epoll_create1"] = [](Call& f) { return close(f.as<int(int)>(0)) == 0; };
  const auto with_set = [](auto call) {
    return [call](Call& f) {
      Connected s;
      const int set = epoll_create1(EPOLL_CLOEXEC);
      epoll_event event{EPOLLIN, {.u64 = 5}};
      EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, s.near, &event), 0);
      const bool well = call(f, set, s.near, &event);
      return close(set) == 0 && well;
    };
  };
  c["epoll_ctl"] = with_set([](Call& f, int set, int fd, epoll_event* event) {
    return f.as<int(int, int, int, epoll_event*)>(set, EPOLL_CTL_MOD, fd, event) == 0;
  });
  c["epoll_wait"] = with_set([](Call& f, int set, int, epoll_event* event) {
    return f.as<int(int, epoll_event*, int, int)>(set, event, 1, 1000) == 1;
  });
  c["epoll_pwait"] = with_set([](Call& f, int set, int, epoll_event* event) {
    return f.as<int(int, epoll_event*, int, int, const sigset_t*)>(set, event, 1, 1000, nullptr) == 1;
  });
  c["epoll_pwait2"] = with_set([](Call& f, int set, int, epoll_event* event) {
    return f.as<int(int, epoll_event*, int, const timespec*, const sigset_t*)>(set, event, 1, &kSecond,
                                                                               nullptr) == 1;
  });
}

char* const kTrue[] = {const_cast<char*>("true"), nullptr};

void add_processes(Cases& c) {
  for (const char* name : {"fork", "_Fork"})
    c[name] = [](Call& f) {
      Connected s;
      const pid_t child = f.as<pid_t()>();
      if (child == 0) _exit(f.after == kBefore ? 0 : 1);
      return ended_well(child);
    };
  c["vfork"] = [](Call& f) {
    Connected s;
    errno = kBefore;
    const pid_t child = vfork();
    if (child == 0) _exit(0);
    f.after = errno;
    return ended_well(child);
  };
  c["clone"] = [](Call& f) {
    Connected s;
    std::vector<char> stack(256 * 1024);
    int (*body)(void*) = [](void*) { return errno == kBefore ? 0 : 1; };
    const int child = f.as<int(int (*)(void*), void*, int, void*, ...)>(body, stack.data() + stack.size(),
                                                                        int{SIGCHLD}, nullptr);
    return ended_well(child);
  };
  c["daemon"] = [](Call& f) {  // the grandchild's answer, since it is nobody's child
    Connected s;
    Pipe p;
    EXPECT_TRUE(in_child([&] {
      const char well = f.as<int(int, int)>(0, 0) == 0 && f.after == kBefore ? 'y' : 'n';
      return write(p.ends[1], &well, 1) == 1;
    }));
    char answer = 0;
    return read(p.ends[0], &answer, 1) == 1 && answer == 'y';
  };
  c["forkpty"] = [](Call& f) {
    Connected s;
    int terminal = -1;
    const pid_t child =
        f.as<pid_t(int*, char*, const termios*, const winsize*)>(&terminal, nullptr, nullptr, nullptr);
    if (child == 0) _exit(0);
    f.after = kBefore;  // openpty() of libc's asks whether files are terminals
    return ended_well(child) && close(terminal) == 0;
  };
  for (const char* name : {"posix_spawn", "posix_spawnp"})
    c[name] = [](Call& f) {
      Connected s;
      pid_t child = -1;
      const int r =
          f.as<int(pid_t*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*,
                   char* const*, char* const*)>(&child, "/bin/true", nullptr, nullptr, kTrue, environ);
      return r == 0 && ended_well(child);
    };
  for (const char* name : {"posix_spawn_file_actions_init", "posix_spawn_file_actions_destroy"})
    c[name] = [](Call& f) {
      posix_spawn_file_actions_t actions{};
      return f.as<int(posix_spawn_file_actions_t*)>(&actions) == 0;
    };
  c["posix_spawn_file_actions_adddup2"] = [](Call& f) {
    Connected s;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    const int r = f.as<int(posix_spawn_file_actions_t*, int, int)>(&actions, s.near, 9);
    return posix_spawn_file_actions_destroy(&actions) == 0 && r == 0;
  };
  c["system"] = [](Call& f) {
    Connected s;
    return f.as<int(const char*)>("exit 0") == 0;
  };
  c["popen"] = [](Call& f) {
    Connected s;
    FILE* stream = f.as<FILE*(const char*, const char*)>("exit 0", "r");
    return stream != nullptr && pclose(stream) == 0;
  };
  for (const char* name : {"setuid", "seteuid"})
    c[name] = [](Call& f) { return f.as<int(uid_t)>(geteuid()) == 0; };
  c["setreuid"] = [](Call& f) { return f.as<int(uid_t, uid_t)>(getuid(), geteuid()) == 0; };
  c["setresuid"] = [](Call& f) {
    return f.as<int(uid_t, uid_t, uid_t)>(getuid(), geteuid(), geteuid()) == 0;
  };
  c["capset"] = [](Call& f) {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct sets[2]{};
    EXPECT_EQ(syscall(SYS_capget, &header, sets), 0);
    return f.as<int(cap_user_header_t, const cap_user_data_t)>(&header, sets) == 0;
  };
  // In a child, which keeps what it gets for itself.
  c["chroot"] = [](Call& f) {
    return in_child([&] { return f.as<int(const char*)>("/") == 0 && f.after == kBefore; });
  };
  c["unshare"] = [](Call& f) {
    return in_child([&] { return f.as<int(int)>(int{CLONE_NEWNS}) == 0 && f.after == kBefore; });
  };
  c["setns"] = [](Call& f) {
    return in_child([&] {
      const int mounts = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
      return f.as<int(int, int)>(mounts, int{CLONE_NEWNS}) == 0 && f.after == kBefore;
    });
  };
  c["pivot_root"] = nullptr;  // wants a root of its own; goes as chroot()
  c["prctl"] = [](Call& f) { return f.as<int(int, ...)>(PR_GET_DUMPABLE, 0L, 0L, 0L, 0L) >= 0; };
  for (const char* name : {"_exit", "quick_exit", "execve", "execv", "execvp", "execvpe", "fexecve",
                           "execveat", "execl", "execlp", "execle"})
    c[name] = nullptr;  // success does not come back
}

void* cancelled(void*) {
  for (;;) pause();
}

void add_threads_and_signals(Cases& c) {
  c["pthread_cancel"] = [](Call& f) {
    Connected s;
    pthread_t thread;
    EXPECT_EQ(pthread_create(&thread, nullptr, cancelled, nullptr), 0);
    const int r = f.as<int(pthread_t)>(thread);
    return pthread_join(thread, nullptr) == 0 && r == 0;
  };
  c["pthread_setcanceltype"] = [](Call& f) {
    return f.as<int(int, int*)>(PTHREAD_CANCEL_DEFERRED, nullptr) == 0;
  };
  c["sigaction"] = [](Call& f) {
    struct sigaction action {};
    action.sa_handler = SIG_IGN;
    return f.as<int(int, const struct sigaction*, struct sigaction*)>(SIGUSR1, &action, nullptr) == 0;
  };
  for (const char* name : {"signal", "__sysv_signal", "sigset"})
    c[name] = [](Call& f) { return f.as<sighandler_t(int, sighandler_t)>(SIGUSR1, SIG_IGN) != SIG_ERR; };
  c["sigignore"] = [](Call& f) { return f.as<int(int)>(SIGUSR1) == 0; };
  c["siginterrupt"] = [](Call& f) { return f.as<int(int, int)>(SIGUSR1, 0) == 0; };
  c["syscall"] = [](Call& f) {
    Connected s;
    if (f.as<long(long, ...)>(long{SYS_sendto}, long{s.near}, "abcd", 4L, 0L, 0L, 0L) != 4) return false;
    if (f.after != kBefore) return false;
    Piece p;
    if (f.as<long(long, ...)>(long{SYS_recvmsg}, long{s.near}, &p, 0L) != 4 || f.after != kBefore)
      return false;
    return f.as<long(long, ...)>(long{SYS_close}, long{dup(s.near)}) == 0;
  };
  c["dlsym"] = [](Call& f) {
    return f.as<void*(void*, const char*)>(dlopen(nullptr, RTLD_NOW), "send") != nullptr;
  };
  c["dlopen"] = [](Call& f) {
    return f.as<void*(const char*, int)>("libc.so.6", RTLD_NOW | RTLD_DEEPBIND) != nullptr;
  };
}

/// A ring with a request; a sandbox may have none.
template <class F>
Case with_ring(F call) {
  return [call](Call& f) {
    io_uring ring{};
    if (io_uring_queue_init(4, &ring, 0) != 0) return true;
    io_uring_prep_nop(io_uring_get_sqe(&ring));
    call(f, &ring);  // liburing's answer is a negative number where an older one lacks the function
    io_uring_queue_exit(&ring);
    return true;
  };
}

void add_rings(Cases& c) {
  static __kernel_timespec second{1, 0};
  c["io_uring_setup"] = [](Call& f) {
    io_uring_params parameters{};
    const int fd = f.as<int(unsigned, io_uring_params*)>(4u, &parameters);
    return fd < 0 || close(fd) == 0;
  };
  for (const char* name : {"io_uring_submit", "io_uring_submit_and_get_events"})
    c[name] = with_ring([](Call& f, io_uring* ring) { f.as<int(io_uring*)>(ring); });
  c["io_uring_submit_and_wait"] =
      with_ring([](Call& f, io_uring* ring) { f.as<int(io_uring*, unsigned)>(ring, 1u); });
  for (const char* name : {"io_uring_submit_and_wait_timeout", "io_uring_wait_cqes"})
    c[name] = with_ring([](Call& f, io_uring* ring) {
      io_uring_cqe* cqe = nullptr;
      f.as<int(io_uring*, io_uring_cqe**, unsigned, __kernel_timespec*, sigset_t*)>(ring, &cqe, 1u, &second,
                                                                                    nullptr);
    });
  c["io_uring_submit_and_wait_min_timeout"] = with_ring([](Call& f, io_uring* ring) {
    io_uring_cqe* cqe = nullptr;
    f.as<int(io_uring*, io_uring_cqe**, unsigned, __kernel_timespec*, unsigned, sigset_t*)>(
        ring, &cqe, 1u, &second, 0u, nullptr);
  });
  c["io_uring_submit_and_wait_reg"] = with_ring([](Call& f, io_uring* ring) {
    io_uring_cqe* cqe = nullptr;
    f.as<int(io_uring*, io_uring_cqe**, unsigned, int)>(ring, &cqe, 0u, 0);
  });
  c["io_uring_wait_cqe_timeout"] = with_ring([](Call& f, io_uring* ring) {
    io_uring_submit(ring);
    io_uring_cqe* cqe = nullptr;
    f.as<int(io_uring*, io_uring_cqe**, __kernel_timespec*)>(ring, &cqe, &second);
  });
  const auto with_files = [](auto call) {
    return with_ring([call](Call& f, io_uring* ring) {
      Connected s;
      __u64 tag = 0;
      call(f, ring, &s.near, &tag);
    });
  };
  c["io_uring_register_files"] = with_files([](Call& f, io_uring* ring, const int* files, __u64*) {
    f.as<int(io_uring*, const int*, unsigned)>(ring, files, 1u);
  });
  c["io_uring_register_files_tags"] = with_files([](Call& f, io_uring* ring, const int* files, __u64* tags) {
    f.as<int(io_uring*, const int*, const __u64*, unsigned)>(ring, files, tags, 1u);
  });
  c["io_uring_register_files_update"] = with_files([](Call& f, io_uring* ring, const int* files, __u64*) {
    io_uring_register_files(ring, files, 1);
    f.as<int(io_uring*, unsigned, const int*, unsigned)>(ring, 0u, files, 1u);
  });
  c["io_uring_register_files_update_tag"] =
      with_files([](Call& f, io_uring* ring, const int* files, __u64* tags) {
        io_uring_register_files_tags(ring, files, tags, 1);
        f.as<int(io_uring*, unsigned, const int*, const __u64*, unsigned)>(ring, 0u, files, tags, 1u);
      });
}

class Errno : public testing::TestWithParam<Name> {};

TEST_P(Errno, IsAsBeforeWhenTheCallSucceeds) {
  static const Cases cases = [] {
    Cases c;
    add_sockets(c);
    add_bytes(c);
    add_streams(c);
    add_descriptors(c);
    add_readiness(c);
    add_processes(c);
    add_threads_and_signals(c);
    add_rings(c);
    return c;
  }();
  const auto found = cases.find(GetParam().case_of);
  ASSERT_NE(found, cases.end()) << "a row of symbols.def without a case here";
  if (!found->second) return;
  void* const function = dlsym(RTLD_DEFAULT, GetParam().name);
  if (function == nullptr) GTEST_SKIP() << "not in this libc, nor preloaded";
  Call call(function);
  EXPECT_TRUE(found->second(call)) << strerror(call.after);
  EXPECT_EQ(call.after, kBefore) << strerror(call.after);
}

INSTANTIATE_TEST_SUITE_P(Table, Errno, testing::ValuesIn(kNames),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
