// seccomp(2): a program that filters its own system calls allows those that it makes itself, and is killed
// for others. Before such a filter is in force the kernel gets all sockets, and the library makes no call
// any more. A filter that was there when the program began: base/inherited_filter.h.
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "preload/preload.h"

using namespace accel;           // NOLINT
using namespace accel::preload;  // NOLINT

namespace accel::preload {

void before_filter(bool program) {
  if (!program || !on() || in_vfork_child()) return;
  const int saved = errno;
  if (deferred([] { return posix::before_filter(); })) taking_part.store(false, std::memory_order_relaxed);
  errno = saved;
}

bool gives_filter(int option, unsigned long mode, unsigned long program) {
  return option == PR_SET_SECCOMP &&
         (mode == SECCOMP_MODE_STRICT || (mode == SECCOMP_MODE_FILTER && program != 0));
}

}  // namespace accel::preload

// Variadic in its declaration; what an option does not use is leftovers, which the kernel does not look at
// either, or wants to be nought as the program has them.
ACCEL_EXPORT(int, prctl, (int option, unsigned long a, unsigned long b, unsigned long c, unsigned long d)) {
  if (gives_filter(option, a, b)) before_filter(true);
  return static_cast<int>(real.syscall(SYS_prctl, option, a, b, c, d));
}
