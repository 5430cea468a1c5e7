// Connections that no descriptor stands for go on in the kernel.
#pragma once

#include <vector>

#include "base/result.h"
#include "engine/engine.h"

namespace accel {

std::vector<TcpConn*> all_connections(Stack& stack);
/// Returns its kernel socket, to be closed: it lingers, the kernel sends the rest and the FIN.
Result<int> hand_back_closed(Pass& pass, TcpConn* conn);
/// The kernel goes on with what the connection owes. A connection that owes nothing is over, and the kernel
/// answers for it.
void hand_back_or_forget(Pass& pass, TcpConn* conn);

}  // namespace accel
