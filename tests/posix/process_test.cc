// fork, exec, spawn and descriptors that travel, with live connections and listeners.
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "posix/echo.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

// Connects as often as told, sends a byte each time and reads the answer.
FAR(callers) {
  for (;;) {
    const std::string order = near.word();
    if (order == "end") break;
    Fd fd = connect_to(there(static_cast<uint16_t>(std::stoi(order))));
    write_all(fd, "?");
    near.say(read_to_end(fd));
  }
}

// Sends datagrams to the port as they are told.
FAR(sender) {
  Fd fd = udp_at(here());
  Address to = there(static_cast<uint16_t>(near.number()));
  for (std::string text; (text = near.word()) != "end";)
    EXPECT_EQ(sendto(fd, text.data(), text.size(), 0, to.raw(), to.size), static_cast<ssize_t>(text.size()));
}

/// In a child: whether an exchange works, as an exit status.
[[noreturn]] void exchange_and_exit(int fd, const std::string& text) {
  const bool sent = send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  std::string got(text.size(), '\0');
  size_t have = 0;
  ssize_t n = 1;
  while (sent && have < text.size() && (n = recv(fd, got.data() + have, text.size() - have, 0)) > 0)
    have += static_cast<size_t>(n);
  _exit(!sent ? 1 : n < 0 ? 2 : got != text ? 3 : 0);
}

TEST(Fork, ParentKeepsTheConnectionWhateverTheChildDoes) {
  Echo far;
  exchange(far.fd, "one ");
  for (int how = 0; how < 3; ++how) {
    const pid_t child = in_child([&] {
      if (how == 1) close(far.fd);
      if (how == 2) closefrom(3);
      _exit(0);
    });
    exchange(far.fd, "during ");
    EXPECT_EQ(status_of(child), 0);
    exchange(far.fd, "after ");
  }
  EXPECT_EQ(far.all(), "one during after during after during after ");
}

TEST(Fork, ChildServesWhatTheParentHasClosed) {
  Echo far;
  exchange(far.fd, "parent ");
  int go[2];
  ASSERT_EQ(pipe(go), 0);
  const pid_t child = in_child([&] {
    char byte;
    (void)!read(go[0], &byte, 1);  // the parent has closed it by now
    exchange_and_exit(far.fd, "child ");
  });
  far.fd.reset();
  ASSERT_EQ(write(go[1], "x", 1), 1);
  EXPECT_EQ(status_of(child), 0);
  close(go[0]);
  close(go[1]);
  EXPECT_EQ(far.all(), "parent child ");
}

TEST(Fork, ChildUsesAConnectionThatTheParentHoldsSilently) {
  Echo far;
  exchange(far.fd, "parent ");
  const pid_t child = in_child([&] { exchange_and_exit(far.fd, "child "); });
  EXPECT_EQ(status_of(child), 0);
  exchange(far.fd, "again ");
  EXPECT_EQ(far.all(), "parent child again ");
}

// epoll(7), question 6: a member goes with its open file, which the child still has. One is known by a number
// that was closed before the fork.
TEST(Fork, MembersThatTheParentHasClosedAreToldOfWhileTheChildHasThem) {
  Echo far;
  Fd set(epoll_create1(0)), other(dup(far.fd));
  epoll_event old{EPOLLIN, {.u64 = 7}}, fresh{EPOLLIN, {.u64 = 8}}, told[4];
  ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, far.fd, &old), 0);
  ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, other, &fresh), 0);
  far.fd.reset();
  write_all(other, "echo");
  EXPECT_EQ(wait_for(other, POLLIN), POLLIN);
  EXPECT_EQ(epoll_wait(set, told, 4, 0), 2);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = in_child([&] {
    close(ends[1]);
    char end;
    EXPECT_EQ(read(ends[0], &end, 1), 0);
  });
  close(ends[0]);
  EXPECT_EQ(epoll_wait(set, told, 4, 0), 2);
  other.reset();
  ASSERT_EQ(epoll_wait(set, told, 4, 0), 2);
  EXPECT_EQ(told[0].data.u64 + told[1].data.u64, 15u);
  EXPECT_EQ(told[0].events | told[1].events, static_cast<uint32_t>(EPOLLIN));
  close(ends[1]);
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(epoll_wait(set, told, 4, 0), 0);
}

