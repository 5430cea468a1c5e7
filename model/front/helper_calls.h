// A program's helper (src/helper) makes rules for it by the device's file, from a process of its own that
// nothing can be preloaded into. The model has the kernel tell it of those ioctls (seccomp's user
// notification) and answers them.
#pragma once

#include <sched.h>

namespace model {

using CloneFunction = int(int (*)(void*), void*, int, void*, ...);

/// clone() as the program asks for it; the future helper comes under the model's filter.
int clone_for_helper(CloneFunction* clone, int (*run)(void*), void* stack, int flags, void* argument);

}  // namespace model
