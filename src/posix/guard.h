// The lock under which files and their table are: the engine's Pass when the process has an engine, before
// that a lock of their own (a program that never leaves loopback never gets an engine).
//
// A thread that is inside already (a signal handler interrupted a call, or opening the engine makes socket
// calls) gets neither: ok() is false and the caller goes to the kernel, that is to base/real.h.
#pragma once

#include <optional>

#include "engine/engine.h"

namespace accel::posix {

/// Engine::open(), and what a process with an engine has beside it (posix/engine_life.cc): for
/// Guard::open_engine.
Engine* open_engine(Reason* why, Engine::Opening opening);

class Guard {
 public:
  explicit Guard(Pass::Polling polling = Pass::Polling::kYes);
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  /// The calling thread is within a Guard or Pass: a signal's handler must wait until it has left
  /// (posix/signals.cc).
  static bool inside();

  bool ok() const { return early_ || pass_.has_value(); }
  /// nullptr while there is no engine.
  Pass* pass() { return pass_ ? &*pass_ : nullptr; }
  /// Opens the engine at the first need. nullptr when the process stays on the kernel; `why` then says why.
  /// Only when ok().
  Pass* open_engine(Reason* why, Engine::Opening opening = Engine::Opening::kForPorts);

 private:
  void leave_early();
  bool early_ = false;  ///< holds the early lock
  std::optional<Pass> pass_;
};

}  // namespace accel::posix
