// The ways to install a handler. All of them are sigaction(): posix keeps the program's action and stands in
// front of it, so that a call interrupted within our stack ends as the kernel's would.
#include <string.h>

#include "preload/preload.h"

using namespace accel;           // NOLINT
using namespace accel::preload;  // NOLINT

ACCEL_EXPORT(int, sigaction, (int number, const struct sigaction* action, struct sigaction* old)) {
  if (!on()) return real.sigaction(number, action, old);
  if (in_vfork_child()) {  // a shell's child, putting back what its parent has changed: the kernel's affair
    if (old != nullptr && !posix::sigaction(number, nullptr, old)) return real.sigaction(number, action, old);
    return action != nullptr ? real.sigaction(number, action, nullptr) : 0;
  }
  return served([=] { return to_libc(posix::sigaction(number, action, old)); });
}
ACCEL_ALIAS(__sigaction, sigaction)

namespace {

/// Signals that siginterrupt() has told signal() to leave without SA_RESTART.
std::atomic<uint64_t> interrupting{0};

bool valid(int number) { return number > 0 && number < _NSIG; }
uint64_t bit(int number) { return uint64_t{1} << (number - 1); }

sighandler_t install(int number, sighandler_t handler, int flags, bool mask_itself) {
  if (handler == SIG_ERR || !valid(number)) {
    errno = EINVAL;
    return SIG_ERR;
  }
  struct sigaction action {
  }, old{};
  action.sa_handler = handler;
  action.sa_flags = flags;
  if (mask_itself) sigaddset(&action.sa_mask, number);
  return accel_call_sigaction(number, &action, &old) == 0 ? old.sa_handler : SIG_ERR;
}

}  // namespace

// The flags are glibc's (sysdeps/posix/signal.c, sysv_signal.c, siginterrupt.c, signal/sigset.c).

ACCEL_EXPORT(sighandler_t, signal, (int number, sighandler_t handler)) {
  const bool restart = !valid(number) || (interrupting.load(std::memory_order_relaxed) & bit(number)) == 0;
  return install(number, handler, restart ? SA_RESTART : 0, true);
}
ACCEL_ALIAS(bsd_signal, signal)
ACCEL_ALIAS(ssignal, signal)

ACCEL_EXPORT(sighandler_t, __sysv_signal, (int number, sighandler_t handler)) {
  return install(number, handler, static_cast<int>(SA_RESETHAND) | SA_NODEFER, false);
}
ACCEL_ALIAS(sysv_signal, __sysv_signal)

ACCEL_EXPORT(int, siginterrupt, (int number, int interrupt)) {
  struct sigaction action {};
  if (accel_call_sigaction(number, nullptr, &action) != 0) return -1;
  if (interrupt != 0) {
    interrupting.fetch_or(bit(number), std::memory_order_relaxed);
    action.sa_flags &= ~SA_RESTART;
  } else {
    interrupting.fetch_and(~bit(number), std::memory_order_relaxed);
    action.sa_flags |= SA_RESTART;
  }
  return accel_call_sigaction(number, &action, nullptr);
}

ACCEL_EXPORT(int, sigignore, (int number)) {
  struct sigaction action {};
  action.sa_handler = SIG_IGN;
  return accel_call_sigaction(number, &action, nullptr);
}

ACCEL_EXPORT(sighandler_t, sigset, (int number, sighandler_t handler)) {
  if (handler == SIG_ERR || !valid(number)) {
    errno = EINVAL;
    return SIG_ERR;
  }
  sigset_t only, before;
  sigemptyset(&only);
  sigaddset(&only, number);
  struct sigaction action {
  }, old{};
  if (handler == SIG_HOLD) {  // the handler stays, the signal is blocked
    if (sigprocmask(SIG_BLOCK, &only, &before) != 0) return SIG_ERR;
    if (sigismember(&before, number) == 1) return SIG_HOLD;
    return accel_call_sigaction(number, nullptr, &old) == 0 ? old.sa_handler : SIG_ERR;
  }
  action.sa_handler = handler;
  if (accel_call_sigaction(number, &action, &old) != 0) return SIG_ERR;
  if (sigprocmask(SIG_UNBLOCK, &only, &before) != 0) return SIG_ERR;
  return sigismember(&before, number) == 1 ? SIG_HOLD : old.sa_handler;
}
