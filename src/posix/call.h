// One intercepted call on a socket: the lock, the file behind the descriptor, and the way to the kernel.
#pragma once

#include "base/real.h"
#include "posix/guard.h"
#include "posix/socket.h"

namespace accel::posix {

/// What a call is about: what comes in, what goes out, or neither. Whether an inherited socket opens for it:
/// File::opens_for().
using Use = File::Use;

/// Holds the lock and a reference, so that the socket outlives a close() by another thread while this call
/// blocks.
class SocketCall {
 public:
  explicit SocketCall(int fd, Pass::Polling polling = Pass::Polling::kYes, Use use = Use::kTraffic);
  ~SocketCall();
  SocketCall(const SocketCall&) = delete;
  SocketCall& operator=(const SocketCall&) = delete;

  /// nullptr: not ours (any more), the call goes to the kernel.
  Socket* socket() const { return socket_; }
  /// nullptr while there is no engine: every socket is then undecided, and the kernel serves it.
  Pass* pass() { return guard_.pass(); }
  /// The engine's pass, opening the engine when it is `wanted`. nullptr: there is none and none is wanted.
  /// Errors: as Socket::detach_undecided, when the process cannot have one.
  Result<Pass*> engine(bool wanted);
  /// Not 0: the call fails with it.
  Errno error() const { return error_; }

 private:
  Guard guard_;
  Socket* socket_ = nullptr;
  Errno error_{};
};

/// Has the socket behind `fd` answer by ours(Pass&, Socket&), and the kernel by kernel() when it does not.
template <class T, class Ours, class Kernel>
Result<T> serve(int fd, Ours ours, Kernel kernel, Use use = Use::kTraffic) {
  {
    SocketCall call(fd, Pass::Polling::kYes, use);
    if (call.error() != Errno{}) return call.error();
    if (call.socket() != nullptr && call.pass() != nullptr) {
      Result<T> r = ours(*call.pass(), *call.socket());
      if (r.ok() || r.error() != kOnKernel) return r;
    }
  }
  return from_libc<T>(kernel());
}

/// The same for a call that needs an engine when wants(Socket&) says so.
template <class T, class Wants, class Ours, class Kernel>
Result<T> serve_opening(int fd, Wants wants, Ours ours, Kernel kernel, Use use = Use::kTraffic) {
  {
    SocketCall call(fd, Pass::Polling::kYes, use);
    if (call.error() != Errno{}) return call.error();
    if (Socket* s = call.socket()) {
      Result<Pass*> pass = call.engine(call.pass() == nullptr && wants(*s));
      Result<T> r = !pass              ? Result<T>(pass.error())
                    : *pass != nullptr ? ours(**pass, *s)
                                       : Result<T>(kOnKernel);
      if (r.ok() || r.error() != kOnKernel) return r;
    }
  }
  return from_libc<T>(kernel());
}

}  // namespace accel::posix
