// Every wrapper: on a descriptor of ours the call reaches posix, under whichever name it was made; on a
// kernel descriptor it does not.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

extern "C" {  // which this header lacks in glibc 2.36
#include <sys/pidfd.h>
}

#include "stub_log.h"

namespace {

/// libc's function by name, as the dynamic linker gives it to a program.
template <class F>
F named(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));
}

TEST(Lookup, InLibcFindsTheWrapper) {
  void* libc = dlopen("libc.so.6", RTLD_LAZY);
  ASSERT_NE(libc, nullptr);
  void* const program = dlopen(nullptr, RTLD_LAZY);
  for (const char* name :
       {"socket", "recv", "sendmsg", "__poll", "fcntl64", "vfork", "posix_spawn", "dlsym"}) {
    EXPECT_EQ(dlsym(libc, name), dlsym(RTLD_DEFAULT, name)) << name;
    EXPECT_EQ(dlsym(program, name), dlsym(RTLD_DEFAULT, name)) << name;
    EXPECT_EQ(dlerror(), nullptr) << name;
  }
  EXPECT_EQ(dlsym(libc, "getpid"), dlsym(RTLD_DEFAULT, "getpid"));
  EXPECT_EQ(dlsym(libc, "no_such_function"), nullptr);
  EXPECT_NE(dlerror(), nullptr);
}

// Relative to the caller: the program's next is the first library, the first's is behind it.
TEST(Lookup, NextIsTheCallers) {
  EXPECT_EQ(dlsym(RTLD_NEXT, "send"), dlsym(RTLD_DEFAULT, "send"));
  Dl_info where{};
  ASSERT_NE(dladdr(dlsym(RTLD_NEXT, "send"), &where), 0);
  EXPECT_NE(strstr(where.dli_fname, "libaccel"), nullptr);
}

/// A connected pair over loopback: `ours` belongs to the stub, `peer` is a duplicate that it does not know
/// of.
class Routes : public testing::Test {
 protected:
  void SetUp() override {
    stub_log();  // what an earlier run left
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    ours = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    ASSERT_EQ(0, bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address));
    ASSERT_EQ(0, listen(listener, 5));
    ASSERT_EQ(0, getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length));
    ASSERT_EQ(0, connect(ours, reinterpret_cast<sockaddr*>(&address), length));
    const int accepted = accept(listener, nullptr, nullptr);
    // The kernel's own call, so that the stub does not take the copy.
    peer = static_cast<int>(named<long (*)(long, long, long, long)>("ioctl") != nullptr ? raw_dup(accepted)
                                                                                        : -1);
    ASSERT_GE(peer, 0);
    close(accepted);
    close(listener);
    EXPECT_EQ(
        (Names{"socket", "socket", "bind", "listen", "getsockname", "connect", "accept4", "close", "close"}),
        stub_log());
  }
  void TearDown() override {
    close(peer);
    stub_log();
    close(ours);
    EXPECT_EQ(Names{"close"}, stub_log());
  }

  static int raw_dup(int fd) {
    long result = 0;
#if defined(__x86_64__)
    asm volatile("syscall"
                 : "=a"(result)
                 : "a"(SYS_dup), "D"(static_cast<long>(fd))
                 : "rcx", "r11", "memory");
#endif
    return static_cast<int>(result);
  }
  void feed(const char* text) {
    ASSERT_EQ(static_cast<ssize_t>(strlen(text)), write(peer, text, strlen(text)));
  }

  int ours = -1, peer = -1;
  char data[64] = {};
};

#define EXPECT_ROUTE(name, expected, call)        \
  do {                                            \
    stub_log();                                   \
    EXPECT_EQ(expected, call) << strerror(errno); \
    EXPECT_EQ(Names{name}, stub_log()) << #call;  \
  } while (0)