// Takes records of 100 equal bytes until the end; says how many came and how many were torn.
FAR(takes_records) {
  Fd listener = listen_at(here());
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  long whole = 0, torn = 0;
  for (std::string record; (record = read_exactly(fd, 100)).size() == 100;)
    ++(record == std::string(100, record[0]) ? whole : torn);
  near.say(std::to_string(whole) + " " + std::to_string(torn));
}

// The connection is handed back to the kernel for the second one that sends, while the first goes on: records
// come whole and none is lost, as where the kernel had it all the time. The send buffer holds them all: a
// sender that has to wait for room in the middle of a record lets the other one in (sk_stream_wait_memory()).
TEST(Fork, ParentAndChildSendAtOnce) {
  constexpr int kRecords = 6000;
  Far far("takes_records");
  Fd fd = connect_to(there(static_cast<uint16_t>(far.number())));
  set_option(fd, SOL_SOCKET, SO_SNDBUFFORCE, 2 * kRecords * 100);
  auto send_all = [&](char letter) {
    const std::string record(100, letter);
    int sent = 0;
    for (; sent < kRecords; ++sent) {
      if (send(fd, record.data(), record.size(), MSG_NOSIGNAL) != ssize_t{100}) break;
      if (sent % 50 == 0) usleep(500);
    }
    return sent;
  };
  write_all(fd, std::string(100, 's'));
  const pid_t child = in_child([&] { EXPECT_EQ(send_all('c'), kRecords); });
  EXPECT_EQ(send_all('p'), kRecords);
  EXPECT_EQ(status_of(child), 0);
  fd.reset();
  EXPECT_EQ(far.word(), std::to_string(2 * kRecords + 1) + " 0");
  far.finish();
}

// A process of its own, since handlers stay registered. Its connection; the end sees `said`.
template <class F>
void with_handlers(const std::string& said, F body) {
  Far far("echo_stream");
  const auto port = static_cast<uint16_t>(far.number());
  const pid_t child = in_child([&] { body(connect_to(there(port))); });
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(far.word(), said);
  far.finish();
}

std::mutex handlers_lock;
int handlers_fd = -1;

// As libraries do that keep what they have whole over fork().
TEST(Fork, HandlersTakeALockThatIsHeldOverCalls) {
  with_handlers(std::string(500, 'x'), [](Fd fd) {
    pthread_atfork([] { handlers_lock.lock(); }, [] { handlers_lock.unlock(); },
                   [] { handlers_lock.unlock(); });
    std::thread other([&] {
      for (int i = 0; i < 500; ++i) {
        const std::lock_guard held(handlers_lock);
        exchange(fd, "x");
      }
    });
    for (int i = 0; i < 50; ++i) {
      const pid_t child = fork();
      if (child == 0) _exit(0);
      EXPECT_EQ(status_of(child), 0);
    }
    other.join();
  });
}

TEST(Fork, HandlersUseTheConnection) {
  with_handlers("one prepare child two", [](Fd fd) {
    handlers_fd = fd;
    exchange(fd, "one ");
    pthread_atfork([] { write_all(handlers_fd, "prepare "); }, nullptr,
                   [] { write_all(handlers_fd, "child "); });
    const pid_t child = fork();
    if (child == 0) _exit(0);
    EXPECT_EQ(read_exactly(fd, 14), "prepare child ");
    EXPECT_EQ(status_of(child), 0);
    exchange(fd, "two");
  });
}

/// A socket that is the kernel's on purpose: run.py's --not-required.
#define KERNEL_IS_WANTED() \
  if (getenv("ACCEL_REQUIRE") != nullptr) GTEST_SKIP() << "what is the kernel's is refused"

