// Receiving without a copy: accel_recv_lease() and accel_release() of include/accel.h.
#include <accel.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "posix/echo.h"
#include "posix/library.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

#define NEEDS_DEVICE() \
  NEEDS_LIBRARY();     \
  if (!on_device()) GTEST_SKIP() << "no frames to lend"

/// What one call gave. Not released by itself.
struct Lease {
  accel_lease head{};
  std::array<iovec, 64> parts{};
  ssize_t got = -1;
  int error = 0;

  std::string text() const {
    std::string all;
    for (uint32_t i = 0; i < head.count; ++i)
      all.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
    return all;
  }
  void release() { EXPECT_EQ(accel_release(std::exchange(head.id, 0)), 0) << strerror(errno); }
};

Lease lend(int fd, int flags = 0, size_t room = 64, Address* from = nullptr) {
  Lease l;
  l.head.size = sizeof l.head;
  errno = 0;
  l.got = accel_recv_lease(fd, &l.head, l.parts.data(), room, flags, from != nullptr ? from->raw() : nullptr,
                           from != nullptr ? &from->size : nullptr);
  l.error = errno;
  EXPECT_TRUE(l.got <= 0 || l.text().size() == static_cast<size_t>(l.got));
  return l;
}

uint32_t path_of(int fd) { return query(fd).path; }

void expect_flags(int fd, uint32_t flags) {
  const accel_info info = query(fd);
  EXPECT_EQ(info.flags, flags) << info.text;
}

/// Sends to whoever asks: datagrams of as many bytes as each message says in its first four.
FAR(sends_datagrams) {
  const int family = args.at(0) == "6" ? AF_INET6 : AF_INET;
  Fd fd = udp_at(here(0, family));
  near.say(port_of(fd));
  for (;;) {
    Address from;
    uint32_t size = 0;
    if (recvfrom(fd, &size, sizeof size, 0, from.raw(), &from.size) != sizeof size) return;
    const std::string text = pattern(size, size);
    if (sendto(fd, text.data(), size, 0, from.raw(), from.size) < 0)
      throw std::runtime_error(strerror(errno));
  }
}

/// Sends a pattern of so many bytes by a connection, then what comes back by it until the end.
FAR(sends_stream) {
  Fd listener = listen_at(here());
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  write_all(fd, pattern(std::stoul(args.at(0))));
  std::string back = read_to_end(fd);
  write_all(fd, back);
}

struct Datagrams : Far {
  explicit Datagrams(int family = AF_INET)
      : Far("sends_datagrams", {family == AF_INET6 ? "6" : "4"}),
        to(there(static_cast<uint16_t>(number()), family)),
        fd(udp_socket(family)) {
    Address mine = here(0, family);
    EXPECT_EQ(bind(fd, mine.raw(), mine.size), 0);
    EXPECT_EQ(::connect(fd, to.raw(), to.size), 0);
    for (int i = 0; i < 30; ++i) {  // for run.py's proof, and until the device's port is open
      ask(1);
      char c = 0;
      EXPECT_EQ(recv(fd, &c, 1, 0), 1);
    }
  }
  void ask(uint32_t size) const { EXPECT_EQ(send(fd, &size, sizeof size, 0), ssize_t{sizeof size}); }
  void end() {
    EXPECT_EQ(send(fd, "end", 3, 0), 3);
    finish();
  }
  Address to;
  Fd fd;
};

struct Stream : Far {
  explicit Stream(size_t size)
      : Far("sends_stream", {std::to_string(size)}), fd(connect_to(there(static_cast<uint16_t>(number())))) {}
  void end() {
    shutdown(fd, SHUT_WR);
    (void)read_to_end(fd);
    fd.reset();
    finish();
  }
  Fd fd;
};

TEST(Absent, WithoutTheLibrary) {
  if (accel_is_present()) GTEST_SKIP() << "with libaccel";
  EXPECT_TRUE(accel_recv_lease == nullptr);
  EXPECT_TRUE(accel_release == nullptr);
}

