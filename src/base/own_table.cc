#include "base/own_table.h"

#include <errno.h>
#include <linux/close_range.h>
#include <sched.h>
#include <sys/syscall.h>

#include <cstdint>
#include <utility>

#include "base/bare_syscall.h"

// Not by clone(), which the preload library and ThreadSanitizer stand before.
extern "C" int __clone(int (*)(void*), void*, int, void*, ...) noexcept;

namespace accel {
namespace {

thread_local void* top [[gnu::tls_model("initial-exec")]] = nullptr;

struct Task {
  void (*work)(void*);
  void* context;
  bool done = false;
};

int run(void* of) {
  Task& task = *static_cast<Task*>(of);
  if (bare_syscall(SYS_close_range, 0, ~0u, CLOSE_RANGE_UNSHARE) == 0) {
    task.work(task.context);
    task.done = true;
  }
  return 0;
}

}  // namespace

void begin_own_tables(void* stack, unsigned long size) {
  top = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(stack) + size) & ~uintptr_t{63});
}

void in_own_table(void (*work)(void*), void* context) {
  constexpr int kFlags =
      CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_VFORK;
  Task task{work, context};
  if (void* const stack = std::exchange(top, nullptr)) {
    const int saved = errno;
    (void)__clone(run, stack, kFlags, &task);
    errno = saved;
    top = stack;
  }
  if (!task.done) work(context);
}

}  // namespace accel
