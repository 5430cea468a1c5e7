// epoll, poll and select with sockets and kernel descriptors side by side.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>

#include <array>
#include <atomic>
#include <map>
#include <thread>
#include <vector>

#include "posix/far.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

constexpr int kGuard = 20000;

// Accepts, then does as near says: "send TEXT", "urgent", "close", "shut", "reset".
FAR(puppet) {
  Fd listener = listen_at(here());
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  for (;;) {
    std::string order = near.word();
    if (order.rfind("send ", 0) == 0) {
      write_all(fd, order.substr(5));
    } else if (order == "urgent") {
      EXPECT_EQ(send(fd, "!", 1, MSG_OOB), 1);
    } else if (order == "reset") {
      const linger at_once{1, 0};
      setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
      fd.reset();
    } else if (order == "shut") {
      shutdown(fd, SHUT_WR);
    } else if (order == "read") {
      near.say(std::to_string(read_exactly(fd, 1).size()));
      continue;
    } else {
      break;
    }
  }
}

struct Puppet : Far {
  Puppet() : Far("puppet"), fd(connect_to(there(static_cast<uint16_t>(number())))) {}
  ~Puppet() {
    say("close");
    finish();
  }
  Fd fd;
};

epoll_event wait_one(int set, int timeout = kGuard) {
  epoll_event e{};
  int n = epoll_wait(set, &e, 1, timeout);
  if (n <= 0) e.events = 0;
  return e;
}

void add(int set, int fd, uint32_t events) {
  epoll_event e{};
  e.events = events;
  e.data.u64 = static_cast<uint64_t>(fd) | 0xabcd00000000;
  ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e), 0) << strerror(errno);
}

TEST(Epoll, LevelStaysUntilRead) {
  Puppet p;
  Fd set(epoll_create1(EPOLL_CLOEXEC));
  add(set, p.fd, EPOLLIN);
  EXPECT_EQ(wait_one(set, 0).events, 0u);
  p.say("send ab");
  epoll_event e = wait_one(set);
  EXPECT_EQ(e.events, static_cast<uint32_t>(EPOLLIN));
  EXPECT_EQ(e.data.u64, static_cast<uint64_t>(p.fd) | 0xabcd00000000);
  EXPECT_EQ(wait_one(set).events, static_cast<uint32_t>(EPOLLIN));
  EXPECT_EQ(read_exactly(p.fd, 2), "ab");
  EXPECT_EQ(wait_one(set, 0).events, 0u);
}

TEST(Epoll, EdgeComesOncePerArrival) {
  Puppet p;
  Fd set(epoll_create1(0));
  add(set, p.fd, EPOLLIN | EPOLLET);
  p.say("send a");
  EXPECT_EQ(wait_one(set).events, static_cast<uint32_t>(EPOLLIN));
  EXPECT_EQ(wait_one(set, 0).events, 0u);
  p.say("send b");
  EXPECT_EQ(wait_one(set).events, static_cast<uint32_t>(EPOLLIN));
  EXPECT_EQ(read_exactly(p.fd, 2), "ab");
}

TEST(Epoll, OneshotIsRearmed) {
  Puppet p;
  Fd set(epoll_create1(0));
  add(set, p.fd, EPOLLIN | EPOLLONESHOT);
  p.say("send a");
  EXPECT_EQ(wait_one(set).events, static_cast<uint32_t>(EPOLLIN));
  EXPECT_EQ(wait_one(set, 0).events, 0u);
  epoll_event e{};
  e.events = EPOLLIN | EPOLLONESHOT;
  ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_MOD, p.fd, &e), 0);
  EXPECT_EQ(wait_one(set).events, static_cast<uint32_t>(EPOLLIN));
}

