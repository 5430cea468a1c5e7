// Members of an epoll set whose number is closed while another names the same file: they stay, and are told
// of by their old data (epoll(7), question 6).
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <atomic>
#include <thread>

#include "posix/far.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

constexpr int kGuard = 20000;
constexpr uint64_t kOld = 7, kNew = 8;

// Accepts, then sends what near says; "." ends.
FAR(speaker) {
  Fd listener = listen_at(here());
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  for (std::string text; (text = near.word()) != ".";) write_all(fd, text);
}

// Sends a datagram to here's port each time it is told.
FAR(caller) {
  Fd fd = udp_socket();
  const Address to = there(static_cast<uint16_t>(std::stoi(args[0])));
  while (near.word() != ".") EXPECT_EQ(sendto(fd, "d", 1, 0, to.raw(), to.size), 1);
}

FAR(dialler) {
  Fd fd = connect_to(there(static_cast<uint16_t>(std::stoi(args[0]))));
  EXPECT_EQ(read_to_end(fd), "");
}

void add(int set, int fd, uint32_t events, uint64_t data) {
  epoll_event e{events, {.u64 = data}};
  ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e), 0) << strerror(errno);
}

int change(int set, int operation, int fd) {
  epoll_event e{EPOLLIN, {}};
  return epoll_ctl(set, operation, fd, &e) == 0 ? 0 : errno;
}

/// What the set tells: events by data, sorted; "" when nothing.
std::string told(int set, int timeout = 0) {
  epoll_event events[8];
  const int n = epoll_wait(set, events, 8, timeout);
  std::string all;
  for (const uint64_t data : {kOld, kNew})
    for (int i = 0; i < n; ++i)
      if (events[i].data.u64 == data)
        all += std::to_string(data) + ":" + std::to_string(events[i].events) + " ";
  return all;
}

/// The same while `cause` happens once the caller sleeps: with nothing to tell it must not spin.
template <class F>
std::string told_asleep(int set, F cause) {
  std::atomic<pid_t> id{0};
  std::string all;
  std::thread waiter([&] {
    id = gettid();
    all = told(set, kGuard);
  });
  until_asleep(id);
  cause();
  waiter.join();
  return all;
}

/// What becomes of a number that is closed: nothing, or another file's.
class ClosedNumber : public testing::TestWithParam<bool> {
 protected:
  /// Closes the number; the file has another one now.
  Fd rename(Fd& fd) {
    Fd other(dup(fd));
    const int number = fd;
    if (GetParam()) {
      EXPECT_EQ(dup2(event_, number), number);
      number_ = Fd(fd.release());
    } else {
      fd.reset();
    }
    return other;
  }
  int gone() const { return GetParam() ? ENOENT : EBADF; }
  Fd event_{eventfd(0, 0)}, number_;
};

TEST_P(ClosedNumber, OfASocketThatConnectsLater) {
  Far far("speaker");
  const auto port = static_cast<uint16_t>(far.number());
  Fd set(epoll_create1(0)), fd = tcp_socket();
  const int number = fd;
  add(set, fd, EPOLLIN, kOld);
  EXPECT_EQ(told(set), "7:16 ");  // EPOLLHUP
  Fd other = rename(fd);
  EXPECT_EQ(told(set), "7:16 ");
  const Address to = there(port);
  ASSERT_EQ(connect(other, to.raw(), to.size), 0);
  EXPECT_EQ(told(set), "");
  EXPECT_EQ(told_asleep(set, [&] { far.say("a"); }), "7:1 ");
  EXPECT_EQ(told(set), "7:1 ");
  EXPECT_EQ(read_exactly(other, 1), "a");
  EXPECT_EQ(told(set), "");
  EXPECT_EQ(change(set, EPOLL_CTL_MOD, number), gone());
  EXPECT_EQ(change(set, EPOLL_CTL_DEL, number), gone());
  EXPECT_EQ(change(set, EPOLL_CTL_DEL, other), ENOENT);
  add(set, other, EPOLLIN, kNew);
  EXPECT_EQ(change(set, EPOLL_CTL_ADD, other), EEXIST);
  far.say("b");
  EXPECT_EQ(wait_for(other, POLLIN), POLLIN);
  EXPECT_EQ(told(set), "7:1 8:1 ");
  EXPECT_EQ(read_exactly(other, 1), "b");
  EXPECT_EQ(change(set, EPOLL_CTL_DEL, other), 0);
  EXPECT_EQ(told_asleep(set, [&] { far.say("c"); }), "7:1 ");
  other.reset();
  EXPECT_EQ(told(set), "");
  far.say(".");
  far.finish();
}

