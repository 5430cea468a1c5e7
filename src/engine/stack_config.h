// What the stack heeds of the host's settings, net.ipv4.* and others, and of ours.
#pragma once

#include <optional>

#include "base/config.h"
#include "stack/stack.h"

namespace accel {

/// As they are now; without secrets.
StackConfig stack_config(const Settings& s);
/// The same later on; nullopt: /proc is out of reach (the program has another root), and nothing is known.
std::optional<StackConfig> changed_stack_config(const Settings& s);

}  // namespace accel
