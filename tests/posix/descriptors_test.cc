// Programs that close what they did not open: every descriptor from 3 on, one by one or at once. The
// library's own are not theirs, so what comes afterwards works as on the kernel.
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <thread>

#include "posix/echo.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

constexpr int kEnd = 1100;

/// The test's own control channels are Unix sockets.
bool is_control(int fd) {
  int domain = 0;
  socklen_t size = sizeof domain;
  return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX;
}

int spare() {
  const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_GE(fd, 0);
  return fd;
}

TEST(Descriptors, ClosedOneByOne) {
  Echo first;
  exchange(first.fd, "one");
  std::vector<int> closed;
  for (int fd = 3; fd < kEnd; ++fd)
    if (!is_control(fd) && (fd % 2 != 0 ? close(fd) : static_cast<int>(syscall(SYS_close, fd))) == 0)
      closed.push_back(fd);
  EXPECT_EQ(closed, std::vector<int>{first.fd.release()});
  EXPECT_EQ(first.seen(), "one");
  first.finish();
  for (int i = 0; i < 3; ++i) {
    Echo again;
    const std::string much(50'000, 'x');
    posix_test::exchange(again.fd, much);
    EXPECT_EQ(wait_for(again.fd, POLLIN, 20), 0);  // sleeps on descriptors of the library's
    exchange(again.fd, "two");
    EXPECT_EQ(again.all(), much + "two");
  }
}

TEST(Descriptors, ClosedAtOnce) {
  Echo first;
  exchange(first.fd, "one");
  int from = 3;
  for (int fd = 3; fd < kEnd; ++fd) {
    if (!is_control(fd)) continue;
    if (from < fd) {
      EXPECT_EQ(close_range(from, fd - 1, 0), 0);
    }
    from = fd + 1;
  }
  EXPECT_EQ(close_range(from, ~0u, 0), 0);
  EXPECT_EQ(fcntl(first.fd.release(), F_GETFD), -1);
  EXPECT_EQ(first.seen(), "one");
  first.finish();
  Fd udp = udp_at(here());
  Echo again;
  exchange(again.fd, "two");
  EXPECT_EQ(again.all(), "two");
}

TEST(Descriptors, ClosefromKeepsWhatIsBelow) {
  Far far("echo_stream");
  const Address to = there(static_cast<uint16_t>(far.number()));
  const pid_t child = in_child([&] {
    closefrom(3);
    Fd fd = connect_to(to);
    exchange(fd, "a");
    const int above = spare();
    closefrom(fd + 1);
    if (fcntl(above, F_GETFD) != -1) _exit(1);
    exchange(fd, "b");
    if (wait_for(fd, POLLIN, 20) != 0) _exit(2);
    for (int i = 0; i < 30; ++i) exchange(fd, "c");
  });
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(far.word(), "ab" + std::string(30, 'c'));
  far.finish();
}

// As a supervisor hands sockets on: to fixed low numbers.
TEST(Descriptors, MovedToLowNumbers) {
  Echo far;
  exchange(far.fd, "a");
  int number = -1;
  for (int i = 0; i < 40 && number < 0; ++i)
    if (fcntl(3 + i, F_GETFD) < 0) number = 3 + i;
  ASSERT_EQ(dup2(far.fd, number), number);
  far.fd.reset();
  exchange(number, "b");
  EXPECT_EQ(close(number), 0);
  EXPECT_EQ(far.seen(), "ab");
  far.finish();
}

double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// As a sandbox does: what is open stays open.
TEST(Descriptors, NoMoreMayBeOpened) {
  Echo far;
  exchange(far.fd, "a");
  const int set = epoll_create1(0);
  epoll_event event{EPOLLIN, {}};
  ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, far.fd, &event), 0);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_EQ(epoll_wait(set, &event, 1, 20), 0);
  fd_set in;
  FD_ZERO(&in);
  FD_SET(far.fd, &in);
  timeval soon{0, 20000};
  EXPECT_EQ(select(far.fd + 1, &in, nullptr, nullptr, &soon), 0);
  exchange(far.fd, "b");
  std::thread([&] { exchange(far.fd, "c"); }).join();
  const double used = cpu_seconds();
  usleep(400'000);  // nobody has anything to do
  EXPECT_LT(cpu_seconds() - used, 0.2);
  exchange(far.fd, "d");
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  close(set);
  EXPECT_EQ(far.all(), "abcd");
}

// On one host the two ends may be about to meet then: what that waits for is not asked by poll(2), which
// refuses.
TEST(Descriptors, NoMoreMayBeOpenedBehindTheFirstByte) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  for (int i = 0; i < 12; ++i) {
    Echo far;
    write_all(far.fd, "a");
    usleep(static_cast<useconds_t>(i * 100));
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    const double used = cpu_seconds();
    usleep(100'000);
    EXPECT_LT(cpu_seconds() - used, 0.05);
    EXPECT_EQ(read_exactly(far.fd, 1), "a");
    exchange(far.fd, "b");
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_EQ(far.all(), "ab");
  }
}

}  // namespace
