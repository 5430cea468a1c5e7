// What the host's packet filters (firewall/firewall.h) mean for flows of ours.
#pragma once

#include <utility>

#include "base/instant.h"
#include "base/ip.h"
#include "engine/lock.h"
#include "engine/netlink.h"
#include "engine/path.h"
#include "firewall/firewall.h"

namespace accel {

/// A flow as the filters are asked of it.
struct FilteredFlow {
  Protocol protocol = Protocol::kTcp;
  Endpoint local, remote;  ///< as firewall::Question
  bool active = false;
  bool established = false;
  bool routed = false;  ///< the route to the peer leaves by the device
  int ifindex = 0;
  uint32_t mark = 0;
};

class PacketFilter {
 public:
  explicit PacketFilter(const Network& network) : network_(network) {}

  /// Without a look at the flow, as far as is known.
  bool accepts_all(int ifindex) const ACCEL_REQUIRES(worker_lock);
  /// The kernel's path with the rule, or `accelerated`.
  PathChoice judge(const FilteredFlow& flow, Instant now) ACCEL_REQUIRES(worker_lock);
  /// Before new flows are judged: changes are heard at once; some hooks tell of none, which are looked at
  /// when the last look is so old.
  void refresh(Instant now, Duration between_looks = 1s) ACCEL_REQUIRES(worker_lock);
  /// There has been a look at the rules.
  bool has_looked() const ACCEL_REQUIRES(worker_lock) { return local_ports_.second != 0; }
  /// Rules have changed since the last call.
  bool take_changed() ACCEL_REQUIRES(worker_lock) { return std::exchange(changed_, false); }
  /// Devices, addresses or routes have changed.
  void forget_judgements() ACCEL_REQUIRES(worker_lock) { rules_.forget_judgements(); }
  void abandon_in_child() ACCEL_REQUIRES(worker_lock) { rules_.abandon(); }

 private:
  firewall::Question question_of(const FilteredFlow& flow) const ACCEL_REQUIRES(worker_lock);
  bool peers_come_by(int ifindex, bool v4) const ACCEL_REQUIRES(worker_lock);

  const Network& network_;
  firewall::Firewall rules_ ACCEL_GUARDED_BY(worker_lock);
  bool changed_ ACCEL_GUARDED_BY(worker_lock) = false;
  bool told_of_unseen_rules_ ACCEL_GUARDED_BY(worker_lock) = false;
  /// Those that sockets get without bind(); 0: not read yet.
  std::pair<uint16_t, uint16_t> local_ports_ ACCEL_GUARDED_BY(worker_lock){0, 0};
};

}  // namespace accel
