// How much memory the process's control groups leave it.
#pragma once

#include <cstdint>

namespace accel {

/// Bytes until the first limit of the process's memory cgroups (cgroup v2 memory.max, v1
/// memory.limit_in_bytes), of those that are visible to it; UINT64_MAX: there is none.
uint64_t memory_room();

}  // namespace accel
