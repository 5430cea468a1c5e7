#include "engine/orphans.h"

#include <time.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "base/proc.h"
#include "base/real.h"
#include "base/words.h"
#include "helper/table.h"

namespace accel {
namespace {

/// A process 1 that waits for orphans has done so by then, on a busy machine as well. Seconds.
constexpr uint64_t kWaitedForWithin = 10;

uint64_t seconds_since_boot() {
  timespec now{};
  real.clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<uint64_t>(now.tv_sec);
}

/// `stat`: of a process, as proc(5) has it. A helper's name tells when it ended.
bool is_helper_zombie(const std::string& stat, uint64_t now) {
  const size_t name = stat.find('(' + std::string(helper::kEndName));
  if (name == std::string::npos || stat.find(") Z", name) == std::string::npos) return false;
  const uint64_t ended = std::strtoull(stat.c_str() + name + sizeof helper::kEndName, nullptr, 16);
  return now > ended + kWaitedForWithin;
}

}  // namespace

// What process 1 does with SIGCHLD says nothing: some wait in a thread that is there for that, others handle
// the signal and wait for their own children alone.
const char* orphans_become_zombies() {
  const uint64_t now = seconds_since_boot();
  const std::string children = read_proc("/proc/1/task/1/children");
  for (const std::string_view child : words_of(children))
    if (is_helper_zombie(read_proc("/proc/" + std::string(child) + "/stat"), now))
      return "process 1 of its pid namespace has left another program's helper a zombie";
  return nullptr;
}

}  // namespace accel
