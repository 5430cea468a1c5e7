// seccomp(2): a program that filters its own system calls allows those that it makes itself, and is killed
// for others. Before such a filter is in force the kernel gets all sockets, and the library makes no call
// any more. Whether the kernel takes the filter a process of its own finds out: where it does not, all stays
// as it is. A filter that was there when the program began: base/inherited_filter.h.
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "base/trial_process.h"
#include "preload/preload.h"

using namespace accel;           // NOLINT
using namespace accel::preload;  // NOLINT

namespace accel::preload {
namespace {

constexpr unsigned long kWaitKillable = 1 << 5;  // SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, Linux 5.19

/// Whether it gives one, or only asks what there is.
bool gives_filter(const TrialCall& call) {
  const long operation = call.arguments[0], mode = call.arguments[1], program = call.arguments[2];
  if (call.number == SYS_seccomp)
    return operation == SECCOMP_SET_MODE_STRICT || (operation == SECCOMP_SET_MODE_FILTER && program != 0);
  return operation == PR_SET_SECCOMP &&
         (mode == SECCOMP_MODE_STRICT || (mode == SECCOMP_MODE_FILTER && program != 0));
}

/// What else can refuse it, threads under other filters (TSYNC), is not tried. Nor are flags by which
/// somebody is asked for each call: those of the trial's end would wait for him.
TrialCall without_listener(TrialCall call) {
  if (call.number == SYS_seccomp && call.arguments[0] == SECCOMP_SET_MODE_FILTER)
    call.arguments[1] &= ~static_cast<long>(SECCOMP_FILTER_FLAG_NEW_LISTENER | kWaitKillable);
  return call;
}

}  // namespace

void before_filter(const TrialCall& call) {
  if (!gives_filter(call) || !on() || in_vfork_child()) return;
  served([&call] {
    if (kernel_takes(without_listener(call)) && posix::retire(Reason::filter))
      taking_part.store(false, std::memory_order_relaxed);
  });
}

}  // namespace accel::preload

// Variadic in its declaration; what an option does not use is leftovers, which the kernel does not look at
// either, or wants to be nought as the program has them.
ACCEL_EXPORT(int, prctl, (int option, unsigned long a, unsigned long b, unsigned long c, unsigned long d)) {
  const auto as_long = [](unsigned long value) { return static_cast<long>(value); };
  before_filter({SYS_prctl, {option, as_long(a), as_long(b)}});
  return static_cast<int>(real.syscall(SYS_prctl, option, a, b, c, d));
}
