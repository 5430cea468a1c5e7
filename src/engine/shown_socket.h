// A process without privilege shows its helper the sockets whose frames a device is to bring:
// docs/security.md, "The steering maps".
#pragma once

#include "engine/engine.h"

namespace accel {

/// For the calls of Engine::connect(), listen() and bind_udp() in its scope: the kernel's socket that has
/// their local end. The helper looks at it where the privilege has gone. With a Pass.
class ShownSocket {
 public:
  ShownSocket(Engine& engine, int shadow);
  ~ShownSocket();
  ShownSocket(const ShownSocket&) = delete;
  ShownSocket& operator=(const ShownSocket&) = delete;

  /// The privilege has gone: a TCP socket must listen before Engine::listen().
  static bool is_needed(Engine& engine);
  /// The socket has another descriptor: the former is about to be closed.
  static void move(BoundFlow& flow, int shadow);

 private:
  Engine& engine_;
};

}  // namespace accel
