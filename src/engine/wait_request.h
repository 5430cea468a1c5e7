// What a thread waits for in Engine::wait(), and what ends the wait.
#pragma once

#include <poll.h>
#include <signal.h>

#include <cstdint>
#include <span>

#include "base/instant.h"

namespace accel {

enum class Woke : uint8_t {
  kReady,     ///< the condition holds (evaluated under the lock)
  kDeadline,  ///< the deadline passed
  kSignal,    ///< a handler ran: the caller returns EINTR, or waits again when signal_restarts() says so
  kKernel,    ///< one of kernel_fds has revents
};

/// What a thread waits for. The condition is called under the lock, by this thread and by others, and must be
/// cheap.
struct WaitRequest {
  bool (*condition)(void* context) = nullptr;
  void* context = nullptr;
  /// StackSocket::owner of the one socket whose edges make the condition true; changes of other kinds are
  /// told of by Engine::touch(). nullptr: it may be any socket's.
  const void* subject = nullptr;
  Instant deadline = kNever;
  const sigset_t* sigmask =
      nullptr;  ///< as ppoll's: in force while asleep, signals pending under it end the wait
  std::span<pollfd>
      kernel_fds{};  ///< kernel descriptors to wait for as well; revents are filled when kKernel
  bool may_spin = true;
  /// Only handlers end it (poll and select); else being stopped and continued does as well (signal(7)).
  bool handlers_only = false;
};

}  // namespace accel
