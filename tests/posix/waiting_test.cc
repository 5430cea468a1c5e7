// Calls that wait: what wakes them when another thread shuts down or closes, sets that are polled elsewhere,
// very many descriptors at once, and connections that are long in coming or never come.
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/syscall.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include "posix/echo.h"

using namespace posix_test;  // NOLINT: a test program

// A library like libfaketime stands before libc here.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static std::atomic<bool> time_stands{false};
extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  if (!time_stands) return static_cast<int>(syscall(SYS_clock_gettime, clock, now));
  *now = {1000, 0};
  return 0;
}
#endif

namespace {

constexpr int kGuard = 20000;

std::string shown(long result) { return result >= 0 ? std::to_string(result) : strerrorname_np(errno); }

/// A thread that makes one call; the constructor returns once it sleeps in it.
class Waiter {
 public:
  template <class F>
  explicit Waiter(F call)
      : thread_([this, call] {
          id_ = static_cast<pid_t>(syscall(SYS_gettid));
          said_ = call();
        }) {
    until_asleep(id_);
  }
  std::string said() {
    thread_.join();
    return said_;
  }
  void interrupt(int signal) { pthread_kill(thread_.native_handle(), signal); }

 private:
  std::atomic<pid_t> id_{0};
  std::string said_;
  std::thread thread_;
};

/// poll() and select() for one descriptor, until it is ready; poll()'s with the events that it saw.
std::string polled(int fd, short events) {
  pollfd p{fd, events, 0};
  const std::string n = shown(poll(&p, 1, kGuard));
  return n + " " + std::to_string(p.revents);
}

std::string selected(int fd) {
  fd_set in;
  FD_ZERO(&in);
  FD_SET(fd, &in);
  return shown(select(fd + 1, &in, nullptr, nullptr, nullptr));
}

// Accepts as many as told, and holds them until told to end; "send" sends a byte by each. At the end it
// closes those whose FIN has come.
FAR(holder) {
  Fd listener = listen_at(here(), 4096);
  near.say(port_of(listener));
  std::vector<Fd> held;
  for (int left = std::stoi(args[0]); left > 0; --left) held.push_back(accept_one(listener));
  for (std::string order; (order = near.word()) != "end";)
    for (Fd& fd : held) write_all(fd, "!");
  for (Fd& fd : held) wait_for(fd, POLLRDHUP);
}

struct Holder : Far {
  explicit Holder(int connections) : Far("holder", {std::to_string(connections)}) {
    to = there(static_cast<uint16_t>(number()));
    for (int i = 0; i < connections; ++i) fds.push_back(connect_to(to));
  }
  /// Both ends have the other's FIN when the process ends: the kernel would get what came later. A FIN that a
  /// burst of so many pushes out of a ring is sent again, as a reset would not be.
  ~Holder() {
    for (const Fd& fd : fds) end_stream(fd);
    say("end");
    for (const Fd& fd : fds)
      if (fd >= 0) wait_for(fd, POLLRDHUP);
    fds.clear();
    finish();
  }
  static void end_stream(int fd) {
    char text[256];
    while (recv(fd, text, sizeof text, MSG_DONTWAIT) > 0) continue;  // a close with unread text is a reset
    shutdown(fd, SHUT_WR);
  }
  Address to;
  std::vector<Fd> fds;
};

/// An address on the test's network that nobody has: what is sent there waits. Each test has one of its own
/// (`test` below 32), since the neighbour's search of an earlier one may be about to fail.
Address nobody(uint32_t test) {
  Address a = there(9);
  reinterpret_cast<sockaddr_in*>(a.raw())->sin_addr.s_addr ^= htonl(0x40 + test);
  return a;
}

// ---- shutdown() and close() by another thread ----

TEST(Wakes, ShutdownEndsEveryKindOfWait) {
  Holder far(1);
  const int fd = far.fds[0];
  Fd set(epoll_create1(0));
  epoll_event e{EPOLLIN | EPOLLRDHUP, {.u64 = 7}};
  ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e), 0);
  char byte;
  Waiter reads([&] { return shown(recv(fd, &byte, 1, 0)); });
  Waiter peeks([&] { return shown(recv(fd, &byte, 1, MSG_PEEK)); });
  Waiter polls([&] { return polled(fd, POLLIN | POLLRDHUP); });
  Waiter selects([&] { return selected(fd); });
  Waiter waits([&] {
    epoll_event got{};
    const std::string n = shown(epoll_wait(set, &got, 1, kGuard));
    return n + " " + std::to_string(got.events);
  });
  EXPECT_EQ(shutdown(fd, SHUT_RD), 0);
  EXPECT_EQ(reads.said(), "0");
  EXPECT_EQ(peeks.said(), "0");
  EXPECT_EQ(polls.said(), "1 8193");
  EXPECT_EQ(selects.said(), "1");
  EXPECT_EQ(waits.said(), "1 8193");
  const std::string block(64 << 20, 'x');  // more than both ends' buffers take
  Waiter sends([&] { return shown(send(fd, block.data(), block.size(), MSG_NOSIGNAL)); });
  EXPECT_EQ(shutdown(fd, SHUT_WR), 0);
  const std::string sent = sends.said();
  EXPECT_TRUE(atol(sent.c_str()) > 0 && atol(sent.c_str()) < (64 << 20)) << sent;
  EXPECT_EQ(shown(send(fd, "x", 1, MSG_NOSIGNAL)), "EPIPE");
}

