// Processes that accept on one listener: the kernel has one queue for all of them, so whoever waits accepts.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/wait.h>

#include <memory>
#include <vector>

#include "posix/callers.h"
#include "posix/echo.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

// Connects as often as told, sends a word each time and reads the answer.
FAR(words) {
  for (std::string port; (port = near.word()) != "end";) {
    Fd fd = connect_to(there(static_cast<uint16_t>(std::stoi(port))));
    write_all(fd, near.word());
    near.say(read_to_end(fd));
  }
}

struct Caller : Far {
  explicit Caller(int listener) : Far("words"), port(port_of(listener)) {}
  void call(const std::string& word) {
    say(port);
    say(word);
  }
  void end() {
    say("end");
    finish();
  }
  const uint16_t port;
};

int accept_by_accept(int listener) { return accept(listener, nullptr, nullptr); }

int accept_by_poll(int listener) {
  EXPECT_EQ(wait_for(listener, POLLIN, -1), POLLIN);
  return accept(listener, nullptr, nullptr);  // does not block: another may have been faster
}

int accept_by_epoll(int listener) {
  static Fd set;
  epoll_event event{};
  event.events = EPOLLIN;
  if (set < 0) {
    set = Fd(epoll_create1(0));
    EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event), 0);
  }
  EXPECT_EQ(epoll_wait(set, &event, 1, -1), 1);
  return accept(listener, nullptr, nullptr);
}

enum class Came { kByFork, kInAMessage, kByExec };

/// What a worker needs besides the listener; a program that is executed has them as these numbers.
constexpr int kListener = 3, kBusy = 4, kRelease = 5;

void say_number(int to) {
  const pid_t self = getpid();
  EXPECT_EQ(write(to, &self, sizeof self), static_cast<ssize_t>(sizeof self));
}

/// It waits once, so that it has the device's queue if it can. When it reads "busy" it says so, and does
/// nothing until it is released.
[[noreturn]] void work(int listener, int (*accept_next)(int), int busy, int release) {
  wait_for(listener, POLLIN, 1);
  say_number(busy);
  for (;;) {
    const Fd fd(accept_next(listener));
    if (fd < 0) continue;
    set_nonblocking(fd, false);
    if (read_exactly(fd, 4) == "busy") {
      char byte;
      say_number(busy);
      EXPECT_EQ(read(release, &byte, 1), 1);
    }
    write_all(fd, std::to_string(getpid()));
  }
}

/// Three workers that have one listener, of this address.
class Workers {
 public:
  Workers(const Address& at, int (*accept_next)(int), bool nonblocking, Came came) {
    EXPECT_EQ(pipe(busy_), 0);
    EXPECT_EQ(pipe(release_), 0);
    std::vector<Pair> ways(came == Came::kInAMessage ? 3 : 0);
    for (Pair& way : ways)
      children_.push_back(in_child(
          [&] { work(receive_descriptor(way.theirs).release(), accept_next, busy_[1], release_[0]); }));
    listener = listen_at(at);
    if (nonblocking) set_nonblocking(listener);
    for (Pair& way : ways) send_descriptor(way.mine, listener);
    for (int i = 0; ways.empty() && i < 3; ++i)
      children_.push_back(in_child([&] {
        if (came == Came::kByExec) become_another_program();
        work(listener, accept_next, busy_[1], release_[0]);
      }));
    close(busy_[1]);
    for (int i = 0; i < 3; ++i) busy();
    close(release_[0]);
  }
  ~Workers() {
    for (pid_t child : children_) {
      kill(child, SIGKILL);
      status_of(child);
    }
    close(busy_[0]);
    close(release_[1]);
  }
  /// The process that has just become busy, or ready.
  pid_t busy() const {
    pid_t process = 0;
    EXPECT_EQ(read(busy_[0], &process, sizeof process), static_cast<ssize_t>(sizeof process));
    return process;
  }
  void release() const { EXPECT_EQ(write(release_[1], "x", 1), 1); }
  const std::vector<pid_t>& all() const { return children_; }
  void kill_one(pid_t child) {
    kill(child, SIGKILL);
    status_of(child);
    std::erase(children_, child);
  }
  Fd listener;

