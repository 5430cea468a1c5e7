// The housekeeping thread: a libev loop that follows the kernel's network and stands in for an absent
// application.
#pragma once

#include <pthread.h>

#include <memory>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"

struct ev_loop;

namespace accel {

/// Started by Engine::open, all signals blocked. While the application has accelerated sockets a tick looks
/// whether it comes by: when no thread of it is asleep in wait() and none has made a pass since the last
/// tick, this thread serves: it sleeps on the ports and on the stack's deadlines and makes the passes, so
/// that ACKs, retransmits and keepalives leave in time. It stops when the application is back.
class Housekeeping {
 public:
  explicit Housekeeping(Engine& engine);
  ~Housekeeping();  ///< ends the thread
  Housekeeping(const Housekeeping&) = delete;
  Housekeeping& operator=(const Housekeeping&) = delete;

  Result<void> start();
  /// The first accelerated socket is there: ticks begin. From any thread, under the worker's lock.
  void application_began();
  /// In a forked child, where the thread is not: descriptors closed, nothing else.
  void abandon_in_child();

 private:
  struct Loop;
  static void* run(void* self);
  Engine& engine_;
  std::unique_ptr<Loop> loop_;
  pthread_t thread_{};
  bool running_ = false;
};

}  // namespace accel
