// The guardian's executable (main.cc), as the build made it.
#pragma once

#include <cstddef>

namespace accel::guardian {
extern const unsigned char kProgram[];
extern const size_t kProgramSize;
}  // namespace accel::guardian