// A thread for each connection, and hardly more descriptors than connections.
TEST(Wakes, ThreadsWithoutDescriptorsToSpare) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{256, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  struct sigaction nothing {};
  nothing.sa_handler = [](int) {};
  sigaction(SIGUSR1, &nothing, nullptr);
  {
    constexpr int kTimes = 20;
    Holder far(200);
    std::vector<std::unique_ptr<Waiter>> waiters;
    std::array<std::atomic<bool>, 200> interrupted{};
    for (size_t i = 0; i < far.fds.size(); ++i)
      waiters.push_back(std::make_unique<Waiter>([&, i] {
        std::string said;
        char byte;
        while (said.size() < kTimes) {
          const std::string one = shown(recv(far.fds[i], &byte, 1, 0));
          if (one == "EINTR")
            interrupted[i] = true;
          else
            said += one;
        }
        return said;
      }));
    for (const size_t i : {0, 150})
      while (!interrupted[i]) {
        waiters[i]->interrupt(SIGUSR1);
        usleep(1000);
      }
    for (int i = 0; i < kTimes; ++i) {
      far.say("send");
      EXPECT_EQ(wait_for(far.fds[199], 0, 5), 0);
    }
    for (size_t i = 0; i < waiters.size(); ++i) EXPECT_EQ(waiters[i]->said(), std::string(kTimes, '1')) << i;
  }
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(Wakes, ShutdownEndsAccept) {
  Echo proof(kProof);
  Fd listener = listen_at(here());
  Waiter accepts([&] { return shown(accept(listener, nullptr, nullptr)); });
  Waiter polls([&] { return polled(listener, POLLIN); });
  EXPECT_EQ(shutdown(listener, SHUT_RD), 0);
  EXPECT_EQ(accepts.said(), "EINVAL");
  EXPECT_EQ(polls.said(), "1 16");
  proof.all();
}

TEST(Wakes, ShutdownEndsConnect) {
  Echo proof(kProof);
  Fd fd = tcp_socket();
  Address to = nobody(0);
  Waiter connects([&] { return shown(connect(fd, to.raw(), to.size)); });
  EXPECT_EQ(shutdown(fd, SHUT_RDWR), 0);
  EXPECT_EQ(connects.said(), "ECONNRESET");
  proof.all();
}

TEST(Wakes, ShutdownEndsADatagramsWait) {
  Echo proof(kProof);
  Fd fd = udp_socket();
  Address to = there(9);
  ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
  char byte;
  Waiter reads([&] { return shown(recv(fd, &byte, 1, 0)); });
  EXPECT_EQ(shutdown(fd, SHUT_RDWR), 0);
  EXPECT_EQ(reads.said(), "0");
  EXPECT_EQ(shown(recv(fd, &byte, 1, 0)), "0");
  EXPECT_EQ(shown(recv(fd, &byte, 1, MSG_DONTWAIT)), "EAGAIN");
  proof.all();
}

// close() takes the number; the call that waits has the socket, as in the kernel, and gets what comes.
TEST(Wakes, CloseLeavesTheWaitingCallItsSocket) {
  Holder far(1);
  const int fd = far.fds[0].release();
  Waiter reads([fd] {
    char byte = 0;
    const std::string n = shown(recv(fd, &byte, 1, 0));
    return n + " " + byte;
  });
  EXPECT_EQ(close(fd), 0);
  EXPECT_EQ(shown(send(fd, "x", 1, MSG_NOSIGNAL)), "EBADF");
  far.say("send");
  EXPECT_EQ(reads.said(), "1 !");
}

// ---- sets ----

TEST(Sets, APolledSetWakesAnotherThread) {
  Holder far(1);
  Fd set(epoll_create1(0));
  epoll_event e{EPOLLIN, {.u64 = 7}};
  ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, far.fds[0], &e), 0);
  Waiter polls([&] { return polled(set, POLLIN); });
  Waiter selects([&] { return selected(set); });
  far.say("send");
  EXPECT_EQ(polls.said(), "1 1");
  EXPECT_EQ(selects.said(), "1");
}

