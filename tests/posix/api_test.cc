// The library's own calls (include/accel.h). Where near is the kernel's they are absent, and that is all
// there is to see.
#include <accel.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <time.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "posix/echo.h"
#include "posix/library.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

std::string reason(int fd) { return query(fd).reason; }

int error_of_query(int fd) {
  accel_info info{};
  info.size = sizeof info;
  errno = 0;
  EXPECT_EQ(accel_query(fd, &info), -1);
  return errno;
}

void expect_carried(int fd) {
  const accel_info info = query(fd);
  if (!on_device()) {
    EXPECT_EQ(info.path, expected_path()) << info.path_name << ": " << info.text;
    EXPECT_EQ(info.ifindex, 0);
    return;
  }
  EXPECT_TRUE(info.path == ACCEL_PATH_XDP || info.path == ACCEL_PATH_MLX5) << info.path_name;
  EXPECT_STREQ(info.path_name, info.path == ACCEL_PATH_XDP ? "xdp" : "mlx5");
  EXPECT_STREQ(info.reason, "accelerated");
  EXPECT_STREQ(info.text, "accelerated");
  EXPECT_STREQ(info.detail, "");
  char name[IF_NAMESIZE];
  EXPECT_NE(if_indextoname(static_cast<unsigned>(info.ifindex), name), nullptr) << info.ifindex;
}

double cpu_ms() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) / 1e6;
}

FAR(echo_datagrams) {
  Fd fd = udp_at(here());
  near.say(port_of(fd));
  std::array<char, 65536> buffer{};
  for (;;) {
    Address from;
    const ssize_t n = recvfrom(fd, buffer.data(), buffer.size(), 0, from.raw(), &from.size);
    if (n < 0) throw std::runtime_error(strerror(errno));
    if (n == 3 && memcmp(buffer.data(), "end", 3) == 0) return;
    sendto(fd, buffer.data(), static_cast<size_t>(n), 0, from.raw(), from.size);
  }
}

/// Answers each byte of a connection after the milliseconds that it says.
FAR(answers_late) {
  Fd listener = listen_at(here());
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  unsigned char byte = 0;
  while (recv(fd, &byte, 1, 0) == 1) {
    poll(nullptr, 0, byte);
    write_all(fd, &byte, 1);
  }
}

TEST(Absent, WithoutTheLibrary) {
  if (accel_is_present()) GTEST_SKIP() << "with libaccel";
  EXPECT_TRUE(accel_query == nullptr);
  EXPECT_TRUE(accel_set_thread_spin == nullptr);
  EXPECT_TRUE(accel_thread_spin == nullptr);
  EXPECT_EQ(accel_is_accelerated(0), 0);
}

TEST(Query, AConnectionItsDuplicateAndItsEnd) {
  NEEDS_LIBRARY();
  Echo echo;
  exchange(echo.fd, "hello");
  exchange(echo.fd, "again");
  expect_carried(echo.fd);
  EXPECT_EQ(accel_is_accelerated(echo.fd), 1);
  Fd twin(dup(echo.fd));
  expect_carried(twin);
  const int number = echo.fd;
  echo.fd.reset();
  EXPECT_EQ(error_of_query(number), EBADF);
  EXPECT_EQ(accel_is_accelerated(number), 0);
  expect_carried(twin);
  exchange(twin, "on");
  twin.reset();
  EXPECT_EQ(echo.seen(), "helloagainon");
  echo.finish();
}

TEST(Query, AListenerAndWhatItAccepts) {
  NEEDS_LIBRARY();
  if (!on_device()) GTEST_SKIP() << "a listener is the kernel's";
  Fd listener = listen_at(here());
  const accel_info info = query(listener);
  if (info.path == ACCEL_PATH_UNDECIDED) {
    EXPECT_STREQ(info.reason, "port_opening");  // the process's first call
  } else {
    EXPECT_EQ(info.flags, uint32_t{ACCEL_INFO_LISTENS});
    expect_carried(listener);
  }
}

TEST(Query, ADatagramSocket) {
  NEEDS_LIBRARY();
  if (!on_device()) GTEST_SKIP() << "datagrams are the kernel's";
  Far far("echo_datagrams");
  Address to = there(static_cast<uint16_t>(far.number()));
  Fd fd = udp_socket();
  EXPECT_EQ(reason(fd), "not_decided");
  ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(send(fd, "x", 1, 0), 1);
    char c = 0;
    ASSERT_EQ(recv(fd, &c, 1, 0), 1);
  }
  expect_carried(fd);
  EXPECT_EQ(query(fd).flags, uint32_t{ACCEL_INFO_LEASES});
  send(fd, "end", 3, 0);
  far.finish();
}

