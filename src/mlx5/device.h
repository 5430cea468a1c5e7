// Which RDMA device belongs to a netdev, and what can be seen of it without opening anything. No library is
// needed for that: a process without such a NIC pays a few system calls.
#pragma once

#include <optional>
#include <string>

#include "mlx5/lack.h"

namespace accel::mlx5 {

/// The sysfs that libibverbs uses: $SYSFS_PATH (not in a process of raised privilege), else /sys.
std::string sysfs_root();

/// True when the netdev is an mlx5 one: its driver is mlx5_core, or an RDMA device of that vendor has it
/// (VFs and subfunctions have RDMA devices of their own).
bool is_candidate(const Evidence& seen);

/// Looks. `root`: sysfs_root(), a test's folder otherwise. What no stage has tried yet counts as good.
Evidence look(const std::string& netdev, int ifindex, const std::string& root);

}  // namespace accel::mlx5
