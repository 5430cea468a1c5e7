// TCP_INFO: the kernel's structure, as long as the running kernel's.
#pragma once

#include "posix/socket.h"
#include "stack/types.h"

namespace accel::posix {

/// `s`: a socket whose shadow says how long that is.
Result<int> put_tcp_info(const Socket& s, const TcpInfo& info, void* value, socklen_t* length);

}  // namespace accel::posix