TEST(Query, WhatIsTheKernels) {
  NEEDS_LIBRARY();
  Fd fresh = tcp_socket();
  EXPECT_EQ(reason(fresh), "not_decided");
  Fd listener = listen_at(address("127.0.0.1", 0));
  Fd loop = connect_to(address("127.0.0.1", port_of(listener)));
  EXPECT_EQ(query(loop).path, uint32_t{ACCEL_PATH_KERNEL});
  EXPECT_TRUE(!on_device() || reason(loop) == "loopback") << reason(loop);
  Fd twin(dup(loop));
  EXPECT_EQ(reason(twin), reason(loop));
  Fd accepted = accept_one(listener);
  EXPECT_EQ(query(accepted).path, uint32_t{ACCEL_PATH_KERNEL});
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  Fd one(ends[0]), two(ends[1]);
  EXPECT_EQ(reason(one), "not_internet");
  ASSERT_EQ(pipe(ends), 0);
  Fd out(ends[0]), in(ends[1]);
  EXPECT_EQ(reason(out), "not_internet");
  Fd set(epoll_create1(0));
  EXPECT_EQ(reason(set), "not_internet");
  EXPECT_EQ(accel_is_accelerated(set), 0);
}

TEST(Query, NoDescriptor) {
  NEEDS_LIBRARY();
  for (const int fd : {-1, -1000, 900, 65535, 1 << 20, INT32_MAX, INT32_MIN})
    EXPECT_EQ(error_of_query(fd), EBADF) << fd;
  // Those that the library keeps for itself are not the program's.
  for (int fd = 0; fd < 1024; ++fd) {
    accel_info info{};
    info.size = sizeof info;
    EXPECT_TRUE(accel_query(fd, &info) == 0 || errno == EBADF) << fd;
  }
}

TEST(Query, BadPointersAndSizes) {
  NEEDS_LIBRARY();
  Fd fd;
  for (const bool with_socket : {false, true}) {  // before there is anything of the library's, and after
    if (with_socket) fd = tcp_socket();
    auto fails = [](int about, accel_info* info) {
      errno = 0;
      EXPECT_EQ(accel_query(about, info), -1);
      return errno;
    };
    const int about = with_socket ? static_cast<int>(fd) : 0;
    EXPECT_EQ(fails(about, nullptr), EFAULT);
    EXPECT_EQ(fails(about, reinterpret_cast<accel_info*>(8)), EFAULT);
    EXPECT_EQ(fails(about, reinterpret_cast<accel_info*>(~uintptr_t{7})), EFAULT);
    void* page = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(page, MAP_FAILED);
    EXPECT_EQ(fails(about, static_cast<accel_info*>(page)), EINVAL);
    ASSERT_EQ(mprotect(page, 4096, PROT_READ | PROT_WRITE), 0);
    static_cast<accel_info*>(page)->size = sizeof(accel_info);
    ASSERT_EQ(mprotect(page, 4096, PROT_READ), 0);
    EXPECT_EQ(fails(about, static_cast<accel_info*>(page)), EFAULT);
    munmap(page, 4096);
    for (const uint32_t size : {0u, 1u, static_cast<uint32_t>(sizeof(accel_info)) - 1}) {
      accel_info info{};
      info.size = size;
      EXPECT_EQ(fails(about, &info), EINVAL) << size;
      EXPECT_EQ(info.path_name, nullptr);
    }
    struct {
      accel_info info;
      char behind[64];
    } larger{};
    memset(larger.behind, 7, sizeof larger.behind);
    for (const uint32_t size : {static_cast<uint32_t>(sizeof larger), UINT32_MAX}) {
      larger.info.size = size;
      EXPECT_EQ(accel_query(about, &larger.info), 0);
      EXPECT_EQ(larger.info.size, sizeof(accel_info));
    }
    for (const char c : larger.behind) EXPECT_EQ(c, 7);
  }
  errno = ENOTBLK;
  (void)query(fd);
  EXPECT_EQ(errno, ENOTBLK);
}

TEST(Query, WhatWasHandedBackIsTheKernels) {
  NEEDS_LIBRARY();
  if (!on_device()) GTEST_SKIP() << "it stays";
  Echo echo(30);
  expect_carried(echo.fd);
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  Fd one(ends[0]), two(ends[1]);
  send_descriptor(one, echo.fd);
  Fd passed = receive_descriptor(two);
  for (const int fd : {static_cast<int>(echo.fd), static_cast<int>(passed)})
    EXPECT_EQ(query(fd).path, uint32_t{ACCEL_PATH_KERNEL}) << query(fd).text;
  EXPECT_STRNE(query(echo.fd).reason, "unknown");
  exchange(passed, "on");
  passed.reset();
  echo.fd.reset();
  EXPECT_EQ(echo.seen(), "on");
  echo.finish();
}

TEST(Query, AChildTakesNothingByAsking) {
  NEEDS_LIBRARY();
  if (!on_device()) GTEST_SKIP() << "of a device's connections";
  Echo echo(30);
  ends_well_in_child([&] {
    const accel_info info = query(echo.fd);
    EXPECT_EQ(info.path, uint32_t{ACCEL_PATH_UNDECIDED});
    EXPECT_STREQ(info.reason, "inherited");
    EXPECT_EQ(error_of_query(-1), EBADF);
  });
  expect_carried(echo.fd);
  exchange(echo.fd, "on");
  echo.fd.reset();
  EXPECT_EQ(echo.seen(), "on");
  echo.finish();
}

