// The trampoline is installed in the kernel in place of the program's handler, with the program's mask and
// flags; the table below has what the program asked for and gets back. SIGFPE and its like keep the program's
// handler itself: they come from the thread's own doing and end no wait. So do SIGSEGV and SIGBUS, but for
// the faults of base/user_memory.h.
//
// A signal that arrives while its thread is inside one of our locks is put off (base/put_off_signals.h). All
// of this is async-signal-safe and needs no engine.
#include "posix/signals.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>

#include "base/put_off_signals.h"
#include "base/real.h"
#include "base/served_call.h"
#include "base/user_memory.h"
#include "engine/engine.h"
#include "posix/calls.h"
#include "posix/finish_request.h"

namespace accel::posix {
namespace {

using Handler = void (*)(int, siginfo_t*, void*);

/// What the program asked for one signal. Handlers read it without a lock: `handler` alone decides what runs.
struct Action {
  std::atomic<Handler> handler{nullptr};  ///< nullptr: SIG_DFL (or SIG_IGN, which the kernel knows)
  std::atomic<int> flags{0};
  std::atomic<bool> guarded{false};  ///< SIG_DFL, and die() stands in for it
};

std::array<Action, NSIG> actions;
std::atomic<bool> guarding{false};
std::atomic<bool> checking_memory{false};  ///< on_fault() stands in for SIG_DFL, too

/// SA_RESTORER (asm/signal.h), which libc sets and shows to the program.
constexpr int kRestorer = 0x04000000;

/// Signals that a fault in the thread's own code raises; libc's abort() as well.
bool synchronous(int number) {
  switch (number) {
    case SIGSEGV:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
    case SIGTRAP:
    case SIGSYS:
    case SIGABRT:
      return true;
    default:
      return false;
  }
}

bool memory_fault(int number) { return number == SIGSEGV || number == SIGBUS; }

/// signal(7), "Term" or "Core", but for those above and the two that cannot be caught.
bool default_is_fatal(int number) {
  switch (number) {
    case SIGHUP:
    case SIGINT:
    case SIGQUIT:
    case SIGUSR1:
    case SIGUSR2:
    case SIGPIPE:
    case SIGALRM:
    case SIGTERM:
    case SIGSTKFLT:
    case SIGXCPU:
    case SIGXFSZ:
    case SIGVTALRM:
    case SIGPROF:
    case SIGIO:
    case SIGPWR:
      return true;
    default:
      return number >= SIGRTMIN && number <= SIGRTMAX;
  }
}

/// False: it runs now.
bool has_to_wait(int number, siginfo_t* info, void* context) {
  return signal_brackets.inside() && put_off_signal(number, info, context);
}

void trampoline(int number, siginfo_t* info, void* context) {
  if (has_to_wait(number, info, context)) return;
  Action& action = actions[static_cast<size_t>(number)];
  const Handler handler = action.handler.load(std::memory_order_acquire);
  const int flags = action.flags.load(std::memory_order_relaxed);
  if (handler == nullptr) return;  // set to SIG_DFL or SIG_IGN between delivery and here
  if (flags &
      SA_RESETHAND) {  // by us, since the kernel would have reset it for a signal that was then put off
    const int saved = errno;
    struct sigaction reset {};
    reset.sa_handler = SIG_DFL;
    reset.sa_flags = flags;
    (void)posix::sigaction(number, &reset, nullptr);
    errno = saved;
  }
  Engine::signal_ran((flags & SA_RESTART) != 0);
  const void* const outer = Engine::enter_handler(__builtin_frame_address(0));
  const bool served = ServedCall::enter_handler();
  handler(number, info, context);
  ServedCall::leave_handler(served);
  Engine::leave_handler(outer);
}

/// In place of SIG_DFL: delivers what is owed, then dies of the signal.
void die(int number, siginfo_t* info, void* context) {
  if (has_to_wait(number, info, context)) return;
  request_finish();
  struct sigaction by_default {};
  by_default.sa_handler = SIG_DFL;
  real.sigaction(number, &by_default, nullptr);
  // Queued anew while it is blocked, so that waitid() and the parent see the signal itself.
  change_signal_mask(SIG_BLOCK, signal_bit(number));
  real.syscall(SYS_tgkill, static_cast<long>(getpid()), real.syscall(SYS_gettid, 0L, 0L, 0L, 0L, 0L, 0L),
               static_cast<long>(number), 0L, 0L, 0L);
  change_signal_mask(SIG_UNBLOCK, signal_bit(number));
}

/// In place of the program's handler of SIGSEGV or SIGBUS, or of SIG_DFL.
void on_fault(int number, siginfo_t* info, void* context) {
  if (resume_after_fault(context)) return;
  Action& action = actions[static_cast<size_t>(number)];
  const Handler handler = action.handler.load(std::memory_order_acquire);
  const int flags = action.flags.load(std::memory_order_relaxed);
  if (handler == nullptr || (flags & SA_RESETHAND) != 0) {
    struct sigaction by_default {};
    by_default.sa_handler = SIG_DFL;
    real.sigaction(number, &by_default, nullptr);
    action.handler.store(nullptr);
  }
  if (handler != nullptr) {
    const bool served = ServedCall::enter_handler();
    handler(number, info, context);
    return ServedCall::leave_handler(served);
  }
  // A fault happens again when this returns, and leaves its core as it was; a signal that was sent is sent
  // again.
  if (info->si_code <= 0 && put_off_signal(number, info, context)) admit_put_off_signals();
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 &&
         (action.sa_sigaction == trampoline || action.sa_sigaction == die || action.sa_sigaction == on_fault);
}

/// From what the kernel has to what the program set.
void translate(struct sigaction& action, Handler handler, int flags) {
  if (!is_ours(action)) return;
  const bool guarded = action.sa_sigaction == die || handler == nullptr;
  action.sa_flags = flags | (action.sa_flags & kRestorer);
  if (guarded)
    action.sa_handler = SIG_DFL;
  else
    action.sa_sigaction = handler;
}

/// What the kernel is to have for what the program asked.
struct sigaction installed_for(int number, const struct sigaction& asked) {
  struct sigaction action = asked;
  if (asked.sa_handler == SIG_IGN) return action;
  if (memory_fault(number)) {
    if (asked.sa_handler == SIG_DFL && !checking_memory.load()) return action;
    action.sa_sigaction = on_fault;
    action.sa_flags =
        (asked.sa_flags & ~SA_RESETHAND) | SA_SIGINFO | (asked.sa_handler == SIG_DFL ? SA_ONSTACK : 0);
    return action;
  }
  if (synchronous(number)) return action;
  if (asked.sa_handler == SIG_DFL) {
    if (!guarding.load() || !default_is_fatal(number)) return action;
    action.sa_sigaction = die;
    action.sa_flags = (asked.sa_flags & ~SA_RESETHAND) | SA_SIGINFO | SA_RESTART;
    return action;
  }
  action.sa_sigaction = trampoline;
  action.sa_flags = (asked.sa_flags & ~SA_RESETHAND) | SA_SIGINFO;
  // RESETHAND implies that the handler runs with the default action in force, which trampoline() sees to.
  return action;
}

}  // namespace

Result<int> sigaction(int number, const struct sigaction* asked, struct sigaction* old) {
  if (number <= 0 || number >= NSIG || (asked != nullptr && synchronous(number) && !memory_fault(number))) {
    if (real.sigaction(number, asked, old) != 0) return err(errno);
    return 0;
  }
  Action& action = actions[static_cast<size_t>(number)];
  const Handler old_handler = action.handler.load();
  const int old_flags = action.flags.load();
  if (asked == nullptr) {
    if (real.sigaction(number, nullptr, old) != 0) return err(errno);
    if (old != nullptr) translate(*old, old_handler, old_flags);
    return 0;
  }
  const bool handled = asked->sa_handler != SIG_DFL && asked->sa_handler != SIG_IGN;
  struct sigaction before {};
  const struct sigaction wanted = installed_for(number, *asked);
  // A new handler is in the table before the kernel can call it; an old one stays until it no longer can.
  if (handled) {
    action.flags.store(asked->sa_flags, std::memory_order_relaxed);
    action.handler.store(asked->sa_sigaction, std::memory_order_release);
  }
  if (real.sigaction(number, &wanted, &before) != 0) {
    const int error = errno;
    action.flags.store(old_flags);
    action.handler.store(old_handler);
    return err(error);
  }
  action.flags.store(asked->sa_flags);
  if (!handled) action.handler.store(nullptr);
  translate(before, old_handler, old_flags);
  if (old != nullptr) *old = before;
  return 0;
}

void guard_fatal_signals() {
  if (getpid() == 1)
    return;  // the kernel keeps a namespace's init from dying of signals with SIG_DFL, not with a handler
  if (guarding.exchange(true)) return;
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction now {};
    if (!default_is_fatal(number) || real.sigaction(number, nullptr, &now) != 0) continue;
    if (now.sa_handler != SIG_DFL || is_ours(now)) continue;
    actions[static_cast<size_t>(number)].flags.store(now.sa_flags);
    const struct sigaction guard = installed_for(number, now);
    real.sigaction(number, &guard, nullptr);
  }
}

