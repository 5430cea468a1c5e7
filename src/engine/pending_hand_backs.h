// Pending hand-backs: connections that are to go on in the kernel. Housekeeping finds them, the layer above
// hands them back.
#pragma once

#include <map>

#include "base/instant.h"
#include "base/ip.h"
#include "engine/lock.h"
#include "engine/path.h"

namespace accel {

class PendingHandBacks {
 public:
  struct PendingHandBack {
    Reason why = Reason::misdirected;  ///< frames come by a queue that is not ours
    uint8_t rule = 0;                  ///< Reason::firewall: stats::note_detail()'s
  };
  /// The first reason counts.
  void add(const FlowKey& connection, Reason why) ACCEL_REQUIRES(worker_lock) {
    pending_.try_emplace(connection, PendingHandBack{why, 0});
  }
  /// But for that of the firewall.
  void refuse(const FlowKey& connection, uint8_t rule) ACCEL_REQUIRES(worker_lock) {
    pending_[connection] = {Reason::firewall, rule};
  }
  bool contains(const FlowKey& connection) const ACCEL_REQUIRES(worker_lock) {
    return !pending_.empty() && pending_.contains(connection);
  }
  PendingHandBack of(const FlowKey& connection) const ACCEL_REQUIRES(worker_lock) {
    const auto found = pending_.find(connection);
    return found == pending_.end() ? PendingHandBack{} : found->second;
  }
  /// Housekeeping's alone, which alone adds: no lock for the look.
  bool any() const ACCEL_LOCKS_UNCHECKED { return !pending_.empty(); }
  /// The layer above has been told.
  void clear() ACCEL_REQUIRES(worker_lock) { pending_.clear(); }

  /// It is time to look at the ports for misdirected connections.
  bool look_due(Instant now) ACCEL_REQUIRES(worker_lock) {
    constexpr Duration kBetween = 100ms;
    if (now < looked_ + kBetween) return false;
    looked_ = now;
    return true;
  }

 private:
  std::map<FlowKey, PendingHandBack> pending_ ACCEL_GUARDED_BY(worker_lock);
  Instant looked_ ACCEL_GUARDED_BY(worker_lock){};
};

}  // namespace accel