// Members of both kinds that are always ready, in one set.
class SetTurns : public testing::Test {
 protected:
  static constexpr uint32_t kOurs = 6, kMembers = 8;
  void SetUp() override {
    far.say("send");
    for (Fd& fd : far.fds) ASSERT_EQ(wait_for(fd, POLLIN), POLLIN);
    for (Fd& fd : far.fds) add(fd);
    for (Fd& fd : events) add(fd);
  }
  void add(int fd) {
    epoll_event e{EPOLLIN, {.u32 = added++}};
    ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e), 0);
  }
  /// Who is told of by a wait that has room for `room`, counted in `turns`.
  void wait(int room) {
    epoll_event found[kMembers];
    ASSERT_EQ(epoll_wait(set, found, room, 0), room);
    for (int i = 0; i < room; ++i) ++turns[found[i].data.u32];
  }

  Holder far{kOurs};
  Fd set{epoll_create1(0)};
  std::array<Fd, 2> events{Fd(eventfd(1, EFD_NONBLOCK)), Fd(eventfd(1, EFD_NONBLOCK))};
  uint32_t added = 0;
  std::array<int, kMembers> turns{};
};

TEST_F(SetTurns, OneAtATime) {
  for (uint32_t i = 0; i < 10 * kMembers; ++i) wait(1);
  for (int count : turns) EXPECT_EQ(count, 10);
}

TEST_F(SetTurns, ThreeAndThenTheOthers) {
  for (uint32_t i = 0; i < 10 * kMembers; ++i) wait(1);  // from where it is known how many the kernel has
  for (int round = 1; round <= 10; ++round) {
    wait(3);
    wait(5);
    for (int count : turns) EXPECT_EQ(count, 10 + round);
  }
}

TEST_F(SetTurns, OfAMemberThatComesAndOneThatGoes) {
  for (uint32_t i = 0; i < 10 * kMembers; ++i) wait(1);
  uint64_t taken;
  ASSERT_EQ(read(events[0], &taken, sizeof taken), 8);
  turns = {};
  for (uint32_t i = 0; i < 10 * (kMembers - 1); ++i) wait(1);
  for (uint32_t i = 0; i < kMembers; ++i) EXPECT_NEAR(turns[i], i == kOurs ? 0 : 10, 1);
  ASSERT_EQ(write(events[0], &taken, sizeof taken), 8);
  turns = {};
  for (uint32_t i = 0; i < 10 * kMembers; ++i) wait(1);
  for (int count : turns) EXPECT_NEAR(count, 10, 1);
}

// ---- what has come before ----

// Each time it is told: a crowd of datagrams for nobody that looks, and a byte on the connection behind it.
// More than one poll takes (256), less than a queue's receive buffers (docs/design/ports.md).
FAR(crowd) {
  Fd listener = listen_at(here());
  near.say(port_of(listener));
  const Fd connection = accept_one(listener), datagrams = udp_socket();
  const Address to = there(static_cast<uint16_t>(near.number()));
  while (near.word() != "end") {
    for (int i = 0; i < 400; ++i) sendto(datagrams, "", 1, 0, to.raw(), to.size);
    write_all(connection, "!");
    near.say("sent");
  }
  wait_for(connection, POLLRDHUP);
}

void ignore_signal(int) {}

