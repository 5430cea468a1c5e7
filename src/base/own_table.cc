#include "base/own_table.h"

#include <errno.h>
#include <linux/close_range.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <new>
#include <utility>

#include "base/bare_syscall.h"
#include "base/real.h"

namespace accel {
namespace {

using CloneFunction = int (*)(int (*)(void*), void*, int, void*, ...);

thread_local void* top [[gnu::tls_model("initial-exec")]] = nullptr;
constexpr pid_t kBegins = -1;
/// The last task of each thread that has them: its number, kBegins, or 0. Threads share a place only where
/// there have been more than places.
constinit std::array<std::atomic<pid_t>, 8> last_tasks{};
std::atomic<uint32_t> threads{0};
std::atomic<uint64_t> begun{0};
thread_local std::atomic<pid_t>* last_task [[gnu::tls_model("initial-exec")]] = nullptr;
/// ThreadSanitizer takes clone() for a fork: __clone() is the same.
std::atomic<CloneFunction> libc_clone{nullptr};

struct Task {
  void (*work)(void*);
  void* context;
  bool done = false;
  bool no_memory = false;  ///< std::bad_alloc, which cannot leave the task's stack
};

int run(void* of) {
  Task& task = *static_cast<Task*>(of);
  last_task->store(gettid());
  if (bare_syscall(SYS_close_range, 0, ~0u, CLOSE_RANGE_UNSHARE) == 0) {
    try {
      task.work(task.context);
    } catch (const std::bad_alloc&) {
      task.no_memory = true;
    }
    task.done = true;
  }
  return 0;
}

}  // namespace

void begin_own_tables(void* stack, unsigned long size) {
  const auto found = reinterpret_cast<CloneFunction>(find_real("__clone"));
  libc_clone.store(found, std::memory_order_relaxed);
  if (found == nullptr) return;
  top = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(stack) + size) & ~uintptr_t{63});
  last_task = &last_tasks[threads.fetch_add(1) % last_tasks.size()];
}

OwnTableTasks own_table_tasks() {
  OwnTableTasks tasks{begun.load(), 0};
  for (const auto& last : last_tasks) {
    const pid_t id = last.load();
    if (id == kBegins || (id > 0 && bare_syscall(SYS_tgkill, getpid(), id, 0) == 0)) ++tasks.now;
  }
  return tasks;
}

void own_tables_after_fork_in_child() {
  for (auto& last : last_tasks) last.store(0);
}

void in_own_table(void (*work)(void*), void* context) {
  constexpr int kFlags =
      CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_VFORK;
  Task task{work, context};
  if (void* const stack = std::exchange(top, nullptr)) {
    const int saved = errno;
    last_task->store(kBegins);
    begun.fetch_add(1);
    if (libc_clone.load(std::memory_order_relaxed)(run, stack, kFlags, &task) < 0) last_task->store(0);
    errno = saved;
    top = stack;
  }
  if (task.no_memory) throw std::bad_alloc();
  if (!task.done) work(context);
}

}  // namespace accel
