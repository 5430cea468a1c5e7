// No handler of the program's runs in this thread, nor in a process that it makes meanwhile.
#pragma once

#include <signal.h>

#include <cstdint>

#include "base/bare_syscall.h"

namespace accel {

/// Those that libc keeps for itself as well.
struct AllSignalsBlocked {
  uint64_t before = 0;
  AllSignalsBlocked() {
    const uint64_t all = ~uint64_t{0};
    change(&all, &before);
  }
  ~AllSignalsBlocked() { change(&before, nullptr); }
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;
  static void change(const uint64_t* mask, uint64_t* old) {
    bare_syscall(SYS_rt_sigprocmask, SIG_SETMASK, reinterpret_cast<long>(mask), reinterpret_cast<long>(old),
                 sizeof(uint64_t));
  }
};

}  // namespace accel