void lends_datagrams(int family) {
  Datagrams far(family);
  expect_flags(far.fd, ACCEL_INFO_LEASES);
  std::vector<Lease> held;
  for (const uint32_t size : {1u, 0u, 64u, 1000u, 1400u}) {
    far.ask(size);
    Address from;
    held.push_back(lend(far.fd, 0, 64, &from));
    const Lease& l = held.back();
    ASSERT_EQ(l.got, ssize_t{size}) << strerror(l.error);
    EXPECT_EQ(l.error, 0);  // success leaves errno alone
    EXPECT_NE(l.head.id, 0u);
    EXPECT_EQ(l.head.size, sizeof(accel_lease));
    EXPECT_EQ(l.head.count, 1u);
    EXPECT_EQ(from.size, far.to.size);
    EXPECT_EQ(from.family(), family);
    EXPECT_EQ(memcmp(from.raw(), far.to.raw(), from.size), 0);
  }
  const std::array<uint32_t, 5> sizes{1, 0, 64, 1000, 1400};
  for (size_t i = 0; i < held.size(); ++i) {
    EXPECT_EQ(held[i].text(), pattern(sizes[i], sizes[i]));
    held[i].release();
  }
  EXPECT_EQ(lend(far.fd, MSG_DONTWAIT).error, EAGAIN);
  far.end();
}

TEST(Datagrams, AreLentWithTheirSender) {
  NEEDS_DEVICE();
  lends_datagrams(AF_INET);
}

TEST(Datagrams, OfIpv6) {
  NEEDS_DEVICE();
  lends_datagrams(AF_INET6);
}

// By the kernel, or in several buffers.
TEST(Datagrams, ThatCameInFragments) {
  NEEDS_DEVICE();
  Datagrams far;
  for (int i = 0; i < 3; ++i) {
    far.ask(9000);
    Lease l = lend(far.fd, 0, 1);
    std::string text;
    if (l.error == EMSGSIZE) {
      EXPECT_GT(l.head.count, 1u);
      EXPECT_EQ(l.head.id, 0u);
      const uint32_t needed = l.head.count;
      l = lend(far.fd, 0, needed);
      EXPECT_EQ(l.head.count, needed);
    }
    if (l.got >= 0) {
      text = l.text();
      l.release();
    } else {
      EXPECT_EQ(l.error, EOPNOTSUPP);
      text.resize(9000);
      EXPECT_EQ(recv(far.fd, text.data(), text.size(), 0), 9000);
    }
    EXPECT_EQ(text, pattern(9000, 9000));
  }
  far.end();
}

TEST(Datagrams, OneByTheKernelIsRecvs) {
  NEEDS_DEVICE();
  Datagrams far;
  Fd any_address = udp_at(any());
  Fd sender = udp_socket();
  Address to = address("127.0.0.1", port_of(any_address));
  ASSERT_EQ(sendto(sender, "loop", 4, 0, to.raw(), to.size), 4);
  EXPECT_EQ(lend(any_address).error, EOPNOTSUPP);
  char text[8];
  EXPECT_EQ(recv(any_address, text, sizeof text, 0), 4);
  far.end();
}

