// What send() accepted arrives, however the process ends straight afterwards.
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <atomic>
#include <latch>
#include <thread>
#include <utility>
#include <vector>

#include "posix/far.h"

[[gnu::visibility("default")]] extern int late_sender_fd;  // late_sender.cc

using namespace posix_test;  // NOLINT: a test program

namespace {

// Accepts, reads to the end and says how many bytes came (negative: the error).
FAR(counter) {
  Fd listener = listen_at(here());
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  long total = 0;
  char buffer[65536];
  ssize_t n;
  while ((n = recv(fd, buffer, sizeof(buffer), 0)) > 0) total += n;
  near.say(n < 0 ? -errno : total);
}

// Accepts, reads to the end and says what came.
FAR(listener) {
  Fd listener = listen_at(here());
  near.say(port_of(listener));
  near.say(read_to_end(accept_one(listener)));
}

constexpr int kTrips = 40;  // before the connection moves, so that it was accelerated can be counted

// Connects; reads to the end when it is told to, and says how many bytes came.
FAR(late_reader) {
  Fd fd = connect_to(there(static_cast<uint16_t>(std::stoi(args.at(0)))));
  for (int i = 0; i < kTrips; ++i) write_all(fd, read_exactly(fd, 1));
  near.word();
  near.say(static_cast<long>(read_to_end(fd).size()));
}

/// Runs `end` in a child that has sent all that the socket takes at once; what arrives must be what was
/// accepted.
template <class F>
int exit_delivery(F end) {
  Far far("counter");
  const auto port = static_cast<uint16_t>(far.number());
  int report[2];
  EXPECT_EQ(pipe(report), 0);
  const pid_t child = in_child([&] {
    Fd fd = connect_to(there(port));
    set_nonblocking(fd);
    const std::string bytes = pattern(1 << 20);
    long accepted = 0;
    for (ssize_t n = 0; accepted < (3 << 20) && (n = send(fd, bytes.data(), bytes.size(), 0)) > 0;)
      accepted += n;
    (void)!write(report[1], &accepted, sizeof(accepted));
    fd.release();
    end();
    _exit(99);
  });
  long accepted = -1;
  close(report[1]);
  EXPECT_EQ(read(report[0], &accepted, sizeof(accepted)), static_cast<ssize_t>(sizeof(accepted)));
  close(report[0]);
  int status = 0;
  EXPECT_EQ(far.number(), accepted);
  EXPECT_EQ(waitpid(child, &status, 0), child);
  far.finish();
  return status;
}

TEST(ExitDelivery, OfAProcessThatExits) {
  const int status = exit_delivery([] { _exit(3); });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << status;
}

TEST(ExitDelivery, OfAProcessThatIsTerminated) {
  const int status = exit_delivery([] {
    raise(SIGTERM);
    pause();
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
}

TEST(ExitDelivery, OfAProcessThatExecs) {
  const int status = exit_delivery([] { execl("/bin/sh", "sh", "-c", "exit 5", nullptr); });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 5) << status;
}

TEST(ExitDelivery, OfAProcessThatClosesItsReaderFirst) {
  const int status = exit_delivery([] {
    signal(SIGPIPE, SIG_DFL);
    int ends[2];
    (void)!pipe(ends);
    close(ends[0]);
    (void)!write(ends[1], "x", 1);  // the kernel's own SIGPIPE
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE) << status;
}

/// A child that says "program", then what `end` has said behind it: all that arrives.
template <class F>
std::string words_of(F end) {
  Far far("listener");
  const auto port = static_cast<uint16_t>(far.number());
  const pid_t child = in_child([&] {
    Fd fd = connect_to(there(port));
    write_all(fd, "program ");
    end(fd.release());
  });
  EXPECT_EQ(status_of(child), 0);
  std::string words = far.word();
  far.finish();
  return words;
}

int last_connection = -1;

TEST(ExitDelivery, OfALibrarysDestructor) {
  EXPECT_EQ(words_of([](int fd) {
              late_sender_fd = fd;
              exit(0);
            }),
            "program library");
}

TEST(ExitDelivery, OfQuickExitsHandlers) {
  EXPECT_EQ(words_of([](int fd) {
              last_connection = fd;
              at_quick_exit([] {
                if (send(last_connection, "handler", 7, MSG_NOSIGNAL) != 7) _exit(1);
              });
              quick_exit(0);
            }),
            "program handler");
}

/// Uses the connection until the process is gone; `faults` hears of what must not happen. `begun`: this
/// thread is about to read, or has written.
void go_on(int fd, int faults, bool reads, std::latch& begun, std::atomic<pid_t>& reader) {
  if (reads) {
    reader = gettid();
    begun.count_down();
  }
  char byte = 'x';
  for (bool first = !reads;;) {
    const ssize_t n = reads ? read(fd, &byte, 1) : write(fd, &byte, 1);
    if (n == 1) {
      if (std::exchange(first, false)) begun.count_down();
      continue;
    }
    const std::string fault = std::string(reads ? "read: " : "write: ") + (n < 0 ? strerror(errno) : "end");
    (void)!write(faults, fault.data(), fault.size());
    return;
  }
}

void exit_under_threads(uint16_t port, int faults, void (*end)(int)) {
  constexpr int kWriters = 3;
  const int fd = connect_to(there(port)).release();
  signal(SIGPIPE, SIG_DFL);
  static std::latch begun(kWriters + 1);
  static std::atomic<pid_t> reader{0};
  for (int i = 0; i <= kWriters; ++i) {
    const bool reads = i == 0;
    std::thread([=] { go_on(fd, faults, reads, begun, reader); }).detach();
  }
  for (int i = 0; i < 20; ++i) write_all(fd, "y");
  begun.wait();
  until_asleep(reader);
  end(0);
}

// Other threads' calls neither fail nor end while the process does.
TEST(ExitDelivery, OfThreadsThatGoOn) {
  using End = void (*)(int);
  for (const End end : std::vector<End>{&exit, &_exit, &quick_exit}) {
    for (int i = 0; i < 5; ++i) {
      Far far("counter");
      const auto port = static_cast<uint16_t>(far.number());
      int faults[2];
      ASSERT_EQ(pipe(faults), 0);
      const pid_t child = in_child([&] { exit_under_threads(port, faults[1], end); });
      close(faults[1]);
      EXPECT_EQ(status_of(child), 0);
      char fault[256];
      const ssize_t told = read(faults[0], fault, sizeof fault);
      EXPECT_EQ(told, 0) << std::string(fault, static_cast<size_t>(std::max<ssize_t>(told, 0)));
      close(faults[0]);
      EXPECT_GT(far.number(), 20);
      far.finish();
    }
  }
}

// What the process leaves for the kernel to send has SO_REUSEADDR, as it had here: the next server can bind.
TEST(ExitDelivery, LeaveThePortToTheNextListener) {
  int report[2];
  ASSERT_EQ(pipe(report), 0);
  const pid_t child = in_child([&] {
    Fd listener = listen_at(here());
    const long port = port_of(listener);
    (void)!write(report[1], &port, sizeof port);
    Fd fd = accept_one(listener);
    for (int i = 0; i < kTrips; ++i) {
      write_all(fd, "x");
      read_exactly(fd, 1);
    }
    set_nonblocking(fd);
    const std::string bytes = pattern(1 << 20);
    long accepted = 0;
    for (ssize_t n = 0; (n = send(fd, bytes.data(), bytes.size(), 0)) > 0;) accepted += n;
    (void)!write(report[1], &accepted, sizeof accepted);
  });
  close(report[1]);
  long port = 0, accepted = -1;
  EXPECT_EQ(read(report[0], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  Far far("late_reader", {std::to_string(port)});
  EXPECT_EQ(read(report[0], &accepted, sizeof accepted), static_cast<ssize_t>(sizeof accepted));
  close(report[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  const pid_t next = in_child([&] { listen_at(here(static_cast<uint16_t>(port))); });
  EXPECT_EQ(waitpid(next, &status, 0), next);
  EXPECT_EQ(status, 0);
  far.say("go");
  EXPECT_EQ(far.number(), accepted);
  far.finish();
}

}  // namespace
