#pragma once

#include "verbs.h"

namespace accel::interop {

std::string rping_client(const PeerOptions& options, QueuePair& qp);
std::string rping_server(const PeerOptions& options, QueuePair& qp);

}  // namespace accel::interop
