// What send() accepted arrives, however the process ends straight afterwards.
#include <signal.h>
#include <sys/wait.h>

#include "posix/far.h"

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
int last_words(F end) {
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

TEST(LastWords, OfAProcessThatExits) {
  const int status = last_words([] { _exit(3); });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << status;
}

TEST(LastWords, OfAProcessThatIsTerminated) {
  const int status = last_words([] {
    raise(SIGTERM);
    pause();
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
}

TEST(LastWords, OfAProcessThatExecs) {
  const int status = last_words([] { execl("/bin/sh", "sh", "-c", "exit 5", nullptr); });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 5) << status;
}

TEST(LastWords, OfAProcessThatClosesItsReaderFirst) {
  const int status = last_words([] {
    signal(SIGPIPE, SIG_DFL);
    int ends[2];
    (void)!pipe(ends);
    close(ends[0]);
    (void)!write(ends[1], "x", 1);  // the kernel's own SIGPIPE
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE) << status;
}

// What the process leaves for the kernel to send has SO_REUSEADDR, as it had here: the next server can bind.
TEST(LastWords, LeaveThePortToTheNextListener) {
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
