// Shared libraries that only a process with an accelerated socket needs (libnl, libev). libaccel.so does not
// ask the dynamic linker for them at start, where they would cost every preloaded process a millisecond:
// their functions find themselves at the first call (src/preload/linker/delay_load.cc). An ordinary
// executable, such as a unit test, links them as usual.
#pragma once

namespace accel {

/// Loads them all. False: `missing` (may be nullptr) names the one that is not installed, or that is not
/// loaded since its path may name another file by now (base/start_paths.h); nothing of it may be called then.
/// To be asked once before the first of their functions is called. Allocates.
bool load_libraries(const char** missing);
/// The same for those that only soft-iWARP needs (ISA-L).
bool load_iwarp_libraries(const char** missing);

}  // namespace accel
