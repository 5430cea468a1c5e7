// A pass: one stay under the worker's lock.
#pragma once

#include "base/instant.h"

namespace accel {

class Engine;
class Stack;
class Process;

/// The worker's lock, held: what needs it takes a Pass&, which is the proof. Entering polls the ports once
/// (not if they were polled within the last microsecond by the same thread's last pass). Leaving flushes,
/// transmits, steers what changed, gives `edges` to Upcalls::notify and wakes sleepers whose condition holds.
/// Not recursive: a signal handler's socket call that finds its own thread inside waits for nothing: see
/// Engine::inside().
class Pass {
 public:
  /// kSeldom: for calls that want nothing of what may have come; those that do follow.
  enum class Polling { kYes, kSeldom, kNo };
  explicit Pass(Engine& engine, Polling polling = Polling::kYes);  ///< engine/engine.h
  /// From Engine::before_fork() to after_fork_in_parent(), which have the lock: neither end does anything.
  struct OverFork {};
  Pass(Engine& engine, OverFork);
  ~Pass();
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;
  Instant now() const { return now_; }
  Stack& stack();
  Engine& engine() { return engine_; }
  Process& process() { return process_; }
  /// The call has a reference to `what`: if a handler leaves its wait by siglongjmp(), Upcalls::abandoned
  /// gives it up.
  void retains(void* what) { retained_ = what; }
  /// Frames of the call may leave with those of the rest of the thread's turn (engine/turn.h). `sender`: the
  /// socket that it has sent by.
  void in_turn(const void* sender = nullptr);

 private:
  friend class Engine;
  friend class Process;
  Pass(Process& process, Polling polling);
  Pass(Process& process, OverFork);
  /// The engine lends a pass to a function of its own: it holds the lock by other means.
  Pass(Process& process, Instant now);
  Engine& engine_;
  Process& process_;
  Instant now_;
  bool lent_ = false;  ///< the lock is another's to let go
  void* retained_ = nullptr;
  bool in_turn_ = false;
};

}  // namespace accel
