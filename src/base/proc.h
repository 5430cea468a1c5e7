// Texts and numbers of /proc (proc(5)).
#pragma once

#include <string>

namespace accel {

/// Empty where it cannot be read.
std::string read_proc(const std::string& path);
/// The number in a file of /proc/sys, or `otherwise` where it cannot be read.
int sysctl(const char* path, int otherwise);

}  // namespace accel
