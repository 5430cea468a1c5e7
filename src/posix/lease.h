// Receiving without a copy: accel_recv_lease() of include/accel.h.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstdint>

#include "base/ip.h"

namespace accel {
class Lent;
}

namespace accel::posix {

/// One call, on its way to the socket and back.
struct LeaseCall {
  iovec* into;
  uint32_t room;  ///< of `into`
  int flags;      ///< MSG_DONTWAIT
  sockaddr* from;
  socklen_t* from_length;
  uint64_t number = 0;   ///< the lease's; 0: none
  uint32_t buffers = 0;  ///< of `into`; with EMSGSIZE how many it takes

  /// The answer finds memory of the program's.
  bool can_tell() const;
  /// Afterwards: where the bytes are, and who sent them.
  void tell(const Lent& lent);
  void tell(const Endpoint& sender, int domain, int ifindex) const;
};

}  // namespace accel::posix
