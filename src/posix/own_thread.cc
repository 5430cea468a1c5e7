#include "posix/own_thread.h"

#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "base/bare_syscall.h"
#include "base/own_table.h"

namespace accel::posix {
namespace {

std::atomic<long> own{0};
std::atomic<uint64_t> changes{0};  ///< of `own`
std::atomic<pid_t> leaving{0};     ///< detached, and perhaps not over yet

void add(long threads) {
  changes.fetch_add(1);
  own.fetch_add(threads);
}

/// The process's threads, which Linux counts as links of the folder (fs/proc/base.c, proc_task_getattr()). 0:
/// there is no /proc.
long threads() {
  struct stat folder;
  return ::stat("/proc/self/task", &folder) == 0 ? static_cast<long>(folder.st_nlink) - 2 : 0;
}

}  // namespace

Result<void> start_own_thread(pthread_t* thread, void* (*run)(void*), void* argument) {
  constexpr size_t kStackSize = 512 * 1024;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackSize);
  sigset_t all, before;
  sigfillset(&all);
  add(1);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(thread, &attributes, run, argument);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  if (error == 0) return {};
  add(-1);
  return err(error);
}

void join_own_thread(pthread_t thread) {
  pthread_join(thread, nullptr);
  add(-1);
}

void detach_own_thread() {
  pthread_detach(pthread_self());
  leaving.store(gettid());
  add(-1);
}

void own_threads_after_fork_in_child() {
  own.store(0);
  leaving.store(0);
  own_tables_after_fork_in_child();
}

bool alone_but_for_own_threads() {
  // One may begin or end another meanwhile.
  for (;;) {
    const uint64_t seen = changes.load();
    const OwnTableTasks tasks = own_table_tasks();
    const pid_t last = leaving.load();
    const bool leaves = last != 0 && bare_syscall(SYS_tgkill, getpid(), last, 0) == 0;
    const long ours = own.load() + (leaves ? 1 : 0);
    const bool alone = ours > 0 && threads() <= 1 + ours + tasks.now;
    if (changes.load() == seen && own_table_tasks() == tasks) return alone;
  }
}

void wait_until_alone() {
  constexpr timespec kPause{0, 20'000};  // the kernel tells nobody
  for (int i = 0; i < 50'000 && threads() > 1; ++i) nanosleep(&kPause, nullptr);
}

}  // namespace accel::posix
