// A process that changes its root or its mounts. Paths name other files from then on, and what is found by
// them is not loaded (base/start_paths.h).
#pragma once

namespace accel::posix {

/// Before such a call: loads what the process may need later, where it has Internet sockets or the setting
/// `early_ports`. A signal's handler that interrupts a call of ours loads nothing.
void before_root_changes();

}  // namespace accel::posix
