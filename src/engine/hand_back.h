// Connections that no descriptor stands for go on in the kernel.
#pragma once

#include <vector>

#include "base/result.h"
#include "engine/engine.h"

namespace accel {

std::vector<TcpConn*> all_connections(Stack& stack);
/// Returns its kernel socket, to be closed: it lingers, the kernel sends the rest and the FIN.
Result<int> hand_back_closed(Pass& pass, TcpConn* conn);
/// What it owes goes on in the kernel; one that owes nothing is over, the kernel answers for it.
void leave_closed(Pass& pass, TcpConn* conn);

}  // namespace accel
