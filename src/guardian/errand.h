// What the guardian (main.cc) does for a process that has given up root after its ports were open: the few
// calls of a hand-back (engine/hand_back.cc) for which the kernel asks a capability, and mlx5's steering
// rules. One request on a SOCK_SEQPACKET pair, with the descriptor of the process that it is about, a TCP
// socket or the device's file; the answer is an int32_t: a negative errno value, or 0, or what was made.
//
// This gives the process no power over the network that it has not: who holds a port can send any frame, and
// rules are made only for local ends that it had while it could make them itself (kLocalEnd, until kSeal).
#pragma once

#include <cstdint>

#include "base/flow_rule.h"

namespace accel::guardian {

enum class Errand : uint32_t {
  kRepair,         ///< TCP_REPAIR to `value` (CAP_NET_ADMIN)
  kSendBuffer,     ///< SO_SNDBUFFORCE (CAP_NET_ADMIN)
  kReceiveBuffer,  ///< SO_RCVBUFFORCE (CAP_NET_ADMIN)
  kBind,      ///< bind() of a socket in repair mode, else -EPERM: a port below 1024 (CAP_NET_BIND_SERVICE)
  kLocalEnd,  ///< the process has that of `rule`: protocol, local end, VLAN
  kSeal,      ///< there are no more of those; else kRule says -EPERM
  kRule       ///< a steering rule (CAP_NET_RAW); the answer is its handle
};

struct Request {
  Errand errand;
  int32_t value;
  uint32_t length;      ///< of the address
  uint8_t address[28];  ///< sockaddr_in or sockaddr_in6
  FlowRule rule{};
};

}  // namespace accel::guardian
