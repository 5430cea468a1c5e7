// Modules of our own build (libaccel-xdp.so, libaccel-mlx5.so): what they need loads only in a process that
// uses their devices.
#pragma once

#include <cstdint>
#include <string>

namespace accel {

/// Loads libaccel-NAME.so and returns its symbol accel_NAME_module, which must begin with a uint32_t `abi` of
/// this value. Looks beside the object that this code is linked into, in ../lib of it, then where the dynamic
/// linker does; it stays loaded. nullptr: `reason` is appended to.
const void* load_own_module(const std::string& name, uint32_t abi, std::string& reason);

}  // namespace accel
