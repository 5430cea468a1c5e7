// Texts and numbers of /proc (proc(5)).
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace accel {

/// Empty where it cannot be read.
std::string read_proc(const std::string& path);
/// The number in a file of /proc/sys, or `otherwise` where it cannot be read.
int sysctl(const char* path, int otherwise);
/// Three numbers, as net.ipv4.tcp_mem and the like have; all of `otherwise` where they cannot be read.
std::array<uint64_t, 3> sysctl_triple(const char* path, const std::array<uint64_t, 3>& otherwise);

}  // namespace accel
