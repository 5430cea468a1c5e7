// Where this object's `operator new` takes memory: libc's until somebody says otherwise, before its first
// allocation. libaccel.so does at its start, a module is told when it is loaded (base/own_module.h).
#pragma once

#include "base/memory.h"

namespace accel::memory {

extern Calls calls;

}  // namespace accel::memory
