// Processes that give up root: before they listen, between fork() and accept(), with live connections.
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "posix/echo.h"

extern "C" int capset(cap_user_header_t header, const cap_user_data_t sets);  // glibc has it, and no header

using namespace posix_test;  // NOLINT: a test program

namespace {

constexpr uid_t kNobody = 65534;
constexpr uint16_t kPrivilegedPort = 80;
constexpr int kTrips = 40;  // so that they can be counted, whatever the kernel carries later
constexpr size_t kAnswer = 30'000;

// Connects, echoes kTrips bytes; then sends kAnswer bytes and ends its stream, reads ours to its end and says
// how much came.
FAR(caller) {
  Fd fd = connect_to(there(static_cast<uint16_t>(std::stoi(args.at(0)))));
  for (int i = 0; i < kTrips; ++i) write_all(fd, read_exactly(fd, 1));
  write_all(fd, pattern(kAnswer));
  shutdown(fd, SHUT_WR);
  near.word();
  near.say(static_cast<long>(read_to_end(fd).size()));
}

// Sends datagrams to the port and waits for each one's echo.
FAR(asker) {
  Fd fd = udp_at(here());
  const Address to = there(static_cast<uint16_t>(std::stoi(args.at(0))));
  char byte = 'x';
  for (int i = 0; i < kTrips; ++i) {
    if (sendto(fd, &byte, 1, 0, to.raw(), to.size) != 1 || recv(fd, &byte, 1, 0) != 1)
      throw std::runtime_error("no echo");
  }
}

Fd accept_and_talk(int listener) {
  Fd fd = accept_one(listener);
  for (int i = 0; i < kTrips; ++i) exchange(fd, "x");
  return fd;
}

void expect_rest(int fd) { EXPECT_EQ(read_to_end(fd), pattern(kAnswer)); }

/// `serve` in a child that has root still; the caller must get `expected` bytes.
template <class F>
void with_caller(uint16_t port, long expected, F serve) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = in_child([&] { serve(ready[1]); });
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  Far far("caller", {std::to_string(port)});
  far.say("read");
  EXPECT_EQ(far.number(), expected);
  EXPECT_EQ(status_of(child), 0);
  far.finish();
  close(ready[0]);
  close(ready[1]);
}

void say_ready(int pipe) { ASSERT_EQ(write(pipe, "r", 1), 1); }

TEST(Privilege, AListenerServesWithoutIt) {
  with_caller(kPrivilegedPort, 0, [](int ready) {
    Fd listener = listen_at(here(kPrivilegedPort));
    ASSERT_EQ(setuid(kNobody), 0);
    say_ready(ready);
    expect_rest(accept_and_talk(listener));
  });
}

TEST(Privilege, AWorkerGivesItUpBeforeItAccepts) {
  with_caller(kPrivilegedPort, 0, [](int ready) {
    Fd listener = listen_at(here(kPrivilegedPort));
    const pid_t worker = in_child([&] {
      ASSERT_EQ(setresuid(kNobody, kNobody, kNobody), 0);
      say_ready(ready);
      expect_rest(accept_and_talk(listener));
    });
    EXPECT_EQ(status_of(worker), 0);
  });
}

// As Varnish's master: what it does as another user takes no queue from the child that listens.
TEST(Privilege, AMasterIsAnotherUserForAWhile) {
  with_caller(kPrivilegedPort, 0, [](int ready) {
    Fd listener = tcp_socket();
    const Address own = here(kPrivilegedPort);
    set_option(listener, SOL_SOCKET, SO_REUSEADDR, 1);
    ASSERT_EQ(bind(listener, own.raw(), own.size), 0);
    const auto as_another = [] {
      ASSERT_EQ(seteuid(kNobody), 0);
      ASSERT_EQ(seteuid(0), 0);
    };
    as_another();
    int go[2];
    ASSERT_EQ(pipe(go), 0);
    const pid_t worker = in_child([&] {
      char byte;
      ASSERT_EQ(read(go[0], &byte, 1), 1);
      ASSERT_EQ(setuid(kNobody), 0);
      ASSERT_EQ(listen(listener, 1), 0);
      say_ready(ready);
      expect_rest(accept_and_talk(listener));
    });
    as_another();
    ASSERT_EQ(write(go[1], "g", 1), 1);
    EXPECT_EQ(status_of(worker), 0);
  });
}

TEST(Privilege, BoundWithItListeningWithoutIt) {
  with_caller(kPrivilegedPort, 0, [](int ready) {
    Fd listener = tcp_socket();
    const Address own = here(kPrivilegedPort);
    set_option(listener, SOL_SOCKET, SO_REUSEADDR, 1);
    ASSERT_EQ(bind(listener, own.raw(), own.size), 0);
    ASSERT_EQ(setreuid(kNobody, kNobody), 0);
    ASSERT_EQ(listen(listener, 1), 0);
    say_ready(ready);
    expect_rest(accept_and_talk(listener));
  });
}

TEST(Privilege, DroppedByCapset) {
  with_caller(kPrivilegedPort, 0, [](int ready) {
    Fd listener = tcp_socket();
    const Address own = here(kPrivilegedPort);
    set_option(listener, SOL_SOCKET, SO_REUSEADDR, 1);
    ASSERT_EQ(bind(listener, own.raw(), own.size), 0);
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[2]{};
    ASSERT_EQ(capset(&header, none), 0);
    ASSERT_EQ(listen(listener, 1), 0);
    say_ready(ready);
    expect_rest(accept_and_talk(listener));
  });
}

