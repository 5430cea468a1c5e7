// What the guardian (main.cc) does for a process that has given up root after its ports were open: the few
// calls of a hand-back (engine/hand_back.cc) for which the kernel asks a capability. One request with one
// descriptor, a TCP socket of the process, on a SOCK_SEQPACKET pair; the answer is an int32_t, 0 or a
// negative errno value. Who holds a port can send any frame, so this gives it no power over the network that
// it has not.
#pragma once

#include <cstdint>

namespace accel::guardian {

enum class Errand : uint32_t {
  kRepair,         ///< TCP_REPAIR to `value` (CAP_NET_ADMIN)
  kSendBuffer,     ///< SO_SNDBUFFORCE (CAP_NET_ADMIN)
  kReceiveBuffer,  ///< SO_RCVBUFFORCE (CAP_NET_ADMIN)
  kBind  ///< bind() of a socket in repair mode, else -EPERM: a port below 1024 (CAP_NET_BIND_SERVICE)
};

struct Request {
  Errand errand;
  int32_t value;
  uint32_t length;      ///< of the address
  uint8_t address[28];  ///< sockaddr_in or sockaddr_in6
};

}  // namespace accel::guardian
