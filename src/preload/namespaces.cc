// unshare(2) and setns(2). The kernel takes some of their flags from a process of one thread only, which a
// program may well be but for the library's threads: those end before, and the sockets are the kernel's from
// then on. Where the kernel refuses the call anyway, as a process of its own finds out, all stays as it is.
#include <linux/nsfs.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "base/bare_syscall.h"
#include "preload/preload.h"

using namespace accel;           // NOLINT
using namespace accel::preload;  // NOLINT

namespace accel::preload {
namespace {

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x00000080
#endif
// kernel/fork.c, check_unshare_flags(); a user namespace implies CLONE_THREAD.
constexpr int kUnshareAlone = CLONE_NEWUSER | CLONE_THREAD | CLONE_SIGHAND | CLONE_VM;
// The install() of kernel/user_namespace.c, fs/namespace.c (other threads share the root) and
// kernel/time/namespace.c.
constexpr int kEnterAlone = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWTIME;

void end_own_threads_for(const TrialCall& call) {
  if (!on() || in_vfork_child()) return;
  served([&call] {
    if (posix::only_own_threads_run() && kernel_takes(call) && posix::retire(Reason::single_thread))
      taking_part.store(false, std::memory_order_relaxed);
  });
}

bool changes_mounts(int flags) { return (flags & CLONE_NEWNS) != 0; }

}  // namespace

void before_unshare(int flags) {
  if (changes_mounts(flags)) before_root_change();
  if ((flags & kUnshareAlone) != 0) end_own_threads_for({SYS_unshare, {flags}});
}

void before_setns(int fd, int kind) {
  // Kind 0 takes any namespace that the descriptor is.
  const int kinds = kind != 0 ? kind : static_cast<int>(bare_syscall(SYS_ioctl, fd, NS_GET_NSTYPE));
  if (kinds < 0) return;
  if (changes_mounts(kinds)) before_root_change();
  if ((kinds & kEnterAlone) != 0) end_own_threads_for({SYS_setns, {fd, kind}});
}

}  // namespace accel::preload

ACCEL_EXPORT(int, unshare, (int flags)) {
  before_unshare(flags);
  return real.unshare(flags);
}

ACCEL_EXPORT(int, setns, (int fd, int kind)) {
  before_setns(fd, kind);
  return real.setns(fd, kind);
}
