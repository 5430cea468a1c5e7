#pragma once

#include <cstdint>

namespace model {

struct Counters {
#define COUNTER(name) uint64_t name = 0;
#include "model/core/counters.def"
#undef COUNTER
};

}  // namespace model
