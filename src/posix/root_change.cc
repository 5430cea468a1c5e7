#include "posix/root_change.h"

#include <cerrno>

#include "base/config.h"
#include "engine/lock.h"
#include "engine/modules.h"
#include "posix/calls.h"
#include "posix/guard.h"

namespace accel::posix {

void before_root_changes() {
  // The configuration is a file of the old root as well.
  if (!active() && !config().settings.early_ports) return;
  if (Guard::inside() || in_handler()) return;
  const int saved = errno;
  load_engine_modules();
  errno = saved;
}

}  // namespace accel::posix