TEST_F(Routes, Receiving) {
  iovec v{data, 2};
  msghdr m{};
  m.msg_iov = &v;
  m.msg_iovlen = 1;
  mmsghdr mm{m, 0};
  feed("0123456789abcdefghijklmnopqrstuvwxyz");
  EXPECT_ROUTE("recv", 2, recv(ours, data, 2, 0));
  EXPECT_ROUTE("recv", 2, read(ours, data, 2));
  EXPECT_ROUTE("recvfrom", 2, recvfrom(ours, data, 2, 0, nullptr, nullptr));
  EXPECT_ROUTE("recvmsg", 2, recvmsg(ours, &m, 0));
  EXPECT_ROUTE("recvmmsg", 1, recvmmsg(ours, &mm, 1, 0, nullptr));
  EXPECT_ROUTE("readv", 2, readv(ours, &v, 1));
  EXPECT_ROUTE("readv", 2, preadv2(ours, &v, 1, -1, 0));
  EXPECT_ROUTE("readv", 2, preadv2(ours, &v, 1, -1, RWF_NOWAIT));
  EXPECT_ROUTE("recv", 2, named<ssize_t (*)(int, void*, size_t)>("__read")(ours, data, 2));
  EXPECT_ROUTE("recv", 2, (named<ssize_t (*)(int, void*, size_t, size_t)>("__read_chk")(ours, data, 2, 64)));
  EXPECT_ROUTE("recv", 2,
               (named<ssize_t (*)(int, void*, size_t, size_t, int)>("__recv_chk")(ours, data, 2, 64, 0)));
  using RecvfromChk = ssize_t (*)(int, void*, size_t, size_t, int, sockaddr*, socklen_t*);
  EXPECT_ROUTE("recvfrom", 2, named<RecvfromChk>("__recvfrom_chk")(ours, data, 2, 64, 0, nullptr, nullptr));
  EXPECT_STREQ("mn", data);
  stub_log();
  EXPECT_EQ(0, read(ours, data, 0));  // even with nothing to read: the kernel's answer
  EXPECT_EQ(-1, pread(ours, data, 2, 0));
  EXPECT_EQ(ESPIPE, errno);
  EXPECT_EQ(Names{}, stub_log());
}

TEST_F(Routes, Sending) {
  iovec v{data, 2};
  msghdr m{};
  m.msg_iov = &v;
  m.msg_iovlen = 1;
  mmsghdr mm{m, 0};
  EXPECT_ROUTE("send", 2, send(ours, data, 2, 0));
  EXPECT_ROUTE("send", 2, write(ours, data, 2));
  EXPECT_ROUTE("send", 2, named<ssize_t (*)(int, const void*, size_t)>("__write")(ours, data, 2));
  EXPECT_ROUTE("send", 2, named<ssize_t (*)(int, const void*, size_t, int)>("__send")(ours, data, 2, 0));
  EXPECT_ROUTE("sendto", 2, sendto(ours, data, 2, 0, nullptr, 0));
  EXPECT_ROUTE("sendmsg", 2, sendmsg(ours, &m, 0));
  EXPECT_ROUTE("sendmmsg", 1, sendmmsg(ours, &mm, 1, 0));
  EXPECT_ROUTE("writev", 2, writev(ours, &v, 1));
  EXPECT_ROUTE("writev", 2, pwritev2(ours, &v, 1, -1, 0));
  EXPECT_ROUTE("writev", 2, pwritev2(ours, &v, 1, -1, RWF_NOWAIT));
  EXPECT_ROUTE("send", 5, dprintf(ours, "%05d", 7));
  const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  EXPECT_ROUTE("sendfile", 2, sendfile(ours, file, nullptr, 2));
  EXPECT_ROUTE("sendfile", 2, sendfile64(ours, file, nullptr, 2));
  close(file);
  int ends[2];
  ASSERT_EQ(0, pipe(ends));
  ASSERT_EQ(2, write(ends[1], "ab", 2));
  EXPECT_ROUTE("splice", 2, splice(ends[0], nullptr, ours, nullptr, 2, 0));
  close(ends[0]);
  close(ends[1]);
}