class ManyWaiters : public testing::Test {
 protected:
  static constexpr int kRounds = 20;
  void SetUp() override {
    struct sigaction action {};
    action.sa_handler = ignore_signal;
    ASSERT_EQ(sigaction(SIGUSR1, &action, nullptr), 0);
    sigset_t usr1;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &usr1, &open_), 0);
    connection = connect_to(there(static_cast<uint16_t>(far.number())));
    far.say(port_of(nobodys));
    epoll_event e{EPOLLIN, {}};
    ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, connection, &e), 0);
    e.data.u32 = 1;
    ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, kernels, &e), 0);
  }
  void TearDown() override {
    shutdown(connection, SHUT_WR);
    far.say("end");
    far.finish();
    const timespec none{};
    ppoll(nullptr, 0, &none, &open_);  // takes the pending signal
    pthread_sigmask(SIG_SETMASK, &open_, nullptr);
  }
  /// In how many rounds the call tells of the byte. A busy machine brings the last frames after the call now
  /// and then. A call that looks at the first frames only tells in no round.
  template <class Call>
  int told(Call call) {
    int rounds = 0;
    for (int i = 0; i < kRounds; ++i) {
      far.say("go");
      EXPECT_EQ(far.word(), "sent");
      rounds += call();
      char byte;
      EXPECT_EQ(recv(connection, &byte, 1, 0), 1);
    }
    return rounds;
  }
  static constexpr int kEnough = kRounds / 4;
  Far far{"crowd"};
  const Fd nobodys = udp_at(here());
  Fd connection;
  const Fd kernels{eventfd(0, EFD_CLOEXEC)}, set{epoll_create1(EPOLL_CLOEXEC)};
  sigset_t open_{};
};

TEST_F(ManyWaiters, HidesNothingFromALook) {
  EXPECT_GE(told([&] {
              epoll_event events[2];
              return epoll_wait(set, events, 2, 0) == 1;
            }),
            kEnough);
  EXPECT_GE(told([&] {
              pollfd p{connection, POLLIN, 0};
              return poll(&p, 1, 0) == 1;
            }),
            kEnough);
  EXPECT_GE(told([&] {
              fd_set in;
              FD_ZERO(&in);
              FD_SET(connection, &in);
              timeval none{};
              return select(connection + 1, &in, nullptr, nullptr, &none) == 1;
            }),
            kEnough);
}

// The signal is pending when the call begins, and its mask lets it through.
TEST_F(ManyWaiters, ComesBeforeASignal) {
  EXPECT_GE(told([&] {
              raise(SIGUSR1);
              epoll_event events[2];
              return epoll_pwait(set, events, 2, kGuard, &open_) == 1;
            }),
            kEnough);
  EXPECT_GE(told([&] {
              raise(SIGUSR1);
              pollfd p{connection, POLLIN, 0};
              const timespec guard{kGuard / 1000, 0};
              return ppoll(&p, 1, &guard, &open_) == 1;
            }),
            kEnough);
  EXPECT_GE(told([&] {
              raise(SIGUSR1);
              fd_set in;
              FD_ZERO(&in);
              FD_SET(connection, &in);
              const timespec guard{kGuard / 1000, 0};
              return pselect(connection + 1, &in, nullptr, nullptr, &guard, &open_) == 1;
            }),
            kEnough);
}

// A program that the kernel's member tells to end would reset a connection whose text it has not seen.
TEST_F(ManyWaiters, ComesBesideTheKernelsMember) {
  const uint64_t one = 1;
  ASSERT_EQ(write(kernels, &one, sizeof one), 8);
  for (const int timeout : {0, kGuard}) {
    EXPECT_GE(told([&] {
                epoll_event events[2];
                return epoll_wait(set, events, 2, timeout) == 2;
              }),
              kEnough);
    EXPECT_GE(told([&] {
                pollfd both[] = {{connection, POLLIN, 0}, {kernels, POLLIN, 0}};
                return poll(both, 2, timeout) == 2;
              }),
              kEnough);
  }
}

// ---- very many ----

class Many : public testing::Test {
 protected:
  static constexpr int kOurs = 500, kPipes = 1500;
  void SetUp() override {
    const rlimit enough{16384, 16384};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &enough), 0);
    far.emplace(kOurs);
    for (int i = 0; i < kPipes; ++i) {
      int ends[2];
      ASSERT_EQ(pipe(ends), 0);
      readers.emplace_back(ends[0]);
      writers.emplace_back(ends[1]);
    }
  }
  std::optional<Holder> far;
  std::vector<Fd> readers, writers;
};

TEST_F(Many, ArePolled) {
  std::vector<pollfd> list;
  for (int i = 0; i < kPipes; ++i) {
    list.push_back({readers[static_cast<size_t>(i)], POLLIN, 0});
    if (i % 3 == 0) list.push_back({far->fds[static_cast<size_t>(i / 3)], POLLIN, 0});
  }
  EXPECT_EQ(poll(list.data(), list.size(), 0), 0);
  Waiter polls([&] { return shown(poll(list.data(), list.size(), kGuard)); });
  ASSERT_EQ(write(writers[1234], "x", 1), 1);
  EXPECT_EQ(polls.said(), "1");
  far->say("send");
  for (Fd& fd : far->fds) ASSERT_EQ(wait_for(fd, POLLIN), POLLIN);
  EXPECT_EQ(poll(list.data(), list.size(), 0), kOurs + 1);
}

