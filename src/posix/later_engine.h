// The engine of a process that has opened connections and nothing else: it is opened a moment after the first
// of them, by a thread that ends with that. Until then connections are the kernel's, as they are while a port
// is opened. A program that has ended by then (curl of a small page) has paid for none of it.
#pragma once

#include <optional>

#include "engine/path.h"

namespace accel::posix {

/// For connect() of a TCP socket, in a process without an engine and under the early lock (posix/guard.h).
/// Why the connection is the kernel's; nothing: the caller is to open the engine now.
std::optional<Reason> begin_engine_later(const FlowRequest& request);

/// begin_engine_later() has been called, and the engine is not open yet.
bool engine_comes_later();
/// The program relies on the numbers of descriptors that it opens next, of which the engine takes some for
/// moments: it is not opened now, or it is open when this returns. Without a lock.
void postpone_engine();
/// The program ends: it is not opened, unless it is being opened.
void drop_later_engine();
/// It is not opened, unless it is being opened: then it is there when this returns. The thread is gone.
/// Without a lock.
void end_later_engine();
void later_engine_after_fork_in_child();

}  // namespace accel::posix
