// Multicast groups that a UDP socket has joined, as the kernel's socket below has them.
#pragma once

#include <span>
#include <vector>

#include "engine/groups.h"

namespace accel::posix {

/// An option that changes what comes to a socket from groups.
bool is_group_option(int level, int name);

/// Memberships as the kernel has them. It tells of none that is not asked for by name, so the names are kept.
class JoinedGroups {
 public:
  /// setsockopt() has succeeded, as the kernel read it.
  void option_was_set(int level, int name, const void* value);
  /// Reads anew what `fd` has on these devices.
  Groups read(int fd, std::span<const int> devices);
  bool any() const { return !names_.empty(); }
  /// By some option of is_group_option().
  bool touched() const { return touched_; }

 private:
  bool touched_ = false;
  std::vector<IpAddress> names_;
};

}  // namespace accel::posix
