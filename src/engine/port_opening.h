// Which ports are to be opened, which could not be, and which wait for a queue.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/instant.h"
#include "engine/lock.h"
#include "engine/notices.h"
#include "engine/ports.h"

namespace accel {

class PortOpening {
 public:
  explicit PortOpening(Notices& notices) : notices_(notices) {}
  /// A forked child shares its listener with others, whose queues it leaves to them.
  void set_one_queue_only(bool on) { one_queue_only_ = on; }
  /// Of each device; 0: all that are free.
  uint32_t queues_to_hold() const;

  // ---- asked for ----
  /// Ports are opened where they are needed, by the thread that needs them. Else they are asked for, and the
  /// sockets are the kernel's meanwhile.
  bool is_waited_for() const;
  /// A program that opens a connection or two and ends is not to pay for a port.
  enum class Need : uint8_t { kNow, kIfItLives };
  void request(int ifindex, Need need, Instant now) ACCEL_REQUIRES(worker_lock);
  struct Request {
    Instant due;
    Need need;
    Instant asked;
  };
  /// The first whose time has come, with `all` the first of all; nullptr: there is none.
  const std::pair<const int, Request>* first(Instant now, bool all) const ACCEL_REQUIRES(worker_lock);
  /// Those that are left come after `pause` at the earliest. Gives when the next one does.
  Instant postpone(Instant now, Duration pause) ACCEL_REQUIRES(worker_lock);
  void forget(int ifindex) ACCEL_REQUIRES(worker_lock) { requests_.erase(ifindex); }
  void forget_all() ACCEL_REQUIRES(worker_lock) { requests_.clear(); }
  bool any_requested() const ACCEL_REQUIRES(worker_lock) { return !requests_.empty(); }

  // ---- opened ----
  /// One that waits for a queue, or a new one.
  OpenedPort open(const Link& link, FramePool& pool) ACCEL_REQUIRES(worker_lock);

  // ---- could not be opened ----
  void note_failure(int ifindex, Reason reason, Instant when) ACCEL_REQUIRES(worker_lock) {
    failures_[ifindex] = {reason, when};
  }
  /// Why it is not tried yet; after a while it is again.
  std::optional<Reason> failure(int ifindex, Instant now) const ACCEL_REQUIRES(worker_lock);
  /// Links or addresses have changed.
  void forget_failures() ACCEL_REQUIRES(worker_lock) { failures_.clear(); }
  /// The device's generic hook sees no frames: the driver's is tried. False: so it was.
  bool note_passed_by(int ifindex) ACCEL_REQUIRES(worker_lock) {
    return passed_by_links_.insert(ifindex).second;
  }
  bool is_passed_by(int ifindex) const ACCEL_REQUIRES(worker_lock) {
    return passed_by_links_.contains(ifindex);
  }

  // ---- without a queue, see Engine::begin_keeping_ready() ----
  const std::atomic<bool>& keeping_ready() const { return keep_ready_; }
  bool keeps_ready() const { return keep_ready_.load(std::memory_order_relaxed); }
  void keep_ready(bool on) ACCEL_REQUIRES(worker_lock) { keep_ready_.store(on, std::memory_order_relaxed); }
  bool any_ready() const ACCEL_REQUIRES(worker_lock) { return !ready_.empty(); }
  template <class F>
  void for_each_ready(F visit) ACCEL_REQUIRES(worker_lock) {
    for (auto& [ifindex, opened] : ready_) visit(opened);
  }
  void close_ready() ACCEL_REQUIRES(worker_lock) { ready_.clear(); }

 private:
  struct Failure {
    Reason reason;
    Instant when;
  };
  Notices& notices_;
  // All by ifindex.
  std::map<int, Request> requests_ ACCEL_GUARDED_BY(worker_lock);
  std::map<int, OpenedPort> ready_ ACCEL_GUARDED_BY(worker_lock);
  std::map<int, Failure> failures_ ACCEL_GUARDED_BY(worker_lock);
  std::set<int> passed_by_links_ ACCEL_GUARDED_BY(worker_lock);
  std::atomic<bool> keep_ready_{false};  ///< changed under the lock
  bool one_queue_only_ = false;
};

}  // namespace accel
