#include "preload/cancel.h"

#include <pthread.h>

#include "base/real.h"
#include "posix/calls.h"
#include "preload/wrapper.h"

using namespace accel;           // NOLINT
using namespace accel::preload;  // NOLINT

namespace accel::preload {

constinit thread_local bool cancelled_asynchronously [[gnu::tls_model("initial-exec")]] = false;

namespace {

/// The outermost call of ours that this thread is in, if it is deferred for that.
thread_local const void* deferred_at [[gnu::tls_model("initial-exec")]] = nullptr;

/// Not one that a handler has left by siglongjmp(): its frame is below, where the stack grows to.
bool in_deferred_call(const void* frame) { return deferred_at > frame; }

}  // namespace

bool defer_cancellation(const void* frame, bool point) {
  const bool defer =
      cancelled_asynchronously && !in_deferred_call(frame);  // else a handler's, while that call sleeps
  if (defer) {
    real.pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, nullptr);
    deferred_at = frame;
  }
  if (point) pthread_testcancel();
  return defer;
}

void resume_cancellation() {
  deferred_at = nullptr;
  if (cancelled_asynchronously) real.pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, nullptr);
}

}  // namespace accel::preload

// A handler that interrupted a call of ours sets what holds once that is over.
ACCEL_EXPORT(int, pthread_setcanceltype, (int type, int* old)) {
  const bool wanted = type == PTHREAD_CANCEL_ASYNCHRONOUS;
  if (!wanted && type != PTHREAD_CANCEL_DEFERRED) return EINVAL;
  if (old != nullptr) *old = cancelled_asynchronously ? PTHREAD_CANCEL_ASYNCHRONOUS : PTHREAD_CANCEL_DEFERRED;
  if (wanted) cancelled_asynchronously = true;  // before it holds
  const int r = in_deferred_call(__builtin_frame_address(0)) ? 0 : real.pthread_setcanceltype(type, nullptr);
  cancelled_asynchronously = wanted;
  return r;
}

ACCEL_EXPORT(int, pthread_cancel, (pthread_t thread)) {
  cancellation_used.store(true, std::memory_order_relaxed);
  if (posix::active()) served(posix::before_cancelling);
  return real.pthread_cancel(thread);
}