TEST(Epoll, WritableAndHangups) {
  Puppet p;
  Fd set(epoll_create1(0));
  add(set, p.fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
  EXPECT_EQ(wait_one(set).events, static_cast<uint32_t>(EPOLLOUT));
  p.say("shut");
  EXPECT_EQ(wait_for(p.fd, POLLRDHUP) & POLLRDHUP, POLLRDHUP);
  EXPECT_EQ(wait_one(set).events, static_cast<uint32_t>(EPOLLIN | EPOLLOUT | EPOLLRDHUP));
}

TEST(Epoll, UrgentDataForAClosedReaderIsSeen) {
  Puppet far;
  Fd set(epoll_create1(0));
  add(set, far.fd, EPOLLPRI | EPOLLET);
  ASSERT_EQ(shutdown(far.fd, SHUT_RDWR), 0);
  far.say("urgent");
  epoll_event e = wait_one(set);
  while (e.events != 0 && (e.events & EPOLLERR) == 0) e = wait_one(set);  // nobody reads it: a reset
  EXPECT_TRUE(e.events & EPOLLPRI);
}

TEST(Epoll, KernelAndOwnMembersTogether) {
  Puppet p;
  Fd event(eventfd(0, EFD_NONBLOCK));
  Fd set(epoll_create1(0));
  add(set, p.fd, EPOLLIN);
  add(set, event, EPOLLIN);
  eventfd_write(event, 1);
  EXPECT_EQ(wait_one(set).data.u64 & 0xffff, static_cast<uint64_t>(event));
  p.say("send z");
  EXPECT_EQ(wait_for(p.fd, POLLIN), POLLIN);
  epoll_event both[4];
  EXPECT_EQ(epoll_wait(set, both, 4, kGuard), 2);
}

TEST(Epoll, AnotherThreadsEventWakesTheSleeper) {
  Puppet p;
  Fd event(eventfd(0, EFD_NONBLOCK));
  Fd set(epoll_create1(0));
  add(set, p.fd, EPOLLIN);
  add(set, event, EPOLLIN);
  std::thread waker([&] { eventfd_write(event, 1); });
  EXPECT_EQ(wait_one(set).data.u64 & 0xffff, static_cast<uint64_t>(event));
  waker.join();
}

// A set of the kernel's members only: its sleepers are in the kernel when it gets its first of ours.
TEST(Epoll, SleepersOfAPlainSetHearOfItsFirstSocket) {
  Puppet p;
  Fd event(eventfd(0, EFD_NONBLOCK));
  Fd set(epoll_create1(0));
  add(set, event, EPOLLIN);
  EXPECT_EQ(wait_one(set, 0).events, 0u);
  for (int round = 0; round < 2; ++round) {
    std::atomic<pid_t> ids[2] = {};
    uint64_t heard[2] = {};
    std::thread sleepers[2];
    for (int i = 0; i < 2; ++i)
      sleepers[i] = std::thread([&, i] {
        ids[i] = gettid();
        heard[i] = wait_one(set).data.u64 & 0xffff;
      });
    for (auto& id : ids) until_asleep(id);
    if (round == 0) add(set, p.fd, EPOLLIN);
    p.say("send a");
    for (auto& s : sleepers) s.join();
    EXPECT_EQ(heard[0], static_cast<uint64_t>(p.fd));
    EXPECT_EQ(heard[1], static_cast<uint64_t>(p.fd));
    EXPECT_EQ(read_exactly(p.fd, 1), "a");
  }
  eventfd_write(event, 1);
  EXPECT_EQ(wait_one(set).data.u64 & 0xffff, static_cast<uint64_t>(event));
}

TEST(Epoll, ErrorsAreTheKernels) {
  Puppet p;
  Fd set(epoll_create1(0));
  epoll_event e{};
  EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_MOD, p.fd, &e), -1);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_DEL, p.fd, &e), -1);
  EXPECT_EQ(errno, ENOENT);
  add(set, p.fd, EPOLLIN);
  EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, p.fd, &e), -1);
  EXPECT_EQ(errno, EEXIST);
  EXPECT_EQ(epoll_wait(set, &e, 0, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(epoll_ctl(p.fd, EPOLL_CTL_ADD, set, &e), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST(Epoll, AClosedMemberLeaves) {
  Puppet p;
  Fd set(epoll_create1(0));
  add(set, p.fd, EPOLLIN | EPOLLOUT);
  EXPECT_EQ(wait_one(set).events, static_cast<uint32_t>(EPOLLOUT));
  p.fd.reset();
  EXPECT_EQ(wait_one(set, 0).events, 0u);
}

// A set knows its members by number and file: the file lives on by a dup, the number names another one.
TEST(Epoll, AMemberWhoseNumberIsClosedLivesOnByItsDup) {
  Puppet p;
  Fd set(epoll_create1(0));
  add(set, p.fd, EPOLLIN);
  const int number = p.fd;
  Fd twin(dup(p.fd));
  p.fd.reset();
  p.say("send a");
  EXPECT_EQ(wait_one(set).data.u64 & 0xffff, static_cast<uint64_t>(number));
  epoll_event e{EPOLLIN, {}};
  EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_MOD, number, &e), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_DEL, number, &e), -1);
  EXPECT_EQ(errno, EBADF);
  twin.reset();
  EXPECT_EQ(wait_one(set, 0).events, 0u);
}