 private:
  void become_another_program() const {
    const int from[] = {fcntl(listener, F_DUPFD, 100), fcntl(busy_[1], F_DUPFD, 100),
                        fcntl(release_[0], F_DUPFD, 100)};
    for (int to : {kListener, kBusy, kRelease}) dup2(from[to - kListener], to);
    execl("/proc/self/exe", "worker", "--gtest_brief=1", "--gtest_also_run_disabled_tests",
          "--gtest_filter=Prefork.DISABLED_Worker", nullptr);
    _exit(1);
  }
  int busy_[2], release_[2];
  std::vector<pid_t> children_;
};

TEST(Prefork, DISABLED_Worker) { work(kListener, accept_by_epoll, kBusy, kRelease); }

/// The first is that to whose queue the device brings what comes, if there is such a one.
void others_answer(int (*accept_next)(int), bool nonblocking, Came came = Came::kByFork) {
  Workers workers(here(), accept_next, nonblocking, came);
  Caller one(workers.listener), two(workers.listener), quick(workers.listener);
  one.call("busy");
  const pid_t first = workers.busy();
  two.call("busy");
  const pid_t second = workers.busy();
  EXPECT_NE(first, second);
  for (int i = 0; i < 20; ++i) {
    quick.call("idle");
    const long by = quick.number();
    EXPECT_TRUE(by != first && by != second) << by;
  }
  workers.release();
  workers.release();
  EXPECT_EQ(one.number(), first);
  EXPECT_EQ(two.number(), second);
  for (Caller* c : {&one, &two, &quick}) c->end();
}

TEST(Prefork, WhoWaitsInAcceptAnswersForTheBusy) { others_answer(accept_by_accept, false); }
TEST(Prefork, WhoWaitsInPollAnswersForTheBusy) { others_answer(accept_by_poll, true); }
TEST(Prefork, WhoWaitsInEpollAnswersForTheBusy) { others_answer(accept_by_epoll, true); }
TEST(Prefork, WhoGotTheListenerInAMessageAnswers) {
  others_answer(accept_by_accept, false, Came::kInAMessage);
}
TEST(Prefork, WhoGotTheListenerByExecAnswers) { others_answer(accept_by_epoll, true, Came::kByExec); }

// Each connection wakes all who wait, and one of them has it.
void nobody_blocks(Came came) {
  const Workers workers(here(), accept_by_accept, false, came);
  std::vector<std::unique_ptr<Caller>> callers;
  for (int i = 0; i < 3; ++i) callers.push_back(std::make_unique<Caller>(workers.listener));
  for (int i = 0; i < 150; ++i) {
    for (auto& c : callers) c->call("idle");
    for (auto& c : callers) EXPECT_GT(c->number(), 0);
  }
  for (auto& c : callers) c->end();
}

TEST(Prefork, NobodyBlocksWhereAnotherWasFaster) { nobody_blocks(Came::kByFork); }
TEST(Prefork, NobodyBlocksWhereAnotherThatGotItInAMessageWasFaster) { nobody_blocks(Came::kInAMessage); }

// What nobody could accept is not lost with those who waited: the first that is free has it.
TEST(Prefork, WhoDiesWhileItWaitsTakesNothingAlong) {
  Workers workers(here(), accept_by_accept, false, Came::kByFork);
  Caller one(workers.listener), two(workers.listener), quick(workers.listener);
  one.call("busy");
  const pid_t first = workers.busy();
  two.call("busy");
  const pid_t second = workers.busy();
  pid_t third = 0;
  for (pid_t child : workers.all())
    if (child != first && child != second) third = child;
  quick.call("idle");
  EXPECT_EQ(quick.number(), third);
  kill(third, SIGSTOP);
  int status = 0;
  ASSERT_EQ(waitpid(third, &status, WUNTRACED), third);
  quick.call("idle");
  usleep(300'000);  // it is at the hand-off socket by now, but nothing here tells
  workers.kill_one(third);
  workers.release();
  workers.release();
  const long by = quick.number();
  EXPECT_TRUE(by == first || by == second) << by;
  EXPECT_EQ(one.number(), first);
  EXPECT_EQ(two.number(), second);
  for (Caller* c : {&one, &two, &quick}) c->end();
}

}  // namespace
