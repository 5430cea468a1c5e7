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

/// A folder below /proc/sys for many reads: the way to a file there is a third of a read's cost. Within one
/// in_own_table() (base/own_table.h), whose table the folder's descriptor belongs to.
class SysctlFolder {
 public:
  explicit SysctlFolder(const char* path);
  ~SysctlFolder();
  SysctlFolder(const SysctlFolder&) = delete;
  SysctlFolder& operator=(const SysctlFolder&) = delete;

  /// As sysctl(); `name` is the file's.
  int number(const char* name, int otherwise) const;
  /// Three numbers, as tcp_mem and the like have; all of `otherwise` where they cannot be read.
  std::array<uint64_t, 3> triple(const char* name, const std::array<uint64_t, 3>& otherwise) const;

 private:
  std::string read(const char* name) const;

  int fd_;
};

/// net.ipv4.ip_local_port_range: the first and the last port that sockets get without bind(). Nothing where
/// it cannot be read.
std::optional<std::pair<uint32_t, uint32_t>> local_port_range();

}  // namespace accel
