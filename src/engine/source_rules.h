// What a device's settings say of the sources of packets that come in by it.
#pragma once

#include <string>

#include "stack/stack.h"

namespace accel {

/// From /proc/sys/net/ipv4/conf, of the calling thread's network namespace. A setting that cannot be read
/// counts as 0, the kernel's own default.
SourceRules read_source_rules(const std::string& device);

}  // namespace accel
