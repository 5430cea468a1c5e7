// Housekeeping: the engine's work that no call of the program's does. It follows the kernel's network, opens
// ports, and stands in for an absent application. A thread of the layer above does it, the control thread: it
// sleeps on what this names, calls step(), and sees to what that has found.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "engine/lock.h"
#include "engine/netlink.h"

namespace accel {

/// While the application has accelerated sockets a tick looks whether it comes by: when no thread of it is
/// asleep in wait() and none has made a pass since the last tick, the control thread serves: it sleeps on the
/// ports and on the stack's deadlines and makes the passes, so that ACKs, retransmits and keepalives leave in
/// time. It stops when the application is back.
///
/// Housekeeping is idle where all is quiet (threads asleep that nothing has woken for a tick, nothing due): a
/// tick now and then, for readers of statistics. The event that ends the quiet calls needed().
class Housekeeping {
 public:
  explicit Housekeeping(Engine& engine);
  ~Housekeeping();
  Housekeeping(const Housekeeping&) = delete;
  Housekeeping& operator=(const Housekeeping&) = delete;

  Result<void> open();

  // ---- the control thread's, without the lock ----
  /// Descriptors that end its sleep when they are readable; -1: none at present.
  int requests_fd() const { return requests_fd_; }
  int network_fd() const;
  /// The ports' while it serves: a set of the kernel's, which one that is closed meanwhile leaves (a port
  /// that goes, or is released at fork).
  int ports_fd() const { return serving_ ? ports_fd_ : -1; }
  /// When it is to call step() at the latest.
  Instant next_deadline() const;

  struct Ready {
    bool requests = false, network = false, ports = false;
  };
  /// Findings of a step for the layer that has the sockets, to be seen to in this order.
  struct Events {
    /// Ports have been opened, or could not be: for sockets whose choice has Reason::port_opening.
    bool ports_opened = false;
    /// A port has failed: what Engine::lost() names moves to the kernel, then end_lost_ports(). Until then
    /// the device's rules keep the flows' frames from the kernel, which would answer for connections that it
    /// does not have yet.
    bool port_lost = false;
    /// What Engine::hand_back_due() names moves to the kernel, which has what comes by any queue, then
    /// finish_hand_backs().
    bool hand_backs_due = false;
    /// Connections that nobody here has accepted, while the application does not make passes: for other
    /// processes. look_soon(), where one may come to want them.
    bool unaccepted = false;
    bool statistics = false;  ///< a reader waits for an answer (stats::Writer)
    /// The regular look, while sockets are in use. `absent`: the application has made no pass since the last.
    bool ticked = false, absent = false;
  };
  /// Does what is due. The calling thread's passes are not the application's from now on.
  Events step(Ready ready);
  /// A finding of step() holds still: the next step comes soon.
  void look_soon();

  // ---- any thread's ----
  /// Ends the control thread's sleep, by requests_fd().
  void wake() const;
  /// The first accelerated socket is there: ticks begin. Under the worker's lock.
  void application_began();
  /// A thread was woken by an event, or something is due soon: ticks as usual again. Under the worker's lock.
  void needed() {
    if (idle_.load(std::memory_order_relaxed)) application_began();
  }
  /// A thread is trusted to come back soon: looks whether it does, until nobody is. Under the worker's lock.
  void watch();
  /// The stack has something due that no sleeper's timeout covers: looks then whether somebody has done it.
  /// The thread is woken only where its own next look would come too late. Under the worker's lock.
  void look_by(Instant due, Instant now) {
    if (due + kLookLate < next_look_) begin_look(due, now);
  }
  /// Frames are kept for a moment (Turns), and the next tick may be far. Under the worker's lock.
  void frames_kept() {
    if (trusting_) end_trust();
  }
  /// So late it may look. Whoever makes passes does by itself what is due, and is interrupted no more often.
  static constexpr Duration kLookLate = 8ms;
  /// Some ports are to be opened (PortOpening::request). Under the worker's lock.
  void ports_requested();
  /// How long an idle tick may be late for what comes due meanwhile.
  static constexpr Duration kRest = 500ms;
  /// In a forked child, where the thread is not: descriptors closed, nothing else.
  void abandon_in_child();

 private:
  void take_requests();
  void tick(Events& events);
  bool look_round(Events& events, bool came_by);
  std::optional<StackConfig> read_settings();
  bool may_skip(bool came_by) const;
  void begin_serving(Events& events);
  void serve(Events& events);
  void stop_serving();
  void watch_ports() ACCEL_REQUIRES(worker_lock);
  void forget_ports();
  void open_ports();
  void watch_threads();
  void look();
  void take_changes();
  void follow(NetworkChanges& changes);
  uint64_t passes() const;
  void begin_look(Instant due, Instant now);
  void end_trust();
  /// `ticks`: they come often enough to be the looks. Else `due` is looked at. Under the worker's lock.
  void ticks_look(bool ticks, Instant due, Instant now);
  void arm_look() ACCEL_REQUIRES(worker_lock) { look_due_ = next_look_ == kTicksLook ? kNever : next_look_; }

  Engine::Impl& worker_;
  std::atomic<bool> idle_{false};
  std::atomic<bool> ticks_wanted_{false}, watch_wanted_{false}, look_wanted_{false}, ports_wanted_{false},
      doubt_wanted_{false};
  /// The value of next_look_ while ticks are the looks: nobody has to wake the thread.
  static constexpr Instant kTicksLook{};
  Instant next_look_ = kNever;  ///< under the worker's lock
  bool trusting_ = false;       ///< ticks are rare, since the application has always been there; the same

  // ---- the control thread's ----
  int requests_fd_ = -1;
  int ports_fd_ = -1;  ///< one for the thread's life: a new one takes the program's lowest free number
  std::vector<int> watched_ports_;
  NetworkChanges pending_;
  // When each is to be done next.
  Instant changes_due_ = kNever, tick_due_ = kNever, serving_due_ = kNever, watch_due_ = kNever,
          look_due_ = kNever, opening_due_ = kNever;
  Instant chores_due_{}, settings_due_{};  ///< at a tick
  Duration tick_after_ = kRest;
  bool ticks_busily_ = false;  ///< as the last tick left it
  Instant doubted_{};          ///< when the application was last absent, or more came than it took
  int watched_in_vain_ = 0;
  uint64_t passes_seen_ = 0, passes_looked_at_ = 0;
  uint64_t wakes_seen_ = 0;
  bool ports_opened_ = false;  ///< Events::ports_opened is to be told
  bool serving_ = false;
  Instant serving_since_{};
  bool unaccepted_seen_ = false;  ///< by the last tick
  uint64_t opened_seen_ = 0;      ///< accelerated sockets, then
};

}  // namespace accel