TEST_F(Many, AreSelected) {
  constexpr size_t kBits = 16384;
  std::vector<unsigned long> bits(kBits / 64);  // more than an fd_set holds
  int highest = 0;
  auto add = [&](int fd) {
    bits[static_cast<size_t>(fd) / 64] |= 1ul << (fd % 64);
    highest = std::max(highest, fd);
  };
  for (Fd& fd : readers) add(fd);
  for (Fd& fd : far->fds) add(fd);
  ASSERT_GE(highest, 3000);
  far->say("send");
  for (Fd& fd : far->fds) ASSERT_EQ(wait_for(fd, POLLIN), POLLIN);
  timeval none{};
  EXPECT_EQ(select(highest + 1, reinterpret_cast<fd_set*>(bits.data()), nullptr, nullptr, &none), kOurs);
  for (Fd& fd : far->fds) EXPECT_TRUE(bits[static_cast<size_t>(fd) / 64] >> (fd % 64) & 1);
}

// ---- connections that do not come ----

void nothing(int) {}

TEST(Connect, InterruptedItGoesOnAndIsAskedAgain) {
  Echo proof(kProof);
  struct sigaction action {};
  action.sa_handler = nothing;  // without SA_RESTART
  ASSERT_EQ(sigaction(SIGUSR1, &action, nullptr), 0);
  Fd fd = tcp_socket();
  Address to = nobody(4);
  Waiter connects([&] { return shown(connect(fd, to.raw(), to.size)); });
  connects.interrupt(SIGUSR1);
  EXPECT_EQ(connects.said(), "EINTR");
  set_nonblocking(fd);
  EXPECT_EQ(shown(connect(fd, to.raw(), to.size)), "EALREADY");
  EXPECT_EQ(wait_for(fd, POLLOUT, 0), 0);
  proof.all();
}

TEST(Connect, TimesOut) {
  Echo proof(kProof);
  Fd fd = tcp_socket(), counted = tcp_socket(AF_INET, SOCK_NONBLOCK);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 300);
  set_option(counted, IPPROTO_TCP, TCP_SYNCNT, 1);
  Address to = nobody(8);
  EXPECT_EQ(shown(connect(counted, to.raw(), to.size)), "EINPROGRESS");
  const timeval limit{0, 50000};
  Fd limited = tcp_socket();
  ASSERT_EQ(setsockopt(limited, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
  EXPECT_EQ(shown(connect(limited, to.raw(), to.size)), "EINPROGRESS");
  EXPECT_EQ(shown(connect(limited, to.raw(), to.size)), "EALREADY");
  const std::string said = shown(connect(fd, to.raw(), to.size));
  EXPECT_TRUE(said == "ETIMEDOUT" || said == "EHOSTUNREACH") << said;  // whether ARP gives up first
  EXPECT_NE(wait_for(counted, POLLIN) & POLLERR, 0);
  const int error = get_option(counted, SOL_SOCKET, SO_ERROR);
  EXPECT_TRUE(error == ETIMEDOUT || error == EHOSTUNREACH) << error;
  proof.all();
}

TEST(Connect, NoRouteNoPeer) {
  Echo proof(kProof);
  Fd fd = tcp_socket(), datagrams = udp_socket();
  const Address away = address("192.0.2.1", 9);
  EXPECT_EQ(shown(connect(fd, away.raw(), away.size)), "ENETUNREACH");
  EXPECT_EQ(shown(sendto(datagrams, "x", 1, 0, away.raw(), away.size)), "ENETUNREACH");
  EXPECT_EQ(shown(connect(datagrams, away.raw(), away.size)), "ENETUNREACH");
  proof.all();
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Time, IsTheKernelsWhateverTheProgramIsTold) {
  Echo far(kProof);
  exchange(far.fd, "x");
  alarm(30);  // it would wait for ever
  time_stands = true;
  EXPECT_EQ(wait_for(far.fd, POLLIN, 50), 0);
  time_stands = false;
  alarm(0);
  exchange(far.fd, "y");
  EXPECT_EQ(far.all(), "xy");
}
#endif

}  // namespace
