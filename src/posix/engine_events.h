// What the sockets do about what the engine's housekeeping has found.
#pragma once

#include "engine/housekeeping.h"

namespace accel::posix {

/// All of it, on the control thread. True: Housekeeping::look_soon() is to be called. Without a Guard.
bool see_to(const Housekeeping::Events& events);

/// Housekeeping::Events::ports_opened, also where a thread of the program's has opened them. Without a Guard.
void tell_ports_opened();

}  // namespace accel::posix
