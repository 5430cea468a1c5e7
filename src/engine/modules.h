// The modules and libraries of an engine and its ports, loaded ahead of their first use.
#pragma once

namespace accel {

/// Loads all that an engine of this process may need later: for a process that is about to change what paths
/// mean (base/start_paths.h). Nothing where there can be no engine. A failure shows at the first use. Not in
/// a signal's handler.
void load_engine_modules();

}  // namespace accel
