#include "base/proc.h"

#include <fcntl.h>

#include <cstdio>
#include <cstdlib>

#include "base/own_table.h"
#include "base/real.h"

namespace accel {

namespace {

void read_into(std::string& text, const std::string& path) {
  const int fd = real.open(path.c_str(), O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return;
  char buffer[8192];
  for (ssize_t n; (n = real.read(fd, buffer, sizeof(buffer))) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  real.close(fd);
}

}  // namespace

std::string read_proc(const std::string& path) {
  std::string text;
  in_own_table([&] { read_into(text, path); });
  return text;
}

int sysctl(const char* path, int otherwise) {
  const std::string text = read_proc(path);
  return text.empty() ? otherwise : std::atoi(text.c_str());
}

std::array<uint64_t, 3> sysctl_triple(const char* path, const std::array<uint64_t, 3>& otherwise) {
  const std::string text = read_proc(path);
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
