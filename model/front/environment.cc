#include "model/front/environment.h"

#include <cstdlib>

namespace model {

const Environment& environment() {
  static const auto* const kRead = [] {  // never freed: hooks run until the process is gone
    const auto get = [](const char* name) {
      const char* value = getenv(name);
      return std::string(value == nullptr ? "" : value);
    };
    return new Environment{.netdev = get("MLX5_MODEL_NETDEV"),
                           .sysfs = get("SYSFS_PATH"),
                           .report = get("MLX5_MODEL_REPORT"),
                           .faults = get("MLX5_MODEL_FAULTS"),
                           .refuse = get("MLX5_MODEL_REFUSE"),
                           .rules = get("MLX5_MODEL_RULES"),
                           .rule_time = strtoul(get("MLX5_MODEL_RULE_TIME").c_str(), nullptr, 10),
                           .clock = get("MLX5_MODEL_CLOCK"),
                           .part = get("MLX5_MODEL_PART")};
  }();
  return *kRead;
}

}  // namespace model