TEST(Datagrams, ThatHaveNotComeAreWaitedFor) {
  NEEDS_DEVICE();
  Datagrams far;
  EXPECT_EQ(lend(far.fd, MSG_DONTWAIT).error, EAGAIN);
  const timeval limit{0, 20000};
  ASSERT_EQ(setsockopt(far.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  EXPECT_EQ(lend(far.fd).error, EAGAIN);
  set_nonblocking(far.fd);
  EXPECT_EQ(lend(far.fd).error, EAGAIN);
  set_nonblocking(far.fd, false);
  const timeval none{0, 0};
  ASSERT_EQ(setsockopt(far.fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none), 0);
  std::thread later([&] {
    poll(nullptr, 0, 30);
    far.ask(77);
  });
  Lease l = lend(far.fd);
  later.join();
  EXPECT_EQ(l.text(), pattern(77, 77));
  l.release();
  far.end();
}

TEST(Datagrams, ErrorsOfTheSocketAreTold) {
  NEEDS_DEVICE();
  Datagrams far;
  Fd fd = udp_socket();
  Address nobody = there(1);
  ASSERT_EQ(connect(fd, nobody.raw(), nobody.size), 0);
  const timeval limit{0, 200000};  // an ICMP message may be lost
  ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  Lease l;
  for (int i = 0; i < 50 && (l.error == 0 || l.error == EAGAIN); ++i) {
    (void)send(fd, "x", 1, 0);
    l = lend(fd);
  }
  EXPECT_EQ(l.error, ECONNREFUSED);
  far.end();
}

TEST(Text, IsLentInOrderBesideRecv) {
  NEEDS_DEVICE();
  constexpr size_t kSize = 3 << 20;
  Stream far(kSize);
  expect_flags(far.fd, ACCEL_INFO_LEASES);
  std::string all;
  std::vector<char> buffer(10007);
  for (int turn = 0; all.size() < kSize; ++turn) {
    if (turn % 3 == 0) {
      const ssize_t n = recv(far.fd, buffer.data(), buffer.size(), 0);
      ASSERT_GT(n, 0);
      all.append(buffer.data(), static_cast<size_t>(n));
      continue;
    }
    Address from;
    Lease l = lend(far.fd, 0, turn % 2 == 0 ? 64 : 1, &from);
    ASSERT_GT(l.got, 0) << strerror(l.error);
    EXPECT_EQ(from.size, 0u);
    EXPECT_NE(l.head.id, 0u);
    all += l.text();
    l.release();
  }
  EXPECT_TRUE(all == pattern(kSize));
  write_all(far.fd, "bye");
  shutdown(far.fd, SHUT_WR);
  Lease bye = lend(far.fd);
  EXPECT_EQ(bye.text(), "bye");
  bye.release();
  for (int i = 0; i < 2; ++i) {
    const Lease end = lend(far.fd);
    EXPECT_EQ(end.got, 0);
    EXPECT_EQ(end.head.id, 0u);
    EXPECT_EQ(end.head.count, 0u);
  }
  far.fd.reset();
  far.finish();
}

// As poll() and recv(): with less than SO_RCVLOWAT, nothing else would open the window.
TEST(Text, AShutWindowEndsTheWait) {
  NEEDS_DEVICE();
  constexpr size_t kSize = 1 << 20;
  Stream far(kSize);
  const int mark = kSize / 2, room = 16384;
  ASSERT_EQ(setsockopt(far.fd, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark), 0);
  ASSERT_EQ(setsockopt(far.fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room), 0);
  std::string all;
  while (all.size() < kSize) {
    Lease l = lend(far.fd);
    ASSERT_GT(l.got, 0) << strerror(l.error);
    all += l.text();
    l.release();
    if (kSize - all.size() < mark) {
      const int any = 1;
      ASSERT_EQ(setsockopt(far.fd, SOL_SOCKET, SO_RCVLOWAT, &any, sizeof any), 0);
    }
  }
  EXPECT_TRUE(all == pattern(kSize));
  far.end();
}

// An urgent byte is no part of the stream. recv() has what stands before it in one buffer with it.
FAR(sends_urgent) {
  Fd listener = listen_at(here());
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  for (int i = 0; i < 20; ++i) {
    write_all(fd, "abc");
    if (send(fd, "!", 1, MSG_OOB) != 1) throw std::runtime_error(strerror(errno));
    write_all(fd, "def");
  }
}

TEST(Text, UrgentDataIsSkippedAsByRecv) {
  NEEDS_DEVICE();
  Far far("sends_urgent");
  Fd fd = connect_to(there(static_cast<uint16_t>(far.number())));
  std::string all;
  for (;;) {
    Lease l = lend(fd);
    if (l.got == 0) break;
    if (l.got > 0) {
      all += l.text();
      l.release();
      continue;
    }
    ASSERT_EQ(l.error, EOPNOTSUPP) << strerror(l.error);
    char buffer[64];
    const ssize_t n = recv(fd, buffer, sizeof buffer, 0);
    ASSERT_GT(n, 0);
    all.append(buffer, static_cast<size_t>(n));
  }
  // Where several wait at once, the older ones are in the stream, as with recv().
  std::erase(all, '!');
  std::string wanted;
  for (int i = 0; i < 20; ++i) wanted += "abcdef";
  EXPECT_EQ(all, wanted);
  fd.reset();
  far.finish();
}

/// Leases until no more are given, of a stream that is longer.
struct Hoard {
  std::vector<Lease> held;
  size_t bytes = 0;
  void fill(int fd) {
    for (;;) {
      Lease l = lend(fd, 0, 16);
      if (l.got <= 0) {
        EXPECT_EQ(l.error, ENOBUFS) << strerror(l.error);
        return;
      }
      bytes += static_cast<size_t>(l.got);
      held.push_back(l);
    }
  }
  std::string text() const {
    std::string all;
    for (const Lease& l : held) all += l.text();
    return all;
  }
  void release() {
    for (Lease& l : held) l.release();
    held.clear();
  }
};

TEST(Bound, LeasesDoNotStarveTheRest) {
  NEEDS_DEVICE();
  constexpr size_t kSize = 20 << 20;
  Stream far(kSize);
  Hoard hoard;
  hoard.fill(far.fd);
  EXPECT_GT(hoard.bytes, size_t{100} << 10);
  EXPECT_LE(hoard.bytes, size_t{9} << 20);
  Echo echo;  // another connection has frames
  for (int i = 0; i < 100; ++i) posix_test::exchange(echo.fd, std::string(1000, 'x'));
  EXPECT_EQ(lend(far.fd).error, ENOBUFS);
  const std::string whole = pattern(kSize);
  const std::string rest = read_exactly(far.fd, kSize - hoard.bytes);
  EXPECT_TRUE(hoard.text() + rest == whole);  // what was lent is as it was
  hoard.release();
  write_all(far.fd, "more");
  shutdown(far.fd, SHUT_WR);
  Lease l = lend(far.fd);
  EXPECT_EQ(l.text(), "more");
  l.release();
  far.fd.reset();
  far.finish();
  (void)echo.all();
}

TEST(Bound, DatagramsToo) {
  NEEDS_DEVICE();
  Datagrams far;
  std::vector<Lease> held;
  for (int i = 0; i < 20000; ++i) {
    far.ask(700);
    Lease l = lend(far.fd);
    if (l.got < 0) {
      EXPECT_EQ(l.error, ENOBUFS);
      break;
    }
    held.push_back(l);
  }
  EXPECT_GT(held.size(), 500u);
  EXPECT_LT(held.size(), 20000u);
  std::string text(2000, 0);
  EXPECT_EQ(recv(far.fd, text.data(), text.size(), 0), 700);
  text.resize(700);
  EXPECT_EQ(text, pattern(700, 700));
  for (Lease& l : held) EXPECT_TRUE(l.text() == text);
  held[0].release();
  far.ask(5);
  Lease l = lend(far.fd);
  EXPECT_EQ(l.text(), pattern(5, 5));
  l.release();
  for (size_t i = 1; i < held.size(); ++i) held[i].release();
  far.end();
}

TEST(Life, ALeaseOutlivesItsSocket) {
  NEEDS_DEVICE();
  Stream far(100000);
  Lease l = lend(far.fd, 0, 4);
  ASSERT_GT(l.got, 0);
  const std::string text = l.text();
  EXPECT_TRUE(text == pattern(100000).substr(0, text.size()));
  std::string rest = read_exactly(far.fd, 100000 - text.size());
  far.end();
  Stream other(1 << 20);
  EXPECT_TRUE(read_exactly(other.fd, 1 << 20) == pattern(1 << 20));
  other.end();
  EXPECT_TRUE(l.text() == text);
  l.release();
}

TEST(Life, AHandBackLeavesItAlone) {
  NEEDS_DEVICE();
  Stream far(100000);
  Lease l = lend(far.fd, 0, 4);
  ASSERT_GT(l.got, 0);
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  Fd one(ends[0]), two(ends[1]);
  send_descriptor(one, far.fd);  // the connection is the kernel's from here on
  Fd passed = receive_descriptor(two);
  EXPECT_EQ(lend(far.fd).error, EOPNOTSUPP);
  const std::string text = l.text();
  const std::string rest = read_exactly(far.fd, 100000 - text.size());
  EXPECT_TRUE(text + rest == pattern(100000));
  EXPECT_TRUE(l.text() == text);
  l.release();
  passed.reset();
  far.end();
}

TEST(Life, AChildHasNone) {
  NEEDS_DEVICE();
  Stream far(100000);
  Lease l = lend(far.fd, 0, 4);
  ASSERT_GT(l.got, 0);
  ends_well_in_child([&] {
    EXPECT_EQ(accel_release(l.head.id), -1);
    EXPECT_EQ(errno, EINVAL);
  });
  const std::string text = l.text();
  EXPECT_TRUE(text + read_exactly(far.fd, 100000 - text.size()) == pattern(100000));
  l.release();
  far.end();
}

// A filter of system calls ends the library's work in the process.
TEST(Life, TheEndOfAccelerationLeavesItAlone) {
  NEEDS_DEVICE();
  ends_well_in_child([&] {
    Stream far(100000);
    Lease l = lend(far.fd, 0, 4);
    ASSERT_GT(l.got, 0);
    sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    const sock_fprog filter{1, &allow};
    ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0), 0);
    EXPECT_EQ(lend(far.fd).error, EOPNOTSUPP);
    const std::string text = l.text();
    EXPECT_TRUE(text + read_exactly(far.fd, 100000 - text.size()) == pattern(100000));
    EXPECT_TRUE(l.text() == text);
    l.release();
    far.end();
  });
}