void adopt_handlers() {
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction now {};
    if (synchronous(number) || real.sigaction(number, nullptr, &now) != 0)
      continue;  // libc's own two: EINVAL
    if (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN || is_ours(now)) continue;
    Action& action = actions[static_cast<size_t>(number)];
    Handler none = nullptr;
    if (!action.handler.compare_exchange_strong(none, now.sa_sigaction)) continue;  // another thread sets one
    action.flags.store(now.sa_flags);
    const struct sigaction ours = installed_for(number, now);
    real.sigaction(number, &ours, nullptr);
  }
}

void check_memory_by_faults() {
  if (getpid() == 1 || checking_memory.exchange(true)) return;  // as above
  for (int number : {SIGSEGV, SIGBUS}) {
    struct sigaction now {};
    if (real.sigaction(number, nullptr, &now) != 0 || now.sa_handler == SIG_IGN || is_ours(now)) continue;
    Action& action = actions[static_cast<size_t>(number)];
    action.flags.store(now.sa_flags);
    if (now.sa_handler != SIG_DFL) action.handler.store(now.sa_sigaction);
    const struct sigaction guard = installed_for(number, now);
    real.sigaction(number, &guard, nullptr);
  }
}

void signals_after_fork_in_child() { admit_put_off_signals(); }

}  // namespace accel::posix
