// The housekeeping thread: a libev loop that follows the kernel's network and stands in for an absent
// application.
#pragma once

#include <pthread.h>

#include <atomic>
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
///
/// Where all is quiet (threads asleep that nothing has woken for a tick, nothing due) it rests: a tick now
/// and then, for who asks for statistics. What ends the quiet says so: needed().
class Housekeeping {
 public:
  explicit Housekeeping(Engine& engine);
  ~Housekeeping();  ///< ends the thread
  Housekeeping(const Housekeeping&) = delete;
  Housekeeping& operator=(const Housekeeping&) = delete;

  Result<void> start();
  void stop();  ///< the thread is over when this returns; not under the worker's lock
  /// The first accelerated socket is there: ticks begin. From any thread, under the worker's lock.
  void application_began();
  /// A thread was woken by an event, or something is due soon: ticks as usual again. Under the worker's lock.
  void needed() {
    if (resting_.load(std::memory_order_relaxed)) end_rest();
  }
  /// A thread is trusted to come back soon: looks whether it does, until nobody is. Under the worker's lock.
  void watch();
  /// The stack has something due that no sleeper's timeout covers: looks then whether somebody has done it.
  /// The thread is woken only where its own next look would come too late. Under the worker's lock.
  void look_by(Instant due, Instant now) {
    if (due + kLookLate < next_look_) begin_look(due, now);
  }
  /// So late it may look. Whoever makes passes does by itself what is due, and is interrupted no more often.
  static constexpr Duration kLookLate = 8ms;
  /// Some ports are to be opened (PortOpening::request). Under the worker's lock.
  void ports_requested();
  bool resting() const { return resting_.load(std::memory_order_relaxed); }
  /// How long a rest's tick may be late for what comes due meanwhile.
  static constexpr Duration kRest = 500ms;
  /// In a forked child, where the thread is not: descriptors closed, nothing else.
  void abandon_in_child();

 private:
  struct Loop;
  static void* run(void* self);
  void end_rest();
  void begin_look(Instant due, Instant now);
  Engine& engine_;
  std::unique_ptr<Loop> loop_;
  pthread_t thread_{};
  bool running_ = false;
  std::atomic<bool> resting_{false};
  /// `ticks`: they come often enough to be the looks. Else `due` is looked at. Under the worker's lock.
  void ticks_look(bool ticks, Instant due, Instant now);
  /// The value of next_look_ while ticks are the looks: nobody has to nudge.
  static constexpr Instant kTicksLook{};
  Instant next_look_ = kNever;  ///< under the worker's lock
  std::atomic<bool> ticks_wanted_{false}, watch_wanted_{false}, look_wanted_{false},
      ports_wanted_{false};  ///< what the loop is nudged for
};

}  // namespace accel
