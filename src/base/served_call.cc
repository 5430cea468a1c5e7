#include "base/served_call.h"

namespace accel {

constinit thread_local bool ServedCall::served_ [[gnu::tls_model("initial-exec")]] = false;

}  // namespace accel