TEST(Query, BesideThreadsThatOpenAndClose) {
  NEEDS_LIBRARY();
  Echo echo(30);
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      while (!done) {
        Fd fd = tcp_socket();
        Fd other = udp_socket();
      }
    });
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      for (int n = 0; n < 2000; ++n) {
        accel_info info{};
        info.size = sizeof info;
        EXPECT_TRUE(accel_query(n % 64, &info) == 0 || errno == EBADF);
      }
    });
  for (int n = 0; n < 200; ++n) exchange(echo.fd, "x");
  for (size_t i = 3; i < threads.size(); ++i) threads[i].join();
  done = true;
  for (int i = 0; i < 3; ++i) threads[static_cast<size_t>(i)].join();
  expect_carried(echo.fd);
  echo.fd.reset();
  (void)echo.seen();
  echo.finish();
}

TEST(Spin, IsTheThreadsOwnAndBounded) {
  NEEDS_LIBRARY();
  EXPECT_EQ(accel_thread_spin(), ACCEL_SPIN_DEFAULT);
  for (const int bad : {-2, INT32_MIN, ACCEL_SPIN_MOST + 1, INT32_MAX}) {
    errno = 0;
    EXPECT_EQ(accel_set_thread_spin(bad), -1);
    EXPECT_EQ(errno, EINVAL);
  }
  EXPECT_EQ(accel_thread_spin(), ACCEL_SPIN_DEFAULT);
  for (const int good : {0, 1, ACCEL_SPIN_MOST, ACCEL_SPIN_DEFAULT, 250}) {
    EXPECT_EQ(accel_set_thread_spin(good), 0);
    EXPECT_EQ(accel_thread_spin(), good);
  }
  std::thread([] { EXPECT_EQ(accel_thread_spin(), ACCEL_SPIN_DEFAULT); }).join();
  ends_well_in_child([] { EXPECT_EQ(accel_thread_spin(), 250); });
  EXPECT_EQ(accel_set_thread_spin(ACCEL_SPIN_DEFAULT), 0);
}

/// A connection to a far end that answers late, and what waiting for the answer takes of the CPU.
struct Late : Far {
  Late() : Far("answers_late"), fd(connect_to(there(static_cast<uint16_t>(number())))) {}
  enum class By { kRecv, kPoll, kEpoll };
  double ask(By by, unsigned char after_ms = 200) const {
    Fd set(epoll_create1(0));
    epoll_event event{EPOLLIN, {}};
    if (by == By::kEpoll) epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    write_all(fd, &after_ms, 1);
    const double before = cpu_ms();
    pollfd p{fd, POLLIN, 0};
    const int ready = by == By::kPoll    ? poll(&p, 1, -1)
                      : by == By::kEpoll ? epoll_wait(set, &event, 1, -1)
                                         : 1;
    EXPECT_EQ(ready, 1);
    char c = 0;
    EXPECT_EQ(recv(fd, &c, 1, 0), 1);
    return cpu_ms() - before;
  }
  Fd fd;
};

TEST(Spin, WaitsPollAsLongAsTheirThreadSays) {
  NEEDS_LIBRARY();
  Late late;
  using By = Late::By;
  for (int i = 0; i < 30; ++i) late.ask(By::kRecv, 0);
  // Milliseconds of a CPU in a wait of 200. A thread that polls takes all on CPUs at rest, and one that
  // sleeps 0.3. Beside programs with real-time priority 5 and 10 were seen, and 32 once in 1200 waits.
  constexpr double kPolled = 1, kSlept = 30;
  for (const By by : {By::kRecv, By::kPoll, By::kEpoll}) {
    SCOPED_TRACE(static_cast<int>(by));
    ASSERT_EQ(accel_set_thread_spin(500000), 0);
    EXPECT_GT(late.ask(by), kPolled);
    ASSERT_EQ(accel_set_thread_spin(0), 0);
    EXPECT_LT(late.ask(by), kSlept);
    ASSERT_EQ(accel_set_thread_spin(ACCEL_SPIN_DEFAULT), 0);
    EXPECT_LT(late.ask(by), kSlept);  // the setting's 100 us
    ASSERT_EQ(accel_set_thread_spin(2000), 0);
    EXPECT_LT(late.ask(by), kSlept);
  }
  ASSERT_EQ(accel_set_thread_spin(500000), 0);
  double others = 0;
  std::thread([&] { others = late.ask(By::kRecv); }).join();
  EXPECT_LT(others, kSlept);
  EXPECT_GT(late.ask(By::kRecv), kPolled);
  ASSERT_EQ(accel_set_thread_spin(ACCEL_SPIN_DEFAULT), 0);
  late.fd.reset();
  late.finish();
}

}  // namespace
