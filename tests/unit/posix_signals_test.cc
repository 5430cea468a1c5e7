// Handlers behind the trampoline: what sigaction() reports, when handlers run, and what kills.
#include <gtest/gtest.h>
#include <setjmp.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "posix/calls.h"
#include "posix/finish_request.h"
#include "posix/guard.h"
#include "posix/signals.h"

namespace accel::posix {
namespace {

std::atomic<int> runs{0};
std::atomic<int> value{0};
std::atomic<bool> inside{false};

void count(int) {
  ++runs;
  if (Guard::inside()) inside = true;
}
void take_value(int, siginfo_t* info, void*) {
  ++runs;
  value = info->si_value.sival_int;
}

struct sigaction act(int number, void (*handler)(int), int flags) {
  struct sigaction asked {
  }, old{};
  asked.sa_handler = handler;
  asked.sa_flags = flags;
  sigaddset(&asked.sa_mask, SIGUSR2);
  EXPECT_EQ(to_libc(posix::sigaction(number, &asked, &old)), 0);
  return old;
}

struct sigaction reported(int number) {
  struct sigaction now {};
  EXPECT_EQ(to_libc(posix::sigaction(number, nullptr, &now)), 0);
  return now;
}

class Signals : public testing::Test {
 protected:
  void SetUp() override {
    runs = value = 0;
    inside = false;
  }
  void TearDown() override {
    for (int number : {SIGUSR1, SIGURG, SIGRTMIN}) act(number, SIG_DFL, 0);
  }
};

TEST_F(Signals, ReportsWhatTheProgramSet) {
  act(SIGUSR1, count, SA_RESTART);
  struct sigaction now = reported(SIGUSR1);
  EXPECT_EQ(now.sa_handler, count);
  EXPECT_EQ(now.sa_flags & (SA_SIGINFO | SA_RESTART | SA_RESETHAND), SA_RESTART);
  EXPECT_TRUE(sigismember(&now.sa_mask, SIGUSR2));
  struct sigaction old = act(SIGUSR1, SIG_IGN, 0);
  EXPECT_EQ(old.sa_handler, count);
  EXPECT_EQ(reported(SIGUSR1).sa_handler, SIG_IGN);
  raise(SIGUSR1);
  EXPECT_EQ(runs, 0);
  old = act(SIGUSR1, SIG_DFL, 0);
  EXPECT_EQ(old.sa_handler, SIG_IGN);
  EXPECT_EQ(reported(SIGUSR1).sa_handler, SIG_DFL);
}

TEST_F(Signals, RefusesAsTheKernelDoes) {
  struct sigaction asked {};
  asked.sa_handler = count;
  EXPECT_EQ(to_libc(posix::sigaction(SIGKILL, &asked, nullptr)), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(to_libc(posix::sigaction(0, &asked, nullptr)), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(to_libc(posix::sigaction(NSIG, &asked, nullptr)), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(Signals, HandlerRunsAtOnceOutsideTheLock) {
  act(SIGUSR1, count, 0);
  raise(SIGUSR1);
  EXPECT_EQ(runs, 1);
}

TEST_F(Signals, HandlerWaitsForTheLock) {
  act(SIGUSR1, count, 0);
  act(SIGURG, count, SA_NODEFER);
  for (int i = 0; i < 3; ++i) {
    runs = 0;
    {
      Guard guard;
      ASSERT_TRUE(guard.ok());
      raise(SIGUSR1);
      raise(SIGURG);
      EXPECT_EQ(runs, 0);
    }
    EXPECT_EQ(runs, 2);
    EXPECT_FALSE(inside);
  }
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  EXPECT_FALSE(sigismember(&mask, SIGUSR1) || sigismember(&mask, SIGURG));
}

TEST_F(Signals, QueuedSignalsKeepTheirValuesWhenPutOff) {
  struct sigaction asked {};
  asked.sa_sigaction = take_value;
  asked.sa_flags = SA_SIGINFO;
  ASSERT_EQ(to_libc(posix::sigaction(SIGRTMIN, &asked, nullptr)), 0);
  {
    Guard guard;
    for (int i = 1; i <= 5; ++i) sigqueue(getpid(), SIGRTMIN, {.sival_int = i});
    EXPECT_EQ(runs, 0);
  }
  EXPECT_EQ(runs, 5);
  EXPECT_NE(value, 0);
}

TEST_F(Signals, ResetHandRunsOnceEvenWhenPutOff) {
  act(SIGURG, count, SA_RESETHAND);  // SIGURG: its default ignores
  EXPECT_EQ(reported(SIGURG).sa_flags & SA_RESETHAND, static_cast<int>(SA_RESETHAND));
  {
    Guard guard;
    raise(SIGURG);
    EXPECT_EQ(runs, 0);
  }
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(reported(SIGURG).sa_handler, SIG_DFL);
  raise(SIGURG);
  EXPECT_EQ(runs, 1);
}

sigjmp_buf out;
void jump(int) { siglongjmp(out, 1); }

TEST_F(Signals, HandlerMayJumpOutOfAPutOff) {
  act(SIGUSR1, jump, 0);
  for (int i = 0; i < 3; ++i) {
    if (sigsetjmp(out, 1) == 0) {
      {
        Guard guard;
        raise(SIGUSR1);
      }
      ADD_FAILURE() << "the handler has not run";
    }
    EXPECT_FALSE(Guard::inside());
  }
}

/// The status of a child that runs `body`.
template <class F>
int status_of(F body) {
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST_F(Signals, GuardedFatalSignalDeliversThenKills) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  static int report;
  report = ends[1];
  const int status = status_of([] {
    take_finish_requests(report, 10);
    guard_fatal_signals();
    if (reported(SIGTERM).sa_handler != SIG_DFL) ::_exit(1);
    struct sigaction asked {};
    asked.sa_handler = SIG_DFL;
    (void)posix::sigaction(SIGTERM, &asked, nullptr);  // again, explicitly
    Guard guard;
    raise(SIGTERM);  // put off
    guard.~Guard();
    ::_exit(2);
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
  char byte = 0;
  EXPECT_EQ(::read(ends[0], &byte, 1), 1);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_F(Signals, GuardingLeavesHandlersAndIgnoredSignalsAlone) {
  const int status = status_of([] {
    act(SIGUSR1, count, 0);
    act(SIGHUP, SIG_IGN, 0);
    guard_fatal_signals();
    raise(SIGUSR1);
    raise(SIGHUP);
    ::_exit(runs == 1 && reported(SIGHUP).sa_handler == SIG_IGN ? 7 : 1);
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
}

}  // namespace
}  // namespace accel::posix
