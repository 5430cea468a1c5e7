#include "base/libraries.h"

namespace accel {

// An executable that links them has them. libaccel.so replaces this one (src/preload/linker/delay_load.cc).
bool load_libraries(const char** missing) {
  if (missing != nullptr) *missing = nullptr;
  return true;
}
bool load_iwarp_libraries(const char** missing) { return load_libraries(missing); }

}  // namespace accel
