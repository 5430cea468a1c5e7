#include "engine/modules.h"

#include <string>

#include "base/config.h"
#include "base/libraries.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/ports.h"

namespace accel {

void load_engine_modules() {
  if (config().disabled) return;
  if (config().wants_iwarp) (void)load_iwarp_libraries(nullptr);
  if (!Engine::privileged()) return;
  std::string why;
  const char* missing = nullptr;
  if (!load_libraries(&missing)) why = missing;
  if (!why.empty() || !load_port_modules(why))
    log(LogLevel::kInfo, "the root changes, and not all that libaccel may need is loaded: %s", why.c_str());
}

}  // namespace accel
