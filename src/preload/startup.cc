// The library's beginning and end. The beginning is a look at the environment: no file, no thread, no
// allocation; everything else waits for the first Internet socket. Linked last, so that it runs
// after the layers' own initialisers and its destructor before theirs.
#include <stdlib.h>
#include <sys/auxv.h>

#include "operators/operators.h"
#include "preload/preload.h"

namespace accel::preload {

std::atomic<bool> taking_part{false};

void before_first_socket() {
  static std::atomic<bool> done{false};
  if (done.load(std::memory_order_relaxed)) return;
  resolve_real();
  done.store(true, std::memory_order_relaxed);
}

namespace {

bool disabled() {
  if (getauxval(AT_SECURE) != 0) return true;  // set-user-id: whoever started it must not steer it
  const char* value = getenv("ACCEL_DISABLE");
  return value != nullptr && *value != '\0' && !(value[0] == '0' && value[1] == '\0');
}

[[gnu::constructor]] void start() {
  memory::calls = {&memory::allocate, &memory::try_allocate, &memory::release};
  memory::for_modules = &memory::calls;
  if (disabled()) return;
  taking_part.store(true, std::memory_order_relaxed);
  served([] {  // main() begins with an errno of 0
    stand_first_at_fork();
    if (getenv("LISTEN_FDS") != nullptr)
      posix::adopt_listeners();  // sd_listen_fds(3): it may only ever accept()
  });
}

[[gnu::destructor]] void at_exit() { end(); }

}  // namespace

void end() {
  taking_part.store(false, std::memory_order_relaxed);
  if (!posix::active()) return;
  const ServedCall inside;
  posix::at_exit();
}

}  // namespace accel::preload
