#include "model/front/environment.h"

#include <cstdlib>

namespace model {

const Environment& environment() {
  static const auto* const kRead = [] {  // never freed: hooks run until the process is gone
    const auto get = [](const char* name) {
      const char* value = getenv(name);
      return std::string(value == nullptr ? "" : value);
    };
    return new Environment{get("MLX5_MODEL_NETDEV"), get("SYSFS_PATH"),        get("MLX5_MODEL_REPORT"),
                           get("MLX5_MODEL_FAULTS"), get("MLX5_MODEL_REFUSE"), get("MLX5_MODEL_RULES"),
                           get("MLX5_MODEL_CLOCK"),  get("MLX5_MODEL_PART")};
  }();
  return *kRead;
}

}  // namespace model
