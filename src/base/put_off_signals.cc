#include "base/put_off_signals.h"

#include <errno.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <utility>

#include "base/real.h"

namespace accel {
namespace {

constexpr size_t kKernelSetSize = sizeof(uint64_t);

}  // namespace

thread_local SignalBrackets signal_brackets;

void change_signal_mask(int how, uint64_t set) {
  real.syscall(SYS_rt_sigprocmask, static_cast<long>(how), &set, nullptr, kKernelSetSize, 0L, 0L);
}

bool put_off_signal(int number, siginfo_t* info, void* context) {
  const int saved = errno;
  change_signal_mask(SIG_BLOCK, signal_bit(number));  // SA_NODEFER: it is not blocked in the handler
  const long queued =
      real.syscall(SYS_rt_tgsigqueueinfo, static_cast<long>(getpid()),
                   real.syscall(SYS_gettid, 0L, 0L, 0L, 0L, 0L, 0L), static_cast<long>(number), info, 0L, 0L);
  errno = saved;
  if (queued != 0) return false;
  // The handler's return restores this mask. The kernel's set is the first word of libc's.
  auto* mask = reinterpret_cast<uint64_t*>(&static_cast<ucontext_t*>(context)->uc_sigmask);
  *mask |= signal_bit(number);
  signal_brackets.put_off |= signal_bit(number);
  return true;
}

void admit_put_off_signals() {
  if (signal_brackets.put_off == 0) return;
  const int saved = errno;
  const uint64_t waiting = std::exchange(signal_brackets.put_off, 0);
  change_signal_mask(SIG_UNBLOCK, waiting);  // the handlers run here
  errno = saved;
}

}  // namespace accel