TEST(Life, AProcessMayEndWithThem) {
  NEEDS_DEVICE();
  ends_well_in_child([&] {
    Stream far(100000);
    for (int i = 0; i < 3; ++i) (void)lend(far.fd, 0, 4);
    (void)far.fd.release();
    _exit(0);
  });
}

TEST(Bad, Descriptors) {
  NEEDS_LIBRARY();
  EXPECT_EQ(lend(-1).error, EBADF);
  EXPECT_EQ(lend(INT32_MAX).error, EBADF);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  Fd out(ends[0]), in(ends[1]);
  EXPECT_EQ(lend(out).error, ENOTSOCK);
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  Fd one(ends[0]), two(ends[1]);
  EXPECT_EQ(lend(one).error, EOPNOTSUPP);
  EXPECT_EQ(lend(tcp_socket()).error, EOPNOTSUPP);
  EXPECT_EQ(lend(udp_socket()).error, EOPNOTSUPP);
  Fd listener = listen_at(address("127.0.0.1", 0));
  EXPECT_EQ(lend(listener).error, EOPNOTSUPP);
  Fd loop = connect_to(address("127.0.0.1", port_of(listener)));
  EXPECT_EQ(lend(loop).error, EOPNOTSUPP);
  EXPECT_EQ(lend(listen_at(here())).error, EOPNOTSUPP);
}

