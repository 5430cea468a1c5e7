// What the engine asks of the layer above within a call of a thread's, inside the lock: all calls that go
// upwards.
// docs/design/upcalls.md says why there are any.
#pragma once

#include <cstdint>

namespace accel {

class Pass;

/// Beside the Ready bits (stack/stack.h): a connection in shared memory has something to see to.
inline constexpr uint32_t kLinkEvent = 1u << 30;

/// Given to Engine::open(). What is not overridden suits an engine without sockets above it.
class Upcalls {
 public:
  /// Readiness of a socket has begun: once per changed socket, with its owner.
  virtual void notify(Pass& pass, void* owner, uint32_t edges);
  /// A handler has left a call's wait by siglongjmp(): the reference that the call has is given up
  /// (Pass::retains).
  virtual void abandoned(Pass& pass, void* retained);

 protected:
  ~Upcalls() = default;
};

}  // namespace accel
