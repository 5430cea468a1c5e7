#include "base/cancellation.h"

#include <pthread.h>

#include <utility>

namespace accel {

constinit std::atomic<bool> cancellation_used{false};
constinit thread_local int cancellation_barred [[gnu::tls_model("initial-exec")]] = 0;

void bar_cancellation_slowly() {
  if (cancellation_barred != 0) return;
  int state = PTHREAD_CANCEL_ENABLE;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  cancellation_barred = state + 1;
}

void admit_cancellation_slowly() {
  pthread_setcancelstate(std::exchange(cancellation_barred, 0) - 1, nullptr);
}

}  // namespace accel