TEST(Fork, ChildConnectsTheSocketOfBoth) {
  KERNEL_IS_WANTED();
  Far far("echo_stream");
  const auto port = static_cast<uint16_t>(far.number());
  Echo proof(kProof);
  Fd fd = tcp_socket();
  const pid_t child = in_child([&] {
    Address to = there(port);
    ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
    exchange(fd, "child ");
  });
  EXPECT_EQ(status_of(child), 0);
  exchange(fd, "parent");
  fd.reset();
  EXPECT_EQ(far.word(), "child parent");
  far.finish();
  proof.all();
}

TEST(Fork, ParentConnectsTheSocketOfBoth) {
  KERNEL_IS_WANTED();
  Far far("echo_stream");
  const auto port = static_cast<uint16_t>(far.number());
  Echo proof(kProof);
  Fd fd = tcp_socket();
  int go[2];
  ASSERT_EQ(pipe(go), 0);
  const pid_t child = in_child([&] {
    char byte;
    (void)!read(go[0], &byte, 1);
    exchange(fd, "child ");
  });
  Address to = there(port);
  ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
  ASSERT_EQ(write(go[1], "!", 1), 1);
  EXPECT_EQ(status_of(child), 0);
  exchange(fd, "parent");
  fd.reset();
  close(go[0]);
  close(go[1]);
  EXPECT_EQ(far.word(), "child parent");
  far.finish();
  proof.all();
}

TEST(Fork, GrandchildUsesItAfterTheParentsExit) {
  Far far("echo_stream");
  const auto port = static_cast<uint16_t>(far.number());
  int done[2];
  ASSERT_EQ(pipe(done), 0);
  const pid_t child = in_child([&] {
    Fd fd = connect_to(there(port));
    exchange(fd, "first ");
    const pid_t me = getpid();
    if (fork() != 0) _exit(0);  // daemon(3)
    alarm(60);
    while (getppid() == me) poll(nullptr, 0, 1);
    write_all(fd, "second ");
    const bool ok = read_exactly(fd, 7) == "second ";
    (void)!write(done[1], ok ? "y" : "n", 1);
    _exit(0);
  });
  EXPECT_EQ(status_of(child), 0);
  char answer = '?';
  close(done[1]);
  ASSERT_EQ(read(done[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  close(done[0]);
  EXPECT_EQ(far.word(), "first second ");
  far.finish();
}

TEST(Fork, ChildOfAKilledParentSeesTheEnd) {
  Far far("echo_stream");
  const auto port = static_cast<uint16_t>(far.number());
  int done[2];
  ASSERT_EQ(pipe(done), 0);
  const pid_t child = in_child([&] {
    Fd fd = connect_to(there(port));
    exchange(fd, "x");
    const pid_t me = getpid();
    if (fork() != 0) pause();
    alarm(60);  // not inherited
    kill(me, SIGKILL);
    while (getppid() == me) poll(nullptr, 0, 1);
    char byte;
    const ssize_t n = send(fd, "y", 1, MSG_NOSIGNAL);
    if (n == 1) (void)!recv(fd, &byte, 1, 0);
    (void)!write(done[1], n == 1 ? "s" : "e", 1);  // sent (the kernel's path), or an error: but no hang
    _exit(0);
  });
  status_of(child);
  char answer = '?';
  close(done[1]);
  ASSERT_EQ(read(done[0], &answer, 1), 1);
  close(done[0]);
}

void serve_one(int listener) {
  const int fd = accept(listener, nullptr, nullptr);
  char byte;
  if (recv(fd, &byte, 1, 0) == 1) (void)!send(fd, "!", 1, MSG_NOSIGNAL);
  close(fd);
}

/// Processes that accept, answer and close.
class Workers {
 public:
  Workers(int listener, int count) {
    for (int i = 0; i < count; ++i)
      children_.push_back(in_child([&] {
        for (;;) serve_one(listener);
      }));
  }
  ~Workers() {
    for (pid_t child : children_) {
      kill(child, SIGKILL);
      EXPECT_TRUE(WIFSIGNALED(status_of(child)));
    }
  }

 private:
  std::vector<pid_t> children_;
};

void expect_answers(Control& callers, const std::string& port, int calls) {
  for (int i = 0; i < calls; ++i) {
    callers.say(port);
    EXPECT_EQ(callers.word(), "!");
  }
}

TEST(Fork, ParentLooksAtAListenerThatItsChildrenServe) {
  Far far("callers");
  Fd listener = listen_at(here());
  const std::string port = std::to_string(port_of(listener));
  {
    Workers workers(listener, 2);
    Fd set(epoll_create1(0));
    const std::vector<std::function<void()>> looks = {
        [&] { EXPECT_EQ(std::to_string(port_of(listener)), port); },
        [&] { EXPECT_EQ(get_option(listener, SOL_SOCKET, SO_ACCEPTCONN), 1); },
        [&] { set_option(listener, SOL_SOCKET, SO_KEEPALIVE, 1); },
        [&] { EXPECT_EQ(listen(listener, 20), 0); },
        [&] { wait_for(listener, POLLIN, 0); },
        [&] {
          epoll_event event{};
          event.events = EPOLLIN;
          EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event), 0);
          EXPECT_LE(epoll_wait(set, &event, 1, 0), 1);
          EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_DEL, listener, &event), 0);
        },
        [&] {
          int queued;
          EXPECT_EQ(ioctl(listener, FIONREAD, &queued), -1);
        },
    };
    for (const auto& look : looks) {
      look();  // before the children have come to accept(), or while they are there
      expect_answers(far, port, 4);
    }
  }
  far.say("end");
  far.finish();
}

