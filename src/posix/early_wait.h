// Waiting for time and for kernel descriptors, and waiting while the process has no engine.
#pragma once

#include <poll.h>
#include <signal.h>
#include <time.h>

#include <optional>
#include <span>

#include "base/instant.h"

namespace accel::posix {

/// CLOCK_MONOTONIC.
Instant monotonic_now();

/// A timeout as ppoll() and epoll_pwait2() take it: nullptr waits for ever.
class Timeout {
 public:
  /// `now` is read only when it is needed.
  explicit Timeout(const timespec* timeout);
  static bool valid(const timespec* timeout);
  bool zero() const { return zero_; }
  Instant deadline() const { return deadline_; }
  bool passed(Instant now) const { return now >= deadline_; }
  /// What is left, never negative; nullopt: for ever.
  std::optional<timespec> left() const;
  /// Likewise, in whole milliseconds where it was given so: what is left of those is never less, and is for
  /// the call that the program has made.
  std::optional<timespec> left_as_given() const;

 private:
  bool zero_ = false;
  bool in_milliseconds_ = false;
  Instant deadline_ = kNever;
};

/// Sleeps in the real ppoll() while `still` holds and there is no engine; also returns (0) when
/// wake_early_sleepers() was called. The last element of `descriptors` is the function's own use: leave it
/// free. -1 with errno as ppoll. Not under a Guard.
int early_wait(std::span<pollfd> descriptors, const timespec* timeout, const sigset_t* mask,
               bool (*still)(void*), void* context);

/// Something of ours may have become ready without an engine, or an engine is there now.
void wake_early_sleepers();
/// In the child after fork(): nobody sleeps here.
void forget_early_sleepers();

}  // namespace accel::posix
