// The kernel's answers for flows, which path selection asks for over and over.
#pragma once

#include <cstddef>
#include <map>

#include "engine/lock.h"
#include "engine/netlink.h"

namespace accel {

class RouteCache {
 public:
  /// The kernel is asked where the answer is not known.
  Result<RouteAnswer> route_to(const RouteQuestion& question, Netlink& netlink) ACCEL_REQUIRES(worker_lock) {
    if (auto known = answers_.find(question); known != answers_.end()) return known->second;
    auto answer = netlink.ask_route(question);
    if (answer) {
      if (answers_.size() >= kMost) answers_.clear();
      answers_.emplace(question, *answer);
    }
    return answer;
  }
  /// The network has changed.
  void clear() ACCEL_REQUIRES(worker_lock) { answers_.clear(); }

 private:
  static constexpr size_t kMost = 8192;
  std::map<RouteQuestion, RouteAnswer> answers_ ACCEL_GUARDED_BY(worker_lock);
};

}  // namespace accel