TEST(Epoll, AMemberThatIsReplacedByDup2Leaves) {
  Puppet p, other;
  Fd set(epoll_create1(0));
  add(set, p.fd, EPOLLOUT);
  EXPECT_NE(wait_one(set).events, 0u);
  ASSERT_EQ(dup2(other.fd, p.fd), static_cast<int>(p.fd));
  EXPECT_EQ(wait_one(set, 0).events, 0u);
  add(set, p.fd, EPOLLOUT);
  EXPECT_NE(wait_one(set).events, 0u);
}

// Connects when told to, and holds what it has.
FAR(caller) {
  std::vector<Fd> held;
  for (std::string order; (order = near.word()) != "end";)
    held.push_back(connect_to(there(static_cast<uint16_t>(std::stoi(order)))));
}

TEST(Epoll, AnExclusiveMemberWakesOneSetOnly) {
  Fd listener = listen_at(here());
  set_nonblocking(listener);
  std::vector<Fd> sets;
  std::atomic<int> woken{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    sets.emplace_back(epoll_create1(0));
    add(sets.back(), listener, EPOLLIN | EPOLLEXCLUSIVE);
  }
  std::atomic<pid_t> ids[4] = {};
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      ids[i] = gettid();
      woken += wait_one(sets[static_cast<size_t>(i)], 1500).events != 0;
    });
  for (auto& id : ids) until_asleep(id);
  Far far("caller");
  far.say(port_of(listener));
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(woken, 1);
  epoll_event e{EPOLLIN, {}};
  EXPECT_EQ(epoll_ctl(sets[0], EPOLL_CTL_MOD, listener, &e), -1);
  EXPECT_EQ(errno, EINVAL);
  far.say("end");
  far.finish();
}

TEST(Epoll, ASetInASet) {
  Puppet p;
  Fd inner(epoll_create1(0)), outer(epoll_create1(0));
  add(inner, p.fd, EPOLLIN);
  add(outer, inner, EPOLLIN);
  EXPECT_EQ(wait_one(outer, 0).events, 0u);
  p.say("send n");
  EXPECT_EQ(wait_one(outer).data.u64 & 0xffff, static_cast<uint64_t>(inner));
  EXPECT_EQ(wait_one(inner).data.u64 & 0xffff, static_cast<uint64_t>(p.fd));
  EXPECT_EQ(wait_for(inner, POLLIN), POLLIN);
}

