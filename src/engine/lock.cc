#include "engine/lock.h"

namespace accel {

thread_local ThreadState thread_state;

void Alarm::ring() const {
  if (fd < 0) return (void)sem_post(semaphore);
  const uint64_t one = 1;
  // Not write(): that is a cancellation point.
  (void)!real.syscall(SYS_write, fd, &one, sizeof(one), 0L, 0L, 0L);
}

bool in_handler() {
  // A thread that left the handler by siglongjmp() is no longer below its frame, as a rule.
  constexpr uintptr_t kDeepest = 256 << 10;
  const auto handler = reinterpret_cast<uintptr_t>(thread_state.handler);
  return handler - reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) < kDeepest;
}

}  // namespace accel
