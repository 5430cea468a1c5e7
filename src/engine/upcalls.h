// What the engine asks of the layer above, whose work some of its threads have to do: all calls that go
// upwards. docs/design/upcalls.md says why there are any.
#pragma once

#include <cstdint>

#include "base/instant.h"

namespace accel {

class Engine;
class Pass;
namespace stats {
class Writer;
}

/// Given to Engine::open(). What is not overridden suits an engine without sockets above it.
class Upcalls {
 public:
  // ---- inside the lock ----
  /// Readiness of a socket has begun: once per changed socket, with its owner.
  virtual void notify(Pass& pass, void* owner, uint32_t edges);
  /// A handler has left a call's wait by siglongjmp(): the reference that the call has is given up
  /// (Pass::retains).
  virtual void abandoned(Pass& pass, void* retained);
  /// Names its sockets, each once, to the writer. Connections without an owner are added by the engine.
  virtual void publish(Pass& pass, stats::Writer& writer, Instant now);

  // ---- on any thread, without the lock ----
  /// Each time that the thread has let go of the lock and is no longer Engine::inside(): leaving a Pass, and
  /// in Engine::wait() before it looks at signal_ran() and sleeps.
  virtual void after_unlock();
  /// Ports have been opened, or could not be: for sockets whose choice has Reason::port_opening. On
  /// housekeeping's thread, or that of Engine::open_requested_ports() and settle_ports().
  virtual void ports_opened();

  // ---- on housekeeping's thread, without the lock ----
  /// A port has failed: what Engine::lost() names moves to the kernel, then let_go_of_lost(). Until then the
  /// device's rules keep the flows' frames from the kernel, which would answer for connections that it does
  /// not have yet.
  virtual void port_lost(Engine& engine);
  /// What Engine::strayed() names moves to the kernel, which has what comes by any queue, then
  /// let_go_of_strays().
  virtual void strays_found(Engine& engine);
  /// What was done with connections that nobody here has accepted.
  enum class Offered : uint8_t {
    kNobodyElses,  ///< no other process has a listener of this one
    kNobodyWaits,  ///< to be asked again soon
    kLooked,       ///< likewise; it has made one pass
  };
  /// There are such, and the application does not make passes.
  virtual Offered unaccepted();
  /// While sockets are in use. `absent`: the application has made no pass since the last time. It makes at
  /// most one pass.
  virtual void each_tick(bool absent);

 protected:
  ~Upcalls() = default;
};

}  // namespace accel
