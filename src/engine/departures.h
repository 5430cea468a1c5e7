// Connections that are to go on in the kernel: housekeeping finds them, the layer above moves them.
#pragma once

#include <map>

#include "base/instant.h"
#include "base/ip.h"
#include "engine/lock.h"
#include "engine/path.h"

namespace accel {

class Departures {
 public:
  struct Departure {
    Reason why = Reason::strayed;  ///< frames come by a queue that is not ours
    uint8_t rule = 0;              ///< Reason::firewall: stats::note_rule()'s
  };
  /// The first reason counts.
  void add(const FlowKey& connection, Reason why) ACCEL_REQUIRES(worker_lock) {
    leaving_.try_emplace(connection, Departure{why, 0});
  }
  /// But for that of the firewall.
  void refuse(const FlowKey& connection, uint8_t rule) ACCEL_REQUIRES(worker_lock) {
    leaving_[connection] = {Reason::firewall, rule};
  }
  bool contains(const FlowKey& connection) const ACCEL_REQUIRES(worker_lock) {
    return !leaving_.empty() && leaving_.contains(connection);
  }
  Departure of(const FlowKey& connection) const ACCEL_REQUIRES(worker_lock) {
    const auto found = leaving_.find(connection);
    return found == leaving_.end() ? Departure{} : found->second;
  }
  /// Housekeeping's alone, which alone adds: no lock for the look.
  bool any() const ACCEL_LOCKS_UNCHECKED { return !leaving_.empty(); }
  /// The layer above has been told.
  void clear() ACCEL_REQUIRES(worker_lock) { leaving_.clear(); }

  /// It is time to look at the ports for strays.
  bool look_due(Instant now) ACCEL_REQUIRES(worker_lock) {
    constexpr Duration kBetween = 100ms;
    if (now < looked_ + kBetween) return false;
    looked_ = now;
    return true;
  }

 private:
  std::map<FlowKey, Departure> leaving_ ACCEL_GUARDED_BY(worker_lock);
  Instant looked_ ACCEL_GUARDED_BY(worker_lock){};
};

}  // namespace accel
