// The helper's executable (main.cc), as the build made it.
#pragma once

#include <cstddef>

namespace accel::helper {
extern const unsigned char kProgram[];
extern const size_t kProgramSize;
}  // namespace accel::helper
