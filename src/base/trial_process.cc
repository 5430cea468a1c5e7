#include "base/trial_process.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>

#include "base/bare_syscall.h"
#include "base/signals_blocked.h"

namespace accel {
namespace {

/// A filter may refuse the call instead of killing for it.
[[noreturn]] void end() {
  bare_syscall(SYS_exit_group, 0);
  bare_syscall(SYS_exit, 0);
  __builtin_trap();
}

void try_call(volatile int* error, const void* argument) {
  const auto& call = *static_cast<const TrialCall*>(argument);
  *error =
      static_cast<int>(bare_syscall(call.number, call.arguments[0], call.arguments[1], call.arguments[2]));
}

}  // namespace

TrialEnd try_in_process(void (*body)(volatile int* at, const void* argument), const void* argument) {
  TrialEnd trial;
  void* page = mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return trial;
  auto* at = static_cast<volatile int*>(page);
  {
    const AllSignalsBlocked blocked;  // what is forced on a thread that blocks it takes its default action
    const long child = bare_syscall(SYS_clone, 0);  // fork() but for SIGCHLD
    if (child == 0) {
      bare_syscall(SYS_prctl, PR_SET_DUMPABLE, 0);
      body(at, argument);
      end();
    }
    trial.made = child > 0;
    if (trial.made)
      while (bare_syscall(SYS_wait4, child, reinterpret_cast<long>(&trial.status), __WALL) == -EINTR) {
      }
  }
  trial.last = *at;
  munmap(page, sizeof(int));
  return trial;
}

bool kernel_takes(const TrialCall& call) {
  const TrialEnd trial = try_in_process(&try_call, &call);
  return !trial.made || trial.last >= 0;
}

}  // namespace accel
