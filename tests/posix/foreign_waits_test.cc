// Programs whose runtime makes the system calls of epoll, poll and select itself, while its sockets are made
// by libc's functions: what they wait for comes, with their own data.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>

#include <atomic>
#include <functional>
#include <thread>

#include "base/bare_syscall.h"
#include "posix/echo.h"

using accel::bare_syscall;   // past libc
using namespace posix_test;  // NOLINT: a test program

namespace {

long address_of(const void* p) { return reinterpret_cast<long>(p); }

constexpr timespec kGuard{20, 0};

/// The one event that comes; its data is what the program gave.
epoll_event next_event(int set) {
  epoll_event event{};
  EXPECT_EQ(bare_syscall(441, set, address_of(&event), 1, address_of(&kGuard), 0, 8), 1);  // epoll_pwait2
  return event;
}

void add(int set, int fd, uint32_t events, uint64_t data) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = data;
  EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
}

// Calls as often as told, sends a word each time and reads the answer.
FAR(callers) {
  for (std::string port; (port = near.word()) != "end";) {
    Fd fd = connect_to(there(static_cast<uint16_t>(std::stoi(port))));
    write_all(fd, "hello");
    near.say(read_to_end(fd));
  }
}

/// Two callers, served by one thread as an event loop does.
void serve_by_epoll(uint32_t flags) {
  Echo before(kProof);  // accelerated
  EXPECT_EQ(before.all(), "-");
  constexpr uint64_t kListener = 0x123456789abc, kConnection = 0xcba987654321;
  const Fd listener = listen_at(here());
  set_nonblocking(listener);
  const Fd set(epoll_create1(0));
  add(set, listener, EPOLLIN | flags, kListener);
  Far far("callers");
  for (int i = 0; i < 2; ++i) {
    far.say(port_of(listener));
    epoll_event event = next_event(set);
    EXPECT_EQ(event.data.u64, kListener);
    EXPECT_EQ(event.events, static_cast<uint32_t>(EPOLLIN));
    const Fd fd(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK));
    ASSERT_GE(fd, 0) << strerror(errno);
    add(set, fd, EPOLLIN | flags, kConnection);
    event = next_event(set);
    EXPECT_EQ(event.data.u64, kConnection);
    EXPECT_EQ(event.events, static_cast<uint32_t>(EPOLLIN));
    set_nonblocking(fd, false);
    EXPECT_EQ(read_exactly(fd, 5), "hello");
    write_all(fd, "answer");
    EXPECT_EQ(shutdown(fd, SHUT_RDWR), 0);
    EXPECT_EQ(far.word(), "answer");
  }
  far.say("end");
  far.finish();
}

TEST(ForeignWaits, EpollByLevel) { serve_by_epoll(0); }
TEST(ForeignWaits, EpollByEdge) { serve_by_epoll(EPOLLET); }

/// A caller that comes while `wait` sleeps is accepted and answered.
void serve_after(const std::function<void(int listener)>& wait) {
  Echo before(kProof);
  EXPECT_EQ(before.all(), "-");
  const Fd listener = listen_at(here());
  Far far("callers");
  far.say(port_of(listener));
  wait(listener);
  const Fd fd(accept(listener, nullptr, nullptr));
  ASSERT_GE(fd, 0) << strerror(errno);
  EXPECT_EQ(read_exactly(fd, 5), "hello");
  write_all(fd, "answer");
  EXPECT_EQ(shutdown(fd, SHUT_RDWR), 0);
  EXPECT_EQ(far.word(), "answer");
  far.say("end");
  far.finish();
}

void poll_past_libc(int fd) {
  pollfd entry{fd, POLLIN, 0};
  EXPECT_EQ(bare_syscall(SYS_ppoll, address_of(&entry), 1, address_of(&kGuard), 0, 8), 1);
  EXPECT_EQ(entry.revents, POLLIN);
}

TEST(ForeignWaits, PollOnAListener) { serve_after(poll_past_libc); }

TEST(ForeignWaits, SelectOnAListener) {
  serve_after([](int listener) {
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(listener, &readable);
    timespec guard = kGuard;
    EXPECT_EQ(bare_syscall(SYS_pselect6, listener + 1, address_of(&readable), 0, 0, address_of(&guard), 0),
              1);
  });
}

/// One thread waits by libc, and goes on doing so on the kernel's path.
TEST(ForeignWaits, BesideAThreadThatWaitsByLibc) {
  Echo echo(kProof);
  std::atomic<bool> served = false;
  std::thread by_libc([&] {
    while (!served) exchange(echo.fd, "x");
    exchange(echo.fd, "x");
  });
  serve_after(poll_past_libc);
  served = true;
  by_libc.join();
  (void)echo.all();
}

}  // namespace