// inetd's and xinetd's services with "wait".
TEST(Fork, ChildAcceptsOnAListenerThatItsParentHasWaitedOn) {
  Far far("callers");
  Fd listener = listen_at(here());
  const std::string port = std::to_string(port_of(listener));
  for (int round = 0; round < 3; ++round) {
    far.say(port);
    ASSERT_EQ(wait_for(listener, POLLIN), POLLIN);
    const pid_t child = in_child([&] {
      if (round == 1) set_nonblocking(listener);  // what made the parent's wait end is there at once
      if (round == 2) wait_for(listener, POLLIN);
      serve_one(listener);
      set_nonblocking(listener, false);
      serve_one(listener);
    });
    EXPECT_EQ(far.word(), "!");
    expect_answers(far, port, 1);
    EXPECT_EQ(status_of(child), 0);
    far.say(port);
    serve_one(listener);
    EXPECT_EQ(far.word(), "!");
  }
  far.say("end");
  far.finish();
}

TEST(Fork, WorkersOfAParentThatHasAcceptedItself) {
  Far far("callers");
  Fd listener = listen_at(here());
  const std::string port = std::to_string(port_of(listener));
  for (int round = 0; round < 3; ++round) {
    far.say(port);
    serve_one(listener);
    EXPECT_EQ(far.word(), "!");
    const Workers workers(listener, 3);
    expect_answers(far, port, 10);
  }
  far.say("end");
  far.finish();
}

TEST(Fork, ChildTakesTheListenerOutOfASetThatItsParentWaitsOnNoMore) {
  Far far("callers");
  Fd listener = listen_at(here());
  const std::string port = std::to_string(port_of(listener));
  Fd inner(epoll_create1(0)), outer(epoll_create1(0));
  epoll_event event{};
  event.events = EPOLLIN;
  ASSERT_EQ(epoll_ctl(inner, EPOLL_CTL_ADD, listener, &event), 0);
  ASSERT_EQ(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &event), 0);
  for (int round = 0; round < 3; ++round) {
    far.say(port);
    ASSERT_EQ(epoll_wait(outer, &event, 1, 20000), 1);
    serve_one(listener);
    EXPECT_EQ(far.word(), "!");
    const Workers workers(listener, 1);
    expect_answers(far, port, 5);
  }
  far.say("end");
  far.finish();
}

// It is not said who accepts.
TEST(Fork, ParentAndChildAccept) {
  Far far("callers");
  Fd listener = listen_at(here());
  const std::string port = std::to_string(port_of(listener));
  std::atomic<pid_t> waiting{0};
  std::thread parent([&] {
    waiting = gettid();
    for (;;) {
      Fd fd(accept(listener, nullptr, nullptr));
      char byte;
      if (recv(fd, &byte, 1, 0) != 1) return;
      write_all(fd, "!");
    }
  });
  until_asleep(waiting);
  {
    const Workers workers(listener, 1);
    expect_answers(far, port, 20);
  }
  shutdown(listener, SHUT_RDWR);
  parent.join();
  far.say("end");
  far.finish();
}

