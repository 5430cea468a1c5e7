// Calls after which a path may name another file: chroot(2), pivot_root(2), and a mount namespace of the
// process's own.
#include <sched.h>

#include "posix/root_change.h"
#include "preload/preload.h"

using namespace accel;           // NOLINT
using namespace accel::preload;  // NOLINT

namespace accel::preload {

void before_root_change() {
  if (on() && !in_vfork_child()) served([] { posix::before_root_changes(); });
}

}  // namespace accel::preload

namespace {

bool changes_mounts(int flags) { return (flags & CLONE_NEWNS) != 0; }

}  // namespace

ACCEL_EXPORT(int, chroot, (const char* path)) {
  before_root_change();
  return real.chroot(path);
}

ACCEL_EXPORT(int, pivot_root, (const char* root, const char* old)) {
  before_root_change();
  return real.pivot_root(root, old);
}

ACCEL_EXPORT(int, unshare, (int flags)) {
  if (changes_mounts(flags)) before_root_change();
  return real.unshare(flags);
}

/// Kind 0 takes any namespace that the descriptor is.
ACCEL_EXPORT(int, setns, (int fd, int kind)) {
  if (kind == 0 || changes_mounts(kind)) before_root_change();
  return real.setns(fd, kind);
}