TEST(Bad, OverSharedMemoryAndIwarp) {
  NEEDS_LIBRARY();
  if (on_device()) GTEST_SKIP() << "of paths without frames";
  Echo echo(1);
  while (path_of(echo.fd) == ACCEL_PATH_KERNEL || path_of(echo.fd) == ACCEL_PATH_UNDECIDED)
    exchange(echo.fd, ".");  // it moves as it is used
  exchange(echo.fd, "one");
  write_all(echo.fd, "two");
  EXPECT_EQ(lend(echo.fd).error, EOPNOTSUPP);
  EXPECT_EQ(read_exactly(echo.fd, 3), "two");
  echo.fd.reset();
  EXPECT_EQ(echo.seen(), "onetwo");
  echo.finish();
}

TEST(Bad, ArgumentsTakeNothing) {
  NEEDS_DEVICE();
  Echo echo(30);
  write_all(echo.fd, "text");
  ASSERT_NE(wait_for(echo.fd, POLLIN), 0);
  accel_lease head{};
  iovec part{};
  sockaddr_storage from{};
  socklen_t length = sizeof from;
  auto fails = [&](accel_lease* lease, iovec* vector, size_t room, int flags = 0, sockaddr* name = nullptr,
                   socklen_t* size = nullptr) {
    head.size = sizeof head;
    errno = 0;
    EXPECT_EQ(accel_recv_lease(echo.fd, lease, vector, room, flags, name, size), -1);
    EXPECT_TRUE(errno == EINVAL || head.size == sizeof head);
    return errno;
  };
  void* page = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto* name = reinterpret_cast<sockaddr*>(&from);
  EXPECT_EQ(fails(nullptr, &part, 1), EFAULT);
  EXPECT_EQ(fails(reinterpret_cast<accel_lease*>(16), &part, 1), EFAULT);
  EXPECT_EQ(fails(static_cast<accel_lease*>(page), &part, 1), EINVAL);  // its size is 0
  EXPECT_EQ(fails(&head, nullptr, 1), EFAULT);
  EXPECT_EQ(fails(&head, static_cast<iovec*>(page), 1), EFAULT);
  EXPECT_EQ(fails(&head, static_cast<iovec*>(page), SIZE_MAX), EFAULT);
  EXPECT_EQ(fails(&head, &part, 0), EINVAL);
  EXPECT_EQ(fails(&head, &part, 1, MSG_PEEK), EINVAL);
  EXPECT_EQ(fails(&head, &part, 1, -1), EINVAL);
  EXPECT_EQ(fails(&head, &part, 1, 0, name, nullptr), EFAULT);
  EXPECT_EQ(fails(&head, &part, 1, 0, reinterpret_cast<sockaddr*>(page), &length), EFAULT);
  length = static_cast<socklen_t>(-1);
  EXPECT_EQ(fails(&head, &part, 1, 0, name, &length), EINVAL);
  for (const uint32_t size : {0u, 15u}) {
    head.size = size;
    EXPECT_EQ(accel_recv_lease(echo.fd, &head, &part, 1, 0, nullptr, nullptr), -1);
    EXPECT_EQ(errno, EINVAL);
  }
  munmap(page, 4096);
  Lease l = lend(echo.fd);
  EXPECT_EQ(l.text(), "text");
  l.release();
  echo.fd.reset();
  EXPECT_EQ(echo.seen(), "text");
  echo.finish();
}

