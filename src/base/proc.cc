#include "base/proc.h"

#include <fcntl.h>

#include <cstdio>
#include <cstdlib>

#include "base/own_table.h"
#include "base/real.h"

namespace accel {

namespace {

void read_into(std::string& text, int directory, const char* path) {
  const int fd = real.openat(directory, path, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return;
  char buffer[8192];
  for (ssize_t n; (n = real.read(fd, buffer, sizeof(buffer))) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  real.close(fd);
}

int number_in(const std::string& text, int otherwise) {
  return text.empty() ? otherwise : std::atoi(text.c_str());
}

}  // namespace

std::string read_proc(const std::string& path) {
  std::string text;
  in_own_table([&] { read_into(text, AT_FDCWD, path.c_str()); });
  return text;
}

int sysctl(const char* path, int otherwise) { return number_in(read_proc(path), otherwise); }

SysctlFolder::SysctlFolder(const char* path) : fd_(real.open(path, O_PATH | O_DIRECTORY | O_CLOEXEC, 0)) {}

SysctlFolder::~SysctlFolder() {
  if (fd_ >= 0) real.close(fd_);
}

std::string SysctlFolder::read(const char* name) const {
  std::string text;
  if (fd_ >= 0) read_into(text, fd_, name);
  return text;
}

int SysctlFolder::number(const char* name, int otherwise) const { return number_in(read(name), otherwise); }

std::array<uint64_t, 3> SysctlFolder::triple(const char* name,
                                             const std::array<uint64_t, 3>& otherwise) const {
  const std::string text = read(name);
  std::array<uint64_t, 3> values{};
  const char* at = text.c_str();
  for (uint64_t& v : values) {
    char* end = nullptr;
    v = std::strtoull(at, &end, 10);
    if (end == at) return otherwise;
    at = end;
  }
  return values;
}

std::optional<std::pair<uint32_t, uint32_t>> local_port_range() {
  unsigned first = 0, last = 0;
  const std::string text = read_proc("/proc/sys/net/ipv4/ip_local_port_range");
  if (std::sscanf(text.c_str(), "%u %u", &first, &last) != 2) return std::nullopt;
  return std::pair<uint32_t, uint32_t>(first, last);
}

}  // namespace accel
