// Calls after which a path may name another file: chroot(2) and pivot_root(2). A mount namespace of the
// process's own: namespaces.cc.
#include "posix/root_change.h"
#include "preload/preload.h"

using namespace accel;           // NOLINT
using namespace accel::preload;  // NOLINT

namespace accel::preload {

void before_root_change() {
  if (on() && !in_vfork_child()) served([] { posix::before_root_changes(); });
}

}  // namespace accel::preload

ACCEL_EXPORT(int, chroot, (const char* path)) {
  before_root_change();
  return real.chroot(path);
}

ACCEL_EXPORT(int, pivot_root, (const char* root, const char* old)) {
  before_root_change();
  return real.pivot_root(root, old);
}
