// Texts and numbers of /proc (proc(5)).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace accel {

/// Empty where it cannot be read.
std::string read_proc(const std::string& path);
/// The number in a file of /proc/sys, or `otherwise` where it cannot be read.
int sysctl(const char* path, int otherwise);
/// Three numbers, as net.ipv4.tcp_mem and the like have; all of `otherwise` where they cannot be read.
std::array<uint64_t, 3> sysctl_triple(const char* path, const std::array<uint64_t, 3>& otherwise);

/// net.ipv4.ip_local_port_range: the first and the last port that sockets get without bind(). Nothing where
/// it cannot be read.
std::optional<std::pair<uint32_t, uint32_t>> local_port_range();

}  // namespace accel