TEST_P(ClosedNumber, OfAConnectionThatIsDissolved) {
  Far far("speaker");
  Fd set(epoll_create1(0)), fd = connect_to(there(static_cast<uint16_t>(far.number())));
  add(set, fd, EPOLLIN, kOld);
  Fd other = rename(fd);
  const sockaddr nobody{AF_UNSPEC, {}};
  ASSERT_EQ(connect(other, &nobody, sizeof nobody), 0);
  EXPECT_EQ(told(set), "7:24 ");         // EPOLLERR too
  Fd third(fcntl(other, F_DUPFD, 100));  // not the number that the set knows
  other.reset();
  EXPECT_EQ(told(set), "7:24 ");
  add(set, third, EPOLLIN, kNew);
  EXPECT_EQ(told(set), "7:24 8:24 ");
  EXPECT_EQ(change(set, EPOLL_CTL_DEL, third), 0);
  EXPECT_EQ(told(set), "7:24 ");
  Far second("speaker");
  const Address to = there(static_cast<uint16_t>(second.number()));
  ASSERT_EQ(connect(third, to.raw(), to.size), 0);
  EXPECT_EQ(told_asleep(set, [&] { second.say("a"); }), "7:1 ");
  third.reset();
  EXPECT_EQ(told(set), "");
  far.say(".");
  second.say(".");
  far.finish();
  second.finish();
}

TEST_P(ClosedNumber, OfADatagramSocket) {
  Fd set(epoll_create1(0)), fd = udp_at(here());
  Far far("caller", {std::to_string(port_of(fd))});
  add(set, fd, EPOLLIN, kOld);
  Fd other = rename(fd);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(told_asleep(set, [&] { far.say("d"); }), "7:1 ");
    EXPECT_EQ(told(set), "7:1 ");
    EXPECT_EQ(read_exactly(other, 1), "d");
    EXPECT_EQ(told(set), "");
  }
  add(set, other, EPOLLIN | EPOLLONESHOT, kNew);
  far.say("d");
  EXPECT_EQ(wait_for(other, POLLIN), POLLIN);
  EXPECT_EQ(told(set), "7:1 8:1 ");
  EXPECT_EQ(told(set), "7:1 ");
  other.reset();
  EXPECT_EQ(told(set), "");
  far.say(".");
  far.finish();
}

TEST_P(ClosedNumber, OfAListenerThatTellsOnce) {
  Fd set(epoll_create1(0)), fd = listen_at(here());
  const std::string port = std::to_string(port_of(fd));
  add(set, fd, EPOLLIN | EPOLLONESHOT, kOld);
  Fd other = rename(fd);
  Far first("dialler", {port});
  EXPECT_EQ(told(set, kGuard), "7:1 ");
  EXPECT_EQ(told(set), "");
  add(set, other, EPOLLIN, kNew);
  EXPECT_EQ(told(set), "8:1 ");
  accept_one(other).reset();
  Far second("dialler", {port});
  EXPECT_EQ(told(set, kGuard), "8:1 ");
  accept_one(other).reset();
  first.finish();
  second.finish();
}

TEST_P(ClosedNumber, OfASetInASet) {
  Far far("speaker");
  Fd socket = connect_to(there(static_cast<uint16_t>(far.number())));
  Fd outer(epoll_create1(0)), inner(epoll_create1(0)), event(eventfd(0, EFD_NONBLOCK));
  add(inner, socket, EPOLLIN, kNew);
  add(inner, event, EPOLLIN, kNew);
  add(outer, inner, EPOLLIN, kOld);
  Fd other = rename(inner);
  EXPECT_EQ(told(outer), "");
  EXPECT_EQ(told_asleep(outer, [&] { far.say("a"); }), "7:1 ");
  EXPECT_EQ(read_exactly(socket, 1), "a");
  EXPECT_EQ(told(outer), "");
  EXPECT_EQ(told_asleep(outer, [&] { eventfd_write(event, 1); }), "7:1 ");
  eventfd_t value;
  eventfd_read(event, &value);
  EXPECT_EQ(told(outer), "");
  other.reset();
  far.say("a");
  EXPECT_EQ(wait_for(socket, POLLIN), POLLIN);
  EXPECT_EQ(told(outer), "");
  far.say(".");
  far.finish();
}

INSTANTIATE_TEST_SUITE_P(And, ClosedNumber, testing::Bool(),
                         [](const auto& of) { return of.param ? "Reused" : "Free"; });

}  // namespace