TEST(Bad, Releases) {
  NEEDS_DEVICE();
  auto refused = [](uint64_t id) {
    errno = 0;
    EXPECT_EQ(accel_release(id), -1) << id;
    return errno;
  };
  EXPECT_EQ(accel_release(0), 0);
  EXPECT_EQ(refused(1), EINVAL);
  Echo echo(30);
  for (int i = 0; i < 3; ++i) {
    write_all(echo.fd, "text");
    const Lease l = lend(echo.fd);
    ASSERT_EQ(l.got, 4);
    for (const uint64_t id : {l.head.id + 1, l.head.id ^ (uint64_t{1} << 40), UINT64_MAX, uint64_t{1}})
      EXPECT_EQ(refused(id), EINVAL);
    EXPECT_EQ(l.text(), "text");
    EXPECT_EQ(accel_release(l.head.id), 0);
    EXPECT_EQ(refused(l.head.id), EINVAL);
  }
  echo.fd.reset();
  (void)echo.seen();
  echo.finish();
}

TEST(Threads, OneThatIsBlockedIsInterruptedAndCancelled) {
  NEEDS_DEVICE();
  Datagrams far;
  struct sigaction action {};
  action.sa_handler = [](int) {};
  sigaction(SIGUSR1, &action, nullptr);
  std::atomic<pid_t> id{0};
  std::atomic<int> error{0};
  std::thread thread([&] {
    id = static_cast<pid_t>(syscall(SYS_gettid));
    error = lend(far.fd).error;
  });
  until_asleep(id);
  while (error == 0) {  // it may not have slept yet
    pthread_kill(thread.native_handle(), SIGUSR1);
    poll(nullptr, 0, 5);
  }
  thread.join();
  EXPECT_EQ(error, EINTR);
  id = 0;
  std::thread other([&] {
    id = static_cast<pid_t>(syscall(SYS_gettid));
    (void)lend(far.fd);
    ADD_FAILURE() << "it came back";
  });
  until_asleep(id);
  pthread_cancel(other.native_handle());
  other.join();
  far.ask(9);
  Lease l = lend(far.fd);
  EXPECT_EQ(l.text(), pattern(9, 9));
  l.release();
  far.end();
}

TEST(Threads, LendAndReleaseAtOnce) {
  NEEDS_DEVICE();
  constexpr size_t kSize = 8 << 20;
  Stream far(kSize);
  std::atomic<size_t> total{0};
  std::mutex lock;
  std::vector<uint64_t> ids;
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      while (total < kSize) {
        const Lease l = lend(far.fd, MSG_DONTWAIT, 8);
        if (l.got < 0) {
          EXPECT_TRUE(l.error == EAGAIN || l.error == ENOBUFS) << strerror(l.error);
          poll(nullptr, 0, 1);
          continue;
        }
        total += static_cast<size_t>(l.got);
        const std::lock_guard guard(lock);
        ids.push_back(l.head.id);
      }
    });
  std::thread releases([&] {
    for (;;) {
      std::vector<uint64_t> mine;
      const bool last = done;
      {
        const std::lock_guard guard(lock);
        mine.swap(ids);
      }
      for (const uint64_t id : mine) EXPECT_EQ(accel_release(id), 0);
      if (last) return;
      poll(nullptr, 0, 1);
    }
  });
  for (std::thread& t : threads) t.join();
  done = true;
  releases.join();
  EXPECT_EQ(total, kSize);
  far.end();
}

}  // namespace
