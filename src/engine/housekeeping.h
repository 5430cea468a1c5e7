// Housekeeping: the engine's work that no call of the program's does. It follows the kernel's network, opens
// ports, and stands in for an absent application. A thread of the layer above does it, the control thread: it
// sleeps on what this names, calls step(), and sees to what that has found.
#pragma once

#include <optional>
#include <vector>

#include "base/config.h"
#include "base/result.h"
#include "engine/housekeeping_requests.h"
#include "engine/lock.h"
#include "engine/netlink.h"
#include "stack/stack.h"

namespace accel {

class Process;

/// While the application has accelerated sockets a tick looks whether it comes by: when no thread of it is
/// asleep in wait() and none has made a pass since the last tick, the control thread serves: it sleeps on the
/// ports and on the stack's deadlines and makes the passes, so that ACKs, retransmits and keepalives leave in
/// time. It stops when the application is back.
///
/// Housekeeping is idle where all is quiet (threads asleep that nothing has woken for a tick, nothing due): a
/// tick now and then, for readers of statistics. The event that ends the quiet calls
/// HousekeepingRequests::needed().
class Housekeeping {
 public:
  explicit Housekeeping(Process& process);
  ~Housekeeping();
  Housekeeping(const Housekeeping&) = delete;
  Housekeeping& operator=(const Housekeeping&) = delete;

  // ---- the control thread's, without the lock ----
  /// Descriptors that end its sleep when they are readable; -1: none at present.
  int requests_fd() const;
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
    /// The packet filters have changed: Engine::judge_on_host() tells which connections in shared memory move
    /// to the kernel.
    bool filters_changed = false;
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

  /// Ends the control thread's sleep, by requests_fd(). Any thread's.
  void wake() const;
  /// In a forked child, where the thread is not: descriptors closed, nothing else.
  void abandon_in_child();

 private:
  void write_counters(Instant now);
  void take_requests();
  void tick(Events& events);
  bool look_round(Events& events, bool came_by);
  void note_look() ACCEL_REQUIRES(worker_lock);
  std::optional<StackConfig> read_settings();
  void follow_wish() ACCEL_REQUIRES(worker_lock);
  void apply_settings() ACCEL_REQUIRES(worker_lock);
  std::string reload() ACCEL_REQUIRES(worker_lock);
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
  void arm_look() ACCEL_REQUIRES(worker_lock) { look_due_ = requests_.next_look(); }

  Process& process_;
  HousekeepingRequests& requests_;

  // ---- the control thread's ----
  int ports_fd_ = -1;  ///< one for the thread's life: a new one takes the program's lowest free number
  std::vector<int> watched_ports_;
  NetworkChanges pending_;
  // When each is to be done next.
  Instant changes_due_ = kNever, tick_due_ = kNever, serving_due_ = kNever, watch_due_ = kNever,
          look_due_ = kNever, opening_due_ = kNever;
  Instant chores_due_{}, settings_due_{};  ///< at a tick
  Settings settings_ = config().settings;  ///< and what accel set has changed since
  Duration tick_after_ = HousekeepingRequests::kRest;
  bool ticks_busily_ = false;  ///< as the last tick left it
  Instant doubted_{};          ///< when the application was last absent, or more came than it took
  int watched_in_vain_ = 0;
  uint64_t passes_seen_ = 0, passes_looked_at_ = 0;
  uint64_t wakes_seen_ = 0;
  uint16_t looks_seen_ = 0;
  bool ports_opened_ = false;  ///< Events::ports_opened is to be told
  bool serving_ = false;
  Instant serving_since_{};
  bool unaccepted_seen_ = false;  ///< by the last tick
  uint64_t opened_seen_ = 0;      ///< accelerated sockets, then
};

}  // namespace accel
