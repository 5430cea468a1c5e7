// How a call blocks: under the engine, until a condition holds, a signal or the socket's timeout ends it.
#pragma once

#include <utility>

#include "engine/engine.h"

namespace accel::posix {

/// When a call that begins now and may take `timeout` (0: for ever, negative: no time) must be over.
inline Instant deadline_after(const Pass& pass, Duration timeout) {
  return timeout == Duration{0} ? kNever : pass.now() + timeout;
}

/// A call of several transfers has made some: what follows is not restarted either.
inline thread_local bool has_moved [[gnu::tls_model("initial-exec")]] = false;
class MovedScope {
 public:
  explicit MovedScope(bool moved) : before_(std::exchange(has_moved, moved)) {}
  ~MovedScope() { has_moved = before_; }
  MovedScope(const MovedScope&) = delete;
  MovedScope& operator=(const MovedScope&) = delete;

 private:
  const bool before_;
};

/// Errors: EAGAIN (the deadline has passed), EINTR. As sock_intr_errno() has it, a call with a timeout is not
/// restarted after a handler with SA_RESTART (signal(7)), nor one that has `moved` bytes: it returns those.
/// `subject`: as WaitRequest's.
template <class Condition>
Result<Woke> wait_for(Pass& pass, Instant deadline, Condition&& condition, std::span<pollfd> kernel_fds = {},
                      bool moved = false, const void* subject = nullptr) {
  using C = std::remove_reference_t<Condition>;
  WaitRequest request;
  request.condition = [](void* c) -> bool { return (*static_cast<C*>(c))(); };
  request.context = &condition;
  request.subject = subject;
  request.deadline = deadline;
  request.kernel_fds = kernel_fds;
  for (;;) {
    switch (Woke woke = pass.engine().wait(pass, request)) {
      case Woke::kReady:
      case Woke::kKernel:
        return woke;
      case Woke::kDeadline:
        return err(EAGAIN);
      case Woke::kSignal:
        if (moved || has_moved || deadline != kNever || !Engine::signal_restarts()) return err(EINTR);
    }
  }
}

}  // namespace accel::posix