TEST(Epoll, EachShutdownIsAnEdge) {
  Puppet p;
  Fd set(epoll_create1(EPOLL_CLOEXEC));
  add(set, p.fd, EPOLLIN | EPOLLET);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(wait_one(set, 0).events, 0u);
    EXPECT_EQ(shutdown(p.fd, SHUT_RD), 0);
    EXPECT_EQ(wait_one(set, 0).events, static_cast<uint32_t>(EPOLLIN));
  }
  EXPECT_EQ(wait_one(set, 0).events, 0u);
  p.say("reset");
  EXPECT_EQ(wait_one(set).events, static_cast<uint32_t>(EPOLLIN | EPOLLERR | EPOLLHUP));
  char byte;
  EXPECT_EQ(recv(p.fd, &byte, 1, 0), -1);
  EXPECT_EQ(errno, ECONNRESET);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(shutdown(p.fd, SHUT_WR), -1);
    EXPECT_EQ(errno, ENOTCONN);
    EXPECT_EQ(wait_one(set, 0).events, static_cast<uint32_t>(EPOLLIN | EPOLLHUP));
    EXPECT_EQ(wait_one(set, 0).events, 0u);
  }
}

// inet_shutdown() wakes those who poll, also where it changes nothing.
TEST(Epoll, AListenersShutdownForWritingIsAnEdge) {
  Fd listener = listen_at(here());
  Fd set(epoll_create1(EPOLL_CLOEXEC));
  add(set, listener, EPOLLIN | EPOLLET);
  Far far("dial", {std::to_string(port_of(listener))});
  EXPECT_EQ(wait_one(set).events, static_cast<uint32_t>(EPOLLIN));
  EXPECT_EQ(wait_one(set, 0).events, 0u);
  EXPECT_EQ(shutdown(listener, SHUT_WR), 0);
  EXPECT_EQ(wait_one(set, 0).events, static_cast<uint32_t>(EPOLLIN));
  EXPECT_EQ(wait_one(set, 0).events, 0u);
  Fd fd = accept_one(listener);
  fd.reset();
  far.finish();
}

TEST(Epoll, AListenerBecomesReadable) {
  Fd listener = listen_at(here());
  set_nonblocking(listener);
  Fd set(epoll_create1(0));
  add(set, listener, EPOLLIN);
  EXPECT_EQ(accept4(listener, nullptr, nullptr, 0), -1);
  EXPECT_EQ(errno, EAGAIN);
  Far far("dial", {std::to_string(port_of(listener))});
  EXPECT_EQ(wait_one(set).events, static_cast<uint32_t>(EPOLLIN));
  Fd fd(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK));
  ASSERT_GE(fd, 0);
  EXPECT_TRUE(fcntl(fd, F_GETFL) & O_NONBLOCK);
  far.finish();
}

FAR(dial) { connect_to(there(static_cast<uint16_t>(std::stoi(args[0])))); }

// It wants no company among its like; the others hear all the same, and before it.
TEST(Epoll, AnExclusiveMemberLeavesTheOthersTheirEvent) {
  Puppet p;
  Fd exclusive(epoll_create1(0)), plain(epoll_create1(0));
  std::atomic<pid_t> ids[2] = {};
  std::atomic<uint32_t> heard[2] = {};
  std::vector<std::thread> threads;
  auto wait_on = [&](size_t i, int set) {
    ids[i] = gettid();
    heard[i] = wait_one(set).events;
  };
  add(plain, p.fd, EPOLLIN);
  add(exclusive, p.fd, EPOLLIN | EPOLLEXCLUSIVE);
  threads.emplace_back(wait_on, 0, static_cast<int>(plain));
  threads.emplace_back(wait_on, 1, static_cast<int>(exclusive));
  for (auto& id : ids) until_asleep(id);
  p.say("send x");
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(heard[0], static_cast<uint32_t>(EPOLLIN));
  EXPECT_EQ(heard[1], static_cast<uint32_t>(EPOLLIN));
}

TEST(Epoll, TheNewestMemberIsFirstAndExclusiveOnesLast) {
  Puppet p;
  Fd set(epoll_create1(0)), twin(dup(p.fd)), third(dup(p.fd));
  add(set, p.fd, EPOLLIN | EPOLLET);
  add(set, twin, EPOLLIN | EPOLLET | EPOLLEXCLUSIVE);
  add(set, third, EPOLLIN | EPOLLET);
  EXPECT_EQ(wait_one(set, 0).events, 0u);
  p.say("send x");
  epoll_event got[4];
  EXPECT_EQ(wait_for(p.fd, POLLIN), POLLIN);
  ASSERT_EQ(epoll_wait(set, got, 4, kGuard), 3);
  EXPECT_EQ(got[0].data.u64 & 0xffff, static_cast<uint64_t>(third));
  EXPECT_EQ(got[1].data.u64 & 0xffff, static_cast<uint64_t>(p.fd));
  EXPECT_EQ(got[2].data.u64 & 0xffff, static_cast<uint64_t>(twin));
}

