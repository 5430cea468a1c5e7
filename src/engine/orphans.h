// Whether orphans of this pid namespace are waited for once they have ended. The helper is one
// (engine/helper_client.cc). In a container whose process 1 is a program of its own (a Python or Java server,
// node) nobody may do so, and each would stay a zombie: the first do, and one that has been for a few
// seconds is the sign for those after it.
#pragma once

namespace accel {

/// nullptr: as far as can be seen they are. Else why not, in static memory.
const char* orphans_become_zombies();

}  // namespace accel