TEST_F(Routes, Control) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  int value = 0;
  socklen_t size = sizeof value;
  EXPECT_ROUTE("getsockname", 0, getsockname(ours, reinterpret_cast<sockaddr*>(&address), &length));
  EXPECT_ROUTE("getpeername", 0, getpeername(ours, reinterpret_cast<sockaddr*>(&address), &length));
  EXPECT_ROUTE("getsockopt", 0, getsockopt(ours, SOL_SOCKET, SO_ERROR, &value, &size));
  EXPECT_ROUTE("setsockopt", 0, setsockopt(ours, SOL_SOCKET, SO_KEEPALIVE, &value, size));
  EXPECT_ROUTE("ioctl", 0, ioctl(ours, FIONREAD, &value));
  EXPECT_ROUTE("ioctl", 0, sockatmark(ours));
  EXPECT_ROUTE("fcntl", O_RDWR, fcntl(ours, F_GETFL));
  EXPECT_ROUTE("fcntl", O_RDWR, (named<int (*)(int, int, ...)>("fcntl64")(ours, F_GETFL)));
  EXPECT_ROUTE("fcntl", 0, fcntl(ours, F_SETFL, O_NONBLOCK));
  EXPECT_ROUTE("shutdown", 0, shutdown(ours, SHUT_WR));
}

TEST_F(Routes, Descriptors) {
  stub_log();
  const int second = dup(ours);
  EXPECT_EQ(Names{"dup"}, stub_log());
  EXPECT_ROUTE("dup2", 700, dup2(ours, 700));
  EXPECT_ROUTE("dup3", 701, dup3(ours, 701, O_CLOEXEC));
  EXPECT_ROUTE("dup2", 701, dup2(peer, 701));  // over one of ours
  EXPECT_ROUTE("close", 0, close(second));
  EXPECT_ROUTE("close_range", 0, close_range(700, 701, 0));
  const int third = dup(ours);
  ASSERT_GE(third, 0);
  stub_log();
  // Closed past us, then given out again: open() notices.
#if defined(__x86_64__)
  long result = 0;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(SYS_close), "D"(static_cast<long>(third))
               : "rcx", "r11", "memory");
  ASSERT_EQ(0, result);
  EXPECT_ROUTE("reused", third, open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(0, close(third));
#endif
  stub_log();
  // closefrom: from a number above everything that the test itself uses.
  ASSERT_EQ(800, dup2(ours, 800));
  stub_log();
  closefrom(800);
  EXPECT_EQ(Names{"close_range"}, stub_log());
  EXPECT_EQ(-1, fcntl(800, F_GETFD));
}

TEST_F(Routes, Streams) {
  const int copy = dup(ours);
  stub_log();
  FILE* f = fdopen(copy, "r");
  EXPECT_EQ(Names{"before_stdio"}, stub_log());
  ASSERT_NE(nullptr, f);
  feed("line\n");
  EXPECT_NE(nullptr, fgets(data, sizeof data, f));
  EXPECT_STREQ("line\n", data);
  stub_log();
  fclose(f);
  EXPECT_EQ(Names{}, stub_log());
  const int input = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 900);
  EXPECT_EQ(STDIN_FILENO, dup2(ours, STDIN_FILENO));
  EXPECT_EQ((Names{"dup2", "before_stdio"}), stub_log());
  if (input >= 0)
    dup2(input, STDIN_FILENO), close(input);
  else
    close(STDIN_FILENO);
}

TEST_F(Routes, Readiness) {
  feed("x");
  pollfd p{ours, POLLIN, 0};
  pollfd mixed[2] = {{peer, POLLIN, 0}, {ours, POLLIN, 0}};
  timespec second{1, 0};
  EXPECT_ROUTE("ppoll", 1, poll(&p, 1, -1));
  EXPECT_ROUTE("ppoll", 1, poll(mixed, 2, 1000));
  EXPECT_ROUTE("ppoll", 1, ppoll(&p, 1, &second, nullptr));
  EXPECT_ROUTE("ppoll", 1,
               (named<int (*)(pollfd*, nfds_t, int, size_t)>("__poll_chk")(&p, 1, 1000, sizeof p)));
  using PpollChk = int (*)(pollfd*, nfds_t, const timespec*, const sigset_t*, size_t);
  EXPECT_ROUTE("ppoll", 1, named<PpollChk>("__ppoll_chk")(&p, 1, &second, nullptr, sizeof p));
  fd_set set;
  FD_ZERO(&set);
  FD_SET(ours, &set);
  timeval left{5, 1500000};  // 6.5 s
  EXPECT_ROUTE("pselect", 1, select(ours + 1, &set, nullptr, nullptr, &left));
  EXPECT_EQ(5, left.tv_sec);  // the stub has taken a second off
  EXPECT_EQ(500000, left.tv_usec);
  EXPECT_ROUTE("pselect", 1, pselect(ours + 1, &set, nullptr, nullptr, &second, nullptr));
  left = {-1, 0};
  EXPECT_EQ(-1, select(ours + 1, &set, nullptr, nullptr, &left));
  EXPECT_EQ(EINVAL, errno);

  stub_log();
  const int e = epoll_create1(EPOLL_CLOEXEC);
  EXPECT_EQ(Names{"epoll_create1"}, stub_log());
  epoll_event event{EPOLLIN, {.u64 = 5}}, got{};
  EXPECT_ROUTE("epoll_ctl", 0, epoll_ctl(e, EPOLL_CTL_ADD, ours, &event));
  EXPECT_ROUTE("epoll_wait", 1, epoll_wait(e, &got, 1, -1));
  EXPECT_ROUTE("epoll_wait", 1, epoll_pwait(e, &got, 1, 1000, nullptr));
  EXPECT_ROUTE("epoll_wait", 1, epoll_pwait2(e, &got, 1, &second, nullptr));
  EXPECT_EQ(5u, got.data.u64);
  close(e);
  EXPECT_EQ(-1, epoll_create(0));
  EXPECT_EQ(EINVAL, errno);
}