TEST(Poll, MixedAndInvalid) {
  Puppet p;
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  Fd in(pipes[0]), out(pipes[1]);
  pollfd list[] = {{p.fd, POLLIN | POLLOUT, 0}, {in, POLLIN, 0}, {-1, POLLIN, 77}, {1000000, POLLIN, 0}};
  EXPECT_EQ(poll(list, 4, kGuard), 2);
  EXPECT_EQ(list[0].revents, POLLOUT);
  EXPECT_EQ(list[1].revents, 0);
  EXPECT_EQ(list[2].revents, 0);
  EXPECT_EQ(list[3].revents, POLLNVAL);
  ASSERT_EQ(write(out, "k", 1), 1);
  p.say("send m");
  EXPECT_EQ(wait_for(p.fd, POLLIN), POLLIN);
  EXPECT_EQ(poll(list, 2, kGuard), 2);
  EXPECT_EQ(list[0].revents, POLLIN | POLLOUT);
  EXPECT_EQ(list[1].revents, POLLIN);
}

// While one sleeps another thread's calls may take the frame that it waits for.
TEST(Poll, AnotherThreadTakesTheFrame) {
  Puppet p, other;
  std::atomic<bool> done{false};
  std::thread caller([&] {
    char c;
    while (!done) (void)!recv(other.fd, &c, 1, MSG_DONTWAIT);
  });
  for (int i = 0; i < 20; ++i) {
    std::atomic<pid_t> id{0};
    std::thread sleeper([&] {
      id = gettid();
      pollfd entry = {p.fd, POLLIN, 0};
      EXPECT_EQ(poll(&entry, 1, kGuard), 1);
      EXPECT_EQ(read_exactly(p.fd, 1), "m");
    });
    until_asleep(id);
    p.say("send m");
    sleeper.join();
  }
  done = true;
  caller.join();
}

TEST(Select, ReadWriteAndTimeLeft) {
  Puppet p;
  fd_set read, write;
  FD_ZERO(&read);
  FD_ZERO(&write);
  FD_SET(p.fd, &read);
  FD_SET(p.fd, &write);
  timeval t{20, 0};
  EXPECT_EQ(select(p.fd + 1, &read, &write, nullptr, &t), 1);
  EXPECT_FALSE(FD_ISSET(p.fd, &read));
  EXPECT_TRUE(FD_ISSET(p.fd, &write));
  p.say("send m");
  FD_SET(p.fd, &read);
  t = {20, 0};
  EXPECT_EQ(select(p.fd + 1, &read, nullptr, nullptr, &t), 1);
  EXPECT_TRUE(FD_ISSET(p.fd, &read));
  EXPECT_LE(t.tv_sec, 20);
  EXPECT_EQ(read_exactly(p.fd, 1), "m");
  FD_ZERO(&read);
  FD_SET(p.fd, &read);
  t = {0, 1000};
  EXPECT_EQ(select(p.fd + 1, &read, nullptr, nullptr, &t), 0);
  EXPECT_EQ(t.tv_usec, 0);
}

// ---- what the differential fuzzer found ----

volatile sig_atomic_t delivered = 0;

/// A pending signal that only the call's mask lets through; `wait` gives a call's result.
template <class Wait>
std::string with_pending_signal(Wait wait) {
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) { delivered = 1; };
  sigaction(SIGUSR1, &action, &before);
  sigset_t blocked, mask;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  sigprocmask(SIG_BLOCK, &blocked, &mask);
  delivered = 0;
  raise(SIGUSR1);
  const int n = wait(&mask);
  std::string text = n < 0 ? strerrorname_np(errno) : std::to_string(n);
  if (delivered) text += " delivered";
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  sigaction(SIGUSR1, &before, nullptr);
  return text;
}

