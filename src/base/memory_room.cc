#include "base/memory_room.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "base/proc.h"

namespace accel {
namespace {

/// "max", or a file that is not there, is no limit.
uint64_t number_in(const std::string& path) {
  const std::string text = read_proc(path.c_str());
  uint64_t n = UINT64_MAX;
  (void)std::from_chars(text.data(), text.data() + text.size(), n);
  return n;
}

uint64_t room_in(const std::string& folder, const char* limit, const char* usage) {
  const uint64_t most = number_in(folder + limit);
  if (most == UINT64_MAX) return most;
  const uint64_t used = number_in(folder + usage);
  return used < most ? most - used : used == UINT64_MAX ? most : 0;
}

/// Of the group and of those above it. In a container the group may be mounted as the root.
uint64_t room_along(const std::string& root, std::string group, const char* limit, const char* usage) {
  uint64_t room = room_in(root, limit, usage);
  for (; group.size() > 1; group.resize(group.rfind('/')))
    room = std::min(room, room_in(root + group, limit, usage));
  return room;
}

}  // namespace

uint64_t memory_room() {
  const std::string groups = read_proc("/proc/self/cgroup");
  uint64_t room = UINT64_MAX;
  for (size_t at = 0; at < groups.size();) {
    const size_t end = std::min(groups.find('\n', at), groups.size());
    const std::string line = groups.substr(at, end - at);
    at = end + 1;
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1),
                      group = line.substr(second + 1);
    if (controllers.empty())
      room = std::min(room, room_along("/sys/fs/cgroup", group, "/memory.max", "/memory.current"));
    else if (controllers == "memory")
      room = std::min(room, room_along("/sys/fs/cgroup/memory", group, "/memory.limit_in_bytes",
                                       "/memory.usage_in_bytes"));
  }
  return room;
}

}  // namespace accel
