// Finish request: the handler of a fatal signal has the request thread deliver, or hand to the kernel, what
// send() accepted. No handler can do that itself, since it may have interrupted malloc().
#pragma once

#include <cstdint>

namespace accel::posix {

/// In the handler. Returns when it is done, when its time is over, or at once where no thread takes requests.
void request_finish();

// ---- the request thread's ----
/// From now on it takes such requests: they write to `wake_fd`, and wait for so many milliseconds at most.
void take_finish_requests(int wake_fd, uint32_t longest_ms);
void take_no_finish_requests();
bool finish_requested();
void answer_finish_request();

}  // namespace accel::posix