TEST(Signals, PendingEndALookThatFindsNothing) {
  Puppet p;
  const timespec none{};
  short events = POLLIN;
  auto polled = [&](const sigset_t* mask) {
    pollfd one{p.fd, events, 0};
    return ppoll(&one, 1, &none, mask);
  };
  auto selected = [&](const sigset_t* mask) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(p.fd, &set);
    return pselect(p.fd + 1, events == POLLIN ? &set : nullptr, events == POLLIN ? nullptr : &set, nullptr,
                   &none, mask);
  };
  EXPECT_EQ(with_pending_signal(polled), "EINTR delivered");
  EXPECT_EQ(with_pending_signal(selected), "EINTR delivered");
  Fd set(epoll_create1(0));
  add(set, p.fd, EPOLLIN);
  EXPECT_EQ(with_pending_signal([&](const sigset_t* mask) {
              epoll_event e;
              return epoll_pwait(set, &e, 1, 0, mask);
            }),
            "0");
  events = POLLOUT;
  EXPECT_EQ(with_pending_signal(polled), "1");
  EXPECT_EQ(with_pending_signal(selected), "1");
}

TEST(Epoll, MoreRoomToSendIsAnEdge) {
  Puppet p;
  Fd udp = udp_at(here());
  for (const int fd : {static_cast<int>(p.fd), static_cast<int>(udp)}) {
    Fd set(epoll_create1(0));
    add(set, fd, EPOLLOUT | EPOLLET);
    EXPECT_EQ(wait_one(set).events, static_cast<uint32_t>(EPOLLOUT));
    EXPECT_EQ(wait_one(set, 0).events, 0u);
    set_option(fd, SOL_SOCKET, SO_SNDBUF, 150000);
    EXPECT_EQ(wait_one(set, 0).events, static_cast<uint32_t>(EPOLLOUT));
  }
}

// The number by which it was added first is closed, another one not.
TEST(Epoll, BothNumbersOfADisconnectedSocketAreTold) {
  Puppet p;
  Fd set(epoll_create1(0));
  add(set, p.fd, EPOLLIN | EPOLLOUT | EPOLLET);
  EXPECT_EQ(wait_one(set).events, static_cast<uint32_t>(EPOLLOUT));
  Fd other(dup(p.fd));
  p.fd.reset();
  add(set, other, EPOLLPRI);
  sockaddr none{};
  none.sa_family = AF_UNSPEC;
  ASSERT_EQ(connect(other, &none, sizeof none), 0);
  get_option(other, SOL_SOCKET, SO_ERROR);
  epoll_event e[2]{};
  EXPECT_EQ(epoll_wait(set, e, 2, 0), 2);
}

TEST(Epoll, EachMemberHasItsTurnWhereOnlyOneIsTold) {
  constexpr int kOurs = 6, kRounds = 20;
  std::array<Puppet, kOurs> puppets;
  Fd set(epoll_create1(0));
  std::map<int, int> turns;
  for (Puppet& p : puppets) {
    add(set, p.fd, EPOLLIN);
    turns[p.fd] = 0;
    p.say("send x");
    ASSERT_NE(wait_for(p.fd, POLLIN), 0);
  }
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const Fd out(ends[0]), in(ends[1]), event(eventfd(1, 0));
  ASSERT_EQ(write(in, "x", 1), 1);
  for (int fd : {static_cast<int>(out), static_cast<int>(event)}) {
    add(set, fd, EPOLLIN);
    turns[fd] = 0;
  }
  for (int i = 0; i < kRounds * (kOurs + 2); ++i)
    ++turns[static_cast<int>(wait_one(set).data.u64 & 0xffffffff)];
  ASSERT_EQ(turns.size(), size_t{kOurs + 2});
  for (const auto& [fd, n] : turns) EXPECT_NEAR(n, kRounds, 1) << fd;
}

}  // namespace
