// Modules of our own build (libaccel-xdp.so, libaccel-mlx5.so): what they need loads only in a process that
// uses their devices.
#pragma once

#include <cstdint>
#include <string>

#include "base/memory.h"

namespace accel {

/// How the symbol of a module begins.
struct OwnModule {
  uint32_t abi;
  memory::Calls* memory;  ///< where its operator new takes memory: both sides free what the other allocated
};

/// Loads libaccel-NAME.so and returns its symbol accel_NAME_module, whose `abi` must be of this value. Looks
/// beside the object that this code is linked into, in ../lib of it, then where the dynamic linker does; it
/// stays loaded, and a second call loads nothing. nullptr: `reason` is appended to. Refused where those paths
/// may mean something else than when the process started (base/start_paths.h).
const void* load_own_module(const std::string& name, uint32_t abi, std::string& reason);

}  // namespace accel
