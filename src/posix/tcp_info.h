// TCP_INFO: the kernel's structure, as long as the running kernel's. TCP_CC_INFO.
#pragma once

#include "posix/socket.h"
#include "stack/types.h"

namespace accel::posix {

/// `s`: a socket whose shadow says how long that is.
Result<int> put_tcp_info(const Socket& s, const TcpInfo& info, void* value, socklen_t* length);
/// TCP_CC_INFO. Linux: bbr_get_info().
Result<int> put_bbr_info(const BbrInfo& info, void* value, socklen_t* length);

}  // namespace accel::posix
