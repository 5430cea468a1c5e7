// What accel check has to say: one line, and the cure where something lacks.
#pragma once

#include <string>
#include <vector>

namespace accel::tools {

enum class Level { kOk, kWarning, kLack };

struct Finding {
  Level level = Level::kOk;
  std::string what;
  std::string cure = {};
  std::string sign = {};  ///< a short name of a failure that scripts may look for; "": none
};
using Findings = std::vector<Finding>;

}  // namespace accel::tools
