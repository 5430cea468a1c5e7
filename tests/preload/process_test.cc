// Processes under the shim: made, replaced and ended in every way libc knows, with libc's results; and posix
// told each time.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/sched.h>
#include <pty.h>
#include <sched.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "stub_log.h"

extern char** environ;

namespace {

class Processes : public testing::Test {
 protected:
  void SetUp() override {
    stub_log();              // what an earlier run left
    unsetenv("LD_PRELOAD");  // the programs started here are not looked at
    ours = socket(AF_INET, SOCK_STREAM, 0);
    stub_log();
  }
  void TearDown() override { close(ours); }
  static int status_of(pid_t child) {
    int status = -1;
    EXPECT_EQ(child, waitpid(child, &status, 0));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  int ours = -1;
};

/// Runs `exec` in a child: its exit status is the new program's, or 99 when exec came back.
template <class F>
int in_child(F exec) {
  const pid_t child = fork();
  if (child == 0) {
    exec();
    _exit(99);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#define EXPECT_TOLD_SORTED(names)              \
  do {                                         \
    if (getenv("ACCEL_STUB_LOG") != nullptr) { \
      EXPECT_EQ(names, sorted_of(stub_log())); \
    }                                          \
  } while (0)

Names sorted_of(Names names) {
  std::sort(names.begin(), names.end());
  return names;
}

/// Told this once, among others.
#define EXPECT_TOLD_OF(name)                                  \
  do {                                                        \
    if (getenv("ACCEL_STUB_LOG") != nullptr) {                \
      const Names all = stub_log();                           \
      EXPECT_EQ(1, std::count(all.begin(), all.end(), name)); \
    }                                                         \
  } while (0)

char name[] = "sh", option[] = "-c", seven[] = "exit 7", variable[] = "exit $N";
char* const arguments[] = {name, option, seven, nullptr};
char* const asking[] = {name, option, variable, nullptr};
char eight[] = "N=8";
char* const environment[] = {eight, nullptr};

TEST_F(Processes, ExecFamily) {
  const Names expected{"after_fork child", "after_fork parent", "before_exec", "prepare_fork"};
#define EXPECT_EXEC(status, call)               \
  do {                                          \
    EXPECT_EQ(status, in_child([&] { call; })); \
    EXPECT_TOLD_SORTED(expected);               \
  } while (0)
  EXPECT_EXEC(7, execv("/bin/sh", arguments));
  EXPECT_EXEC(7, execvp("sh", arguments));
  EXPECT_EXEC(8, execve("/bin/sh", asking, environment));
  EXPECT_EXEC(8, execvpe("sh", asking, environment));
  EXPECT_EXEC(7, execl("/bin/sh", "sh", "-c", "exit 7", nullptr));
  EXPECT_EXEC(7, execlp("sh", "sh", "-c", "exit 7", nullptr));
  EXPECT_EXEC(8, execle("/bin/sh", "sh", "-c", "exit $N", nullptr, environment));
  EXPECT_EXEC(8, execveat(AT_FDCWD, "/bin/sh", asking, environment, 0));
  EXPECT_EXEC(8, fexecve(open("/bin/sh", O_RDONLY | O_CLOEXEC), asking, environment));
  EXPECT_EXEC(8, syscall(SYS_execve, "/bin/sh", asking, environment));
#undef EXPECT_EXEC
}

TEST_F(Processes, FailedExecCarriesOn) {
  errno = 0;
  EXPECT_EQ(-1, execl("/nonexistent/program", "program", nullptr));
  EXPECT_EQ(ENOENT, errno);
  EXPECT_TOLD(Names{"before_exec", "after_failed_exec"});
}

TEST_F(Processes, Vfork) {
  for (int i = 0; i < 20; ++i) {
    volatile int on_stack = 1;
    const pid_t child = vfork();
    if (child == 0) {
      on_stack = 2;
      execv("/bin/sh", arguments);
      _exit(99);
    }
    EXPECT_GT(child, 0);
    if (getenv("ACCEL_STUB_LOG") != nullptr) {
      EXPECT_EQ(getenv("ACCEL_STUB_FORK") != nullptr ? 1 : 2, on_stack);
    }
    EXPECT_EQ(7, status_of(child));
  }
}

void never(int) {}

/// The child's changes of actions are its own, though it shares the memory in which the library keeps the
/// program's.
TEST_F(Processes, VforkChildSetsSignals) {
  close(ours);  // else it is a fork
  ASSERT_NE(SIG_ERR, signal(SIGUSR1, never));
  stub_log();
  const pid_t child = vfork();
  if (child == 0) {
    signal(SIGUSR1, SIG_IGN);
    execl("/bin/sh", "sh", "-c", "kill -USR1 $$; exit 6", nullptr);
    _exit(99);
  }
  EXPECT_EQ(6, status_of(child));
  stub_log();
  EXPECT_EQ(never, signal(SIGUSR1, SIG_DFL));
  EXPECT_TOLD(Names{"sigaction"});
  ours = socket(AF_INET, SOCK_STREAM, 0);
}

TEST_F(Processes, Spawn) {
  pid_t child = -1;
  EXPECT_EQ(0, posix_spawn(&child, "/bin/sh", nullptr, nullptr, arguments, environ));
  EXPECT_EQ(7, status_of(child));
  EXPECT_TOLD(Names{"before_spawn"});
  EXPECT_EQ(0, posix_spawnp(&child, "sh", nullptr, nullptr, asking, environment));
  EXPECT_EQ(8, status_of(child));
  EXPECT_TOLD(Names{"before_spawn"});
  EXPECT_EQ(ENOENT, posix_spawn(&child, "/nonexistent/program", nullptr, nullptr, arguments, environ));
  stub_log();
}

TEST_F(Processes, SystemAndPopen) {
  EXPECT_EQ(7, WEXITSTATUS(system("exit 7")));
  EXPECT_TOLD(Names{"before_spawn"});
  FILE* f = popen("echo hello", "r");
  ASSERT_NE(nullptr, f);
  char line[16] = {};
  EXPECT_NE(nullptr, fgets(line, sizeof line, f));
  EXPECT_STREQ("hello\n", line);
  EXPECT_EQ(0, pclose(f));
  EXPECT_TOLD_OF("before_spawn");
}

TEST_F(Processes, ForkAndExit) {
  const Names told{"after_fork child", "after_fork parent", "at_exit", "prepare_fork"};
  EXPECT_EQ(3, in_child([] { _exit(3); }));
  EXPECT_TOLD_SORTED(told);
  EXPECT_EQ(3, in_child([] { _Exit(3); }));
  EXPECT_TOLD_SORTED(told);
  EXPECT_EQ(3, in_child([] { quick_exit(3); }));
  EXPECT_TOLD_SORTED(told);
  EXPECT_EQ(3, in_child([] { exit(3); }));
  EXPECT_TOLD_SORTED(told);
  EXPECT_EQ(3, in_child([] { syscall(SYS_exit_group, 3); }));
  EXPECT_TOLD_SORTED(told);
}

TEST_F(Processes, ForksByOtherNames) {
  const Names told{"after_fork child", "after_fork parent", "at_exit", "prepare_fork"};
  pid_t child = _Fork();
  if (child == 0) _exit(4);
  EXPECT_EQ(4, status_of(child));
  EXPECT_TOLD_SORTED(told);
  child = static_cast<pid_t>(syscall(SYS_fork));
  if (child == 0) _exit(4);
  EXPECT_EQ(4, status_of(child));
  EXPECT_TOLD_SORTED(told);
  child = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  if (child == 0) _exit(4);
  EXPECT_EQ(4, status_of(child));
  EXPECT_TOLD_SORTED(told);
  clone_args how{};
  how.exit_signal = SIGCHLD;
  child = static_cast<pid_t>(syscall(SYS_clone3, &how, sizeof how));
  if (child == 0) _exit(4);
  EXPECT_EQ(4, status_of(child));
  EXPECT_TOLD_SORTED(told);
}

TEST_F(Processes, Clone) {
  constexpr size_t kStack = 256 * 1024;
  char* stack =
      static_cast<char*>(mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  int value = 5;
  auto body = [](void* v) { return *static_cast<int*>(v); };
  pid_t child = clone(body, stack + kStack, SIGCHLD, &value);
  EXPECT_EQ(5, status_of(child));
  EXPECT_TOLD_SORTED((Names{"after_fork child", "after_fork parent", "prepare_fork"}));
  child = clone(body, stack + kStack, CLONE_VM | CLONE_VFORK | SIGCHLD, &value);
  EXPECT_EQ(5, status_of(child));
  EXPECT_TOLD_SORTED((Names{"after_fork child", "after_fork parent", "prepare_fork"}));
  child = clone(body, stack + kStack, CLONE_VM | CLONE_VFORK | CLONE_FILES | SIGCHLD, &value);
  EXPECT_EQ(5, status_of(child));
  EXPECT_TOLD_OF("before_spawn");
  munmap(stack, kStack);
}

TEST_F(Processes, Daemon) {
  int ends[2];
  ASSERT_EQ(0, pipe2(ends, O_CLOEXEC));
  EXPECT_EQ(0, in_child([&] {
              const pid_t before = getpid();
              if (daemon(0, 0) != 0) _exit(1);
              char directory[64] = {};
              const bool well = getpid() != before && getsid(0) == getpid() &&
                                getcwd(directory, sizeof directory) != nullptr &&
                                strcmp(directory, "/") == 0 && write(STDOUT_FILENO, "x", 1) == 1 &&
                                fcntl(ours, F_GETFD) >= 0;
              if (write(ends[1], well ? "y" : "n", 1) != 1) _exit(1);
              _exit(0);
            }));
  char answer = 0;
  EXPECT_EQ(1, read(ends[0], &answer, 1));
  EXPECT_EQ('y', answer);
  close(ends[0]);
  close(ends[1]);
}

TEST_F(Processes, Forkpty) {
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    const bool well = isatty(0) && isatty(1) && isatty(2);
    if (write(STDOUT_FILENO, well ? "tty" : "no", well ? 3 : 2) < 0) _exit(1);
    _exit(0);
  }
  ASSERT_GT(child, 0);
  char text[8] = {};
  EXPECT_EQ(3, read(terminal, text, sizeof text));
  EXPECT_STREQ("tty", text);
  EXPECT_EQ(0, status_of(child));
  close(terminal);
}

}  // namespace
