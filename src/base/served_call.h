// The calling thread is in the library for a call of the program's. What it calls of libc's on the way may
// lead to a preloaded library behind this one, which calls again, by name or by syscall(): such a call is the
// kernel's, as it would be without this library. Handlers of signals are the program's code again
// (posix/signals.cc).
#pragma once

#include <utility>

namespace accel {

class ServedCall {
 public:
  ServedCall() : outer_(std::exchange(served_, true)) {}
  ~ServedCall() { served_ = outer_; }
  ServedCall(const ServedCall&) = delete;
  ServedCall& operator=(const ServedCall&) = delete;

  static bool inside() { return served_; }
  /// Of a thread of the library's own, at its beginning.
  static void for_ever() { served_ = true; }
  /// Around a handler, which may also be left by siglongjmp(): no destructor.
  static bool enter_handler() { return std::exchange(served_, false); }
  static void leave_handler(bool outer) { served_ = outer; }

 private:
  static constinit thread_local bool served_ [[gnu::tls_model("initial-exec")]];
  bool outer_;
};

}  // namespace accel