TEST_F(Routes, SystemCallsByNumber) {
  feed("0123456789");
  iovec v{data, 2};
  msghdr m{};
  m.msg_iov = &v;
  m.msg_iovlen = 1;
  EXPECT_ROUTE("recv", 2, syscall(SYS_read, ours, data, 2));
  EXPECT_ROUTE("recvfrom", 2, syscall(SYS_recvfrom, ours, data, 2, 0, nullptr, nullptr));
  EXPECT_ROUTE("recvmsg", 2, syscall(SYS_recvmsg, ours, &m, 0));
  EXPECT_ROUTE("send", 2, syscall(SYS_write, ours, data, 2));
  EXPECT_ROUTE("sendmsg", 2, syscall(SYS_sendmsg, ours, &m, 0));
  EXPECT_ROUTE("fcntl", O_RDWR, syscall(SYS_fcntl, ours, F_GETFL));
  pollfd p{ours, POLLIN, 0};
  timespec second{1, 0};
  EXPECT_ROUTE("ppoll", 1, syscall(SYS_ppoll, &p, 1, &second, nullptr, 8));
  stub_log();
  const long second_socket = syscall(SYS_socket, AF_INET6, SOCK_DGRAM, 0);
  EXPECT_EQ(Names{"socket"}, stub_log());
  EXPECT_ROUTE("close", 0, syscall(SYS_close, second_socket));
  EXPECT_ROUTE("pidfd_getfd", 7, syscall(SYS_pidfd_getfd, -1, 0, 0));
  EXPECT_ROUTE("pidfd_getfd", 7, pidfd_getfd(-1, 0, 0));
  syscall(SYS_io_uring_setup, 0, nullptr);
  EXPECT_EQ(Names{}, stub_log());  // no ring was made
  EXPECT_EQ(getpid(), syscall(SYS_getpid));
  EXPECT_EQ(-1, syscall(-1L));
  EXPECT_EQ(ENOSYS, errno);
}

TEST_F(Routes, PassingADescriptor) {
  int pair[2];
  ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec v{data, 1};
  msghdr m{};
  m.msg_iov = &v;
  m.msg_iovlen = 1;
  EXPECT_EQ(1, sendmsg(pair[0], &m, 0));
  EXPECT_EQ(Names{}, stub_log());
  m.msg_control = control;
  m.msg_controllen = sizeof control;
  cmsghdr* c = CMSG_FIRSTHDR(&m);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(c), &ours, sizeof(int));
  EXPECT_ROUTE("before_passing", 1, sendmsg(pair[0], &m, 0));
  mmsghdr mm{m, 0};
  EXPECT_ROUTE("before_passing", 1, sendmmsg(pair[0], &mm, 1, 0));
  msghdr in = m;
  EXPECT_EQ(1, recvmsg(pair[1], &in, 0));  // the one without
  EXPECT_EQ(Names{}, stub_log());
  in = m;
  EXPECT_ROUTE("adopt_received", 1, recvmsg(pair[1], &in, 0));
  EXPECT_ROUTE("adopt_received", 1, recvmmsg(pair[1], &mm, 1, 0, nullptr));
  close(pair[0]);
  close(pair[1]);
}