TEST(Privilege, UdpBoundWithItUsedWithoutIt) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = in_child([&] {
    Fd fd = udp_at(here(kPrivilegedPort));
    ASSERT_EQ(setuid(kNobody), 0);
    say_ready(ready[1]);
    for (int i = 0; i < kTrips; ++i) {
      Address from;
      char byte;
      ASSERT_EQ(recvfrom(fd, &byte, 1, 0, from.raw(), &from.size), 1);
      ASSERT_EQ(sendto(fd, &byte, 1, 0, from.raw(), from.size), 1);
    }
  });
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  Far far("asker", {std::to_string(kPrivilegedPort)});
  far.finish();
  EXPECT_EQ(status_of(child), 0);
  close(ready[0]);
  close(ready[1]);
}

/// Sends all that the socket takes at once.
long send_what_it_takes(int fd) {
  set_nonblocking(fd);
  const std::string bytes = pattern(1 << 20);
  long accepted = 0;
  for (ssize_t n = 0; accepted < (3 << 20) && (n = send(fd, bytes.data(), bytes.size(), 0)) > 0;)
    accepted += n;
  return accepted;
}

/// A worker without privilege has a connection whose peer has sent kAnswer bytes and its end, fills it and
/// does `end(fd)`. What arrives is what was accepted and `more`.
template <class F>
void leave_with_all_of_it(long more, F end) {
  int ready[2], report[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(report), 0);
  const pid_t child = in_child([&] {
    Fd listener = listen_at(here(kPrivilegedPort));
    ASSERT_EQ(setuid(kNobody), 0);
    say_ready(ready[1]);
    Fd fd = accept_and_talk(listener);
    ASSERT_NE(wait_for(fd, POLLRDHUP) & POLLRDHUP, 0);  // all that the peer sends is here
    const long accepted = send_what_it_takes(fd);
    ASSERT_EQ(write(report[1], &accepted, sizeof accepted), static_cast<ssize_t>(sizeof accepted));
    set_nonblocking(fd, false);
    end(fd.release());
  });
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  Far far("caller", {std::to_string(kPrivilegedPort)});
  long accepted = 0;
  ASSERT_EQ(read(report[0], &accepted, sizeof accepted), static_cast<ssize_t>(sizeof accepted));
  far.say("read");
  EXPECT_EQ(far.number(), accepted + more);
  far.finish();
  EXPECT_EQ(status_of(child), 0);
  for (int fd : {ready[0], ready[1], report[0], report[1]}) close(fd);
}

TEST(Privilege, TheConnectionGoesWithExec) {
  leave_with_all_of_it(kAnswer, [](int fd) {
    dup2(fd, STDIN_FILENO);
    dup2(fd, STDOUT_FILENO);
    execl("/bin/cat", "cat", nullptr);
  });
}

TEST(Privilege, TheConnectionGoesToAnotherProcess) {
  leave_with_all_of_it(kAnswer, [](int fd) {
    const pid_t child = in_child([fd] { write_all(fd, read_to_end(fd)); });
    close(fd);
    EXPECT_EQ(status_of(child), 0);
  });
}

TEST(Privilege, LastWordsWithoutIt) {
  leave_with_all_of_it(0, [](int fd) {
    read_to_end(fd);  // unread bytes would make a reset of the end
    _exit(0);
  });
}

// What failed while it was away is no verdict for the time when it is back. (Under ACCEL_REQUIRE the first
// connect() fails.)
// The kernel cannot have the connection then (a subreaper has no helper to ask), nor signal its readiness.
TEST(Privilege, SignalsOfTheOwnerComeOrAreRefused) {
  const pid_t child = in_child([] {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    Echo echo(kProof);
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[2]{};
    ASSERT_EQ(capset(&header, none), 0);
    sigset_t io;
    sigemptyset(&io);
    sigaddset(&io, SIGIO);
    sigprocmask(SIG_BLOCK, &io, nullptr);
    const int flags = fcntl(echo.fd, F_GETFL);
    const bool owned = fcntl(echo.fd, F_SETOWN, getpid()) == 0;
    EXPECT_TRUE(owned || errno == EOPNOTSUPP);
    const bool signals = fcntl(echo.fd, F_SETFL, flags | O_ASYNC) == 0;
    EXPECT_TRUE(signals || errno == EOPNOTSUPP);
    EXPECT_EQ(owned, signals);
    write_all(echo.fd, "x");
    const timespec enough{10, 0};
    if (signals) {
      EXPECT_EQ(sigtimedwait(&io, nullptr, &enough), SIGIO);
    }
    EXPECT_EQ(read_exactly(echo.fd, 1), "x");  // it goes on either way
  });
  EXPECT_EQ(status_of(child), 0);
}

TEST(Privilege, ComesBack) {
  Far first("echo_stream"), second("echo_stream");
  const Address one = there(static_cast<uint16_t>(first.number())),
                two = there(static_cast<uint16_t>(second.number()));
  const pid_t child = in_child([&] {
    ASSERT_EQ(seteuid(kNobody), 0);
    Fd early = tcp_socket();
    const bool connected = connect(early, one.raw(), one.size) == 0;
    ASSERT_EQ(seteuid(0), 0);
    Fd late = connect_to(two);
    for (int i = 0; i < kTrips; ++i) exchange(late, "x");
    if (!connected) early = connect_to(one);
    exchange(early, "x");
  });
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(first.word(), "x");
  EXPECT_EQ(second.word(), std::string(kTrips, 'x'));
  first.finish();
  second.finish();
}

}  // namespace
