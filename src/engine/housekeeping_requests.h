// Requests to housekeeping: what the threads that hold the worker's lock want of the control thread. They end
// its sleep only where its own next look would come too late.
#pragma once

#include <atomic>

#include "base/instant.h"
#include "base/result.h"
#include "engine/lock.h"

namespace accel {

class HousekeepingRequests {
 public:
  HousekeepingRequests() = default;
  ~HousekeepingRequests();
  HousekeepingRequests(const HousekeepingRequests&) = delete;
  HousekeepingRequests& operator=(const HousekeepingRequests&) = delete;

  Result<void> open();
  /// In a forked child, where the thread is not: the descriptor is closed, nothing else.
  void abandon_in_child();

  // ---- any thread's ----
  /// Ends the control thread's sleep, by fd().
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

  // ---- the control thread's ----
  /// Readable while there are requests.
  int fd() const { return fd_; }
  /// To be called before take(): a request that comes in between wakes again.
  void drain();
  enum class Request : uint8_t { kTicks, kWatch, kLook, kPorts, kDoubt };
  /// True: there has been one since the last call.
  bool take(Request request) { return wanted_[index(request)].exchange(false, std::memory_order_relaxed); }
  /// All is quiet: needed() is to tell of the end of that.
  void set_idle(bool idle) { idle_.store(idle, std::memory_order_relaxed); }
  /// `trusting`: ticks are rare, since the application has always been there. `ticks_look`: they come often
  /// enough to be the looks. Else `due` is looked at. True: next_look() has changed.
  bool set_ticks(bool trusting, bool ticks_look, Instant due, Instant now) ACCEL_REQUIRES(worker_lock);
  void set_next_look(Instant when) ACCEL_REQUIRES(worker_lock) { next_look_ = when; }
  /// kNever: ticks are the looks, or nothing is due.
  Instant next_look() const ACCEL_REQUIRES(worker_lock) {
    return next_look_ == kTicksLook ? kNever : next_look_;
  }

 private:
  static constexpr size_t index(Request request) { return static_cast<size_t>(request); }
  void ask(Request request);
  void begin_look(Instant due, Instant now);
  void end_trust();

  std::atomic<bool> idle_{false};
  std::atomic<bool> wanted_[5]{};
  /// The value of next_look_ while ticks are the looks: nobody has to wake the thread.
  static constexpr Instant kTicksLook{};
  Instant next_look_ = kNever;  ///< under the worker's lock
  bool trusting_ = false;       ///< the same
  int fd_ = -1;
};

}  // namespace accel
