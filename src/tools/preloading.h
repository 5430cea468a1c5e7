// Why a program has no libaccel though it was to be preloaded.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace accel::tools {

/// libaccel.so: beside this program first, so that a build tree or an unpacked archive uses its own.
std::optional<std::filesystem::path> find_preload_library();

/// Why the dynamic linker will not preload anything into this program; "" when it will, or when that is not
/// known (a script).
std::string preload_obstacle(const std::filesystem::path& program);

/// The same for a process that runs: also that nobody has asked for it.
std::string why_not_preloaded(int pid);

}  // namespace accel::tools