TEST_F(Routes, KernelDescriptorsAreLeftAlone) {
  stub_log();
  int ends[2];
  ASSERT_EQ(0, pipe(ends));
  EXPECT_EQ(1, write(ends[1], "x", 1));
  pollfd p{ends[0], POLLIN, 0};
  EXPECT_EQ(1, poll(&p, 1, -1));
  EXPECT_EQ(1, read(ends[0], data, 1));
  EXPECT_EQ(-1, recv(ends[0], data, 1, 0));
  EXPECT_EQ(ENOTSOCK, errno);
  EXPECT_EQ(-1, read(-1, data, 1));
  EXPECT_EQ(EBADF, errno);
  EXPECT_EQ(-1, close(INT32_MAX));
  const int local = socket(AF_UNIX, SOCK_STREAM, 0);
  EXPECT_GE(local, 0);
  for (int fd : {ends[0], ends[1], local}) EXPECT_EQ(0, close(fd));
  EXPECT_EQ(Names{}, stub_log());
}

// ---- signals ----

int caught = 0;
void on_signal(int) { ++caught; }

TEST(Signals, EveryWayToInstallAHandlerIsSigaction) {
  stub_log();
  const auto sysv = named<sighandler_t (*)(int, sighandler_t)>("sysv_signal");
  const auto bsd = named<sighandler_t (*)(int, sighandler_t)>("bsd_signal");
  const auto interrupt = named<int (*)(int, int)>("siginterrupt");  // these three are deprecated, and used
  const auto set = named<sighandler_t (*)(int, sighandler_t)>("sigset");
  const auto ignore = named<int (*)(int)>("sigignore");
  struct sigaction action {};

  EXPECT_EQ(SIG_DFL, signal(SIGUSR1, on_signal));
  EXPECT_EQ(Names{"sigaction"}, stub_log());
  EXPECT_EQ(0, sigaction(SIGUSR1, nullptr, &action));
  EXPECT_EQ(on_signal, action.sa_handler);
  EXPECT_TRUE(action.sa_flags & SA_RESTART);
  EXPECT_EQ(1, sigismember(&action.sa_mask, SIGUSR1));

  EXPECT_EQ(0, interrupt(SIGUSR1, 1));
  EXPECT_EQ(0, sigaction(SIGUSR1, nullptr, &action));
  EXPECT_FALSE(action.sa_flags & SA_RESTART);
  EXPECT_EQ(on_signal, bsd(SIGUSR1, on_signal));  // signal() remembers it
  EXPECT_EQ(0, sigaction(SIGUSR1, nullptr, &action));
  EXPECT_FALSE(action.sa_flags & SA_RESTART);
  EXPECT_EQ(0, interrupt(SIGUSR1, 0));
  EXPECT_EQ(0, sigaction(SIGUSR1, nullptr, &action));
  EXPECT_TRUE(action.sa_flags & SA_RESTART);
  raise(SIGUSR1);
  EXPECT_EQ(1, caught);

  EXPECT_EQ(on_signal, sysv(SIGUSR1, on_signal));
  raise(SIGUSR1);
  EXPECT_EQ(2, caught);
  EXPECT_EQ(SIG_DFL, signal(SIGUSR1, SIG_DFL));  // once only

  EXPECT_EQ(SIG_DFL, set(SIGUSR1, on_signal));
  EXPECT_EQ(on_signal, set(SIGUSR1, SIG_HOLD));
  raise(SIGUSR1);
  EXPECT_EQ(2, caught);
  EXPECT_EQ(SIG_HOLD, set(SIGUSR1, on_signal));  // lets it through
  EXPECT_EQ(3, caught);
  EXPECT_EQ(0, ignore(SIGUSR1));
  raise(SIGUSR1);
  EXPECT_EQ(SIG_IGN, signal(SIGUSR1, SIG_DFL));

  EXPECT_EQ(SIG_ERR, signal(0, on_signal));
  EXPECT_EQ(EINVAL, errno);
  EXPECT_EQ(SIG_ERR, signal(SIGKILL, on_signal));
  EXPECT_EQ(EINVAL, errno);
}

}  // namespace