TEST(Fork, ChildReceivesOnASocketThatItsParentHasWaitedOn) {
  Far far("sender");
  Fd socket = udp_at(here());
  far.say(port_of(socket));
  auto receive = [&] {
    char text[20];
    const ssize_t n = recv(socket, text, sizeof text, 0);
    return std::string(text, n > 0 ? static_cast<size_t>(n) : 0);
  };
  for (int round = 0; round < 3; ++round) {
    far.say("one");
    ASSERT_EQ(wait_for(socket, POLLIN), POLLIN);
    int told[2];
    ASSERT_EQ(pipe(told), 0);
    const pid_t child = in_child([&] {
      EXPECT_EQ(receive(), "one");
      (void)!write(told[1], "x", 1);
      EXPECT_EQ(receive(), "two");
      EXPECT_EQ(wait_for(socket, POLLIN), POLLIN);  // and leaves it
    });
    close(told[1]);
    char byte;
    EXPECT_EQ(read(told[0], &byte, 1), 1);
    far.say("two");
    far.say("three");
    EXPECT_EQ(status_of(child), 0);
    EXPECT_EQ(receive(), "three");
    far.say("four");
    EXPECT_EQ(receive(), "four");
    close(told[0]);
  }
  far.say("end");
  far.finish();
}

TEST(Fork, NonBlockingIsTheFilesNotTheProcesss) {
  Echo far(kProof);
  Fd listener = listen_at(here()), socket = udp_at(here()), timed = udp_at(here());
  for (int fd : {static_cast<int>(listener), static_cast<int>(socket), static_cast<int>(timed)})
    EXPECT_EQ(wait_for(fd, POLLIN, 20), 0);
  EXPECT_EQ(status_of(in_child([&] {
              set_nonblocking(far.fd);
              set_nonblocking(listener);
              set_nonblocking(socket);
              const timeval soon{0, 20000};
              setsockopt(timed, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
            })),
            0);
  char byte;
  alarm(30);  // it would wait for ever
  EXPECT_EQ(recv(far.fd, &byte, 1, 0), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(accept(listener, nullptr, nullptr), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(recv(socket, &byte, 1, 0), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(recv(timed, &byte, 1, 0), -1);
  EXPECT_EQ(errno, EAGAIN);
  alarm(0);
  set_nonblocking(far.fd, false);
  exchange(far.fd, "after");
  EXPECT_EQ(far.all(), "after");
}

TEST(Fork, ChildrenAcceptOnAnInheritedListener) {
  Far far("callers");
  Fd listener = listen_at(here());
  const std::string port = std::to_string(port_of(listener));
  std::vector<pid_t> children;
  for (int i = 0; i < 2; ++i) {
    const pid_t child = in_child([&] {
      // As nginx: a set of its own, the listener without blocking.
      set_nonblocking(listener);
      Fd set(epoll_create1(0));
      epoll_event event{};
      event.events = EPOLLIN | EPOLLEXCLUSIVE;
      epoll_ctl(set, EPOLL_CTL_ADD, listener, &event);
      for (;;) {
        if (epoll_wait(set, &event, 1, -1) < 0) continue;
        const int fd = accept(listener, nullptr, nullptr);
        if (fd < 0) continue;
        char byte;
        if (recv(fd, &byte, 1, 0) == 1) (void)!send(fd, "!", 1, 0);
        close(fd);
      }
    });
    children.push_back(child);
  }
  for (int i = 0; i < 20; ++i) {
    far.say(port);
    EXPECT_EQ(far.word(), "!");
  }
  far.say("end");
  far.finish();
  for (pid_t child : children) {
    kill(child, SIGKILL);
    EXPECT_TRUE(WIFSIGNALED(status_of(child)));
  }
}

TEST(Exec, ProgramFindsTheConnectionAsItsStandardInput) {
  Echo far;
  exchange(far.fd, "before ");
  const pid_t child = in_child([&] {
    dup2(far.fd, 1);
    execl("/bin/sh", "sh", "-c", "printf from-sh", nullptr);
    _exit(1);
  });
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(read_exactly(far.fd, 7), "from-sh");
  exchange(far.fd, " after");
  EXPECT_EQ(far.all(), "before from-sh after");
}

// As inetd's servers, CGI, and Python's pass_fds have it: the parent keeps it open meanwhile.
TEST(Exec, ProgramUsesTheConnectionByItsNumber) {
  Echo far;
  exchange(far.fd, "before ");
  ASSERT_EQ(dup2(far.fd, 9), 9);
  const pid_t child = in_child([&] {
    execl("/bin/sh", "sh", "-c", "printf from-sh >&9", nullptr);
    _exit(1);
  });
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(read_exactly(far.fd, 7), "from-sh");
  exchange(far.fd, " after");
  close(9);
  EXPECT_EQ(far.all(), "before from-sh after");
}

TEST(Exec, ConnectionOfTheProcessItself) {
  Far far("echo_stream");
  const auto port = static_cast<uint16_t>(far.number());
  const pid_t child = in_child([&] {
    Fd fd = connect_to(there(port));
    exchange(fd, "old ");
    dup2(fd, 9);
    execl("/bin/sh", "sh", "-c", "printf new >&9; head -c 3 <&9 >/dev/null", nullptr);
    _exit(1);
  });
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(far.word(), "old new");
  far.finish();
}

TEST(Exec, FailureCarriesOn) {
  Echo far;
  exchange(far.fd, "one ");
  execl("/nonexistent", "x", nullptr);
  EXPECT_EQ(errno, ENOENT);
  exchange(far.fd, "two");
  EXPECT_EQ(far.all(), "one two");
}

TEST(Exec, ListenerOfASocketActivatedProgram) {
  Far far("callers");
  Fd listener = listen_at(here());
  const std::string port = std::to_string(port_of(listener));
  const pid_t child = in_child([&] {
    dup2(listener, 3);
    setenv("LISTEN_FDS", "1", 1);
    execlp("python3", "python3", "-c",
           "import socket\n"
           "s = socket.socket(fileno=3)\n"
           "for i in range(20):\n"
           "  c = s.accept()[0]\n"
           "  assert c.recv(1) == b'?'\n"
           "  c.sendall(b'!' * 3000)\n"
           "  c.close()\n",
           nullptr);
    _exit(1);
  });
  listener.reset();
  for (int i = 0; i < 20; ++i) {
    far.say(port);
    EXPECT_EQ(far.word(), std::string(3000, '!'));
  }
  far.say("end");
  far.finish();
  EXPECT_EQ(status_of(child), 0);
}

int close_all_and_exec(void*) {
  for (int fd = 3; fd < 64; ++fd) close(fd);
  execl("/bin/true", "true", nullptr);
  _exit(1);
}

TEST(Spawn, AChildOnTheSameMemoryClosesItsDescriptors) {
  Echo far;
  exchange(far.fd, "one ");
  std::vector<char> stack(256 * 1024);
  const pid_t child =
      clone(close_all_and_exec, stack.data() + stack.size(), CLONE_VM | CLONE_VFORK | SIGCHLD, nullptr);
  EXPECT_EQ(status_of(child), 0);
  exchange(far.fd, "two");
  EXPECT_EQ(far.all(), "one two");
}

TEST(Spawn, ParentKeepsTheConnection) {
  Echo far;
  exchange(far.fd, "one ");
  EXPECT_EQ(system("true"), 0);
  char name[] = "true";
  char* const arguments[] = {name, nullptr};
  pid_t child;
  ASSERT_EQ(posix_spawnp(&child, "true", nullptr, nullptr, arguments, environ), 0);
  EXPECT_EQ(status_of(child), 0);
  exchange(far.fd, "two");
  EXPECT_EQ(far.all(), "one two");
}

}  // namespace
