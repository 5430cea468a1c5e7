// pthread_cancel() and our locks. libc's cancellation points unwind a cancelled thread, and within a lock
// calls of the kernel's that are such points (close() of a shadow, say) are made everywhere: so there a
// thread is not cancelled. It sleeps outside, and is cancelled there. Costs a load until a program cancels a
// thread.
#pragma once

#include <atomic>

namespace accel {

/// The program has called pthread_cancel().
extern constinit std::atomic<bool> cancellation_used;
/// What pthread_setcancelstate() had while this thread is barred, and one more; 0: it is not.
extern constinit thread_local int cancellation_barred [[gnu::tls_model("initial-exec")]];

void bar_cancellation_slowly();
void admit_cancellation_slowly();

/// With the lock held: who sets cancellation_used takes the lock before it cancels a thread.
inline void bar_cancellation() {
  if (cancellation_used.load(std::memory_order_relaxed)) [[unlikely]]
    bar_cancellation_slowly();
}
/// Once the lock is let go.
inline void admit_cancellation() {
  if (cancellation_barred != 0) [[unlikely]]
    admit_cancellation_slowly();
}

}  // namespace accel
