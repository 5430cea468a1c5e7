// Privileged requests: what the helper (main.cc) does for a process that has given up root after its ports
// were open. They are the few calls of a hand-back (engine/hand_back.cc) for which the kernel asks a
// capability, and mlx5's steering rules. One request on a SOCK_SEQPACKET pair, with the descriptors that it
// is about; the answer is an int32_t: a negative errno value, or 0, or what was made.
//
// Whoever breaks into the process can make any request. So each is bounded by what the process had while it
// was privileged, or has now by itself; docs/security.md, "The helper", lists the bounds.
#pragma once

#include <cstdint>

#include "base/flow_rule.h"

namespace accel::helper {

enum class RequestType : uint32_t {
  /// TCP_REPAIR to `value`, which must be one of the two that end it: TCP_REPAIR_OFF, TCP_REPAIR_OFF_NO_WP.
  kRepair,
  /// SO_SNDBUFFORCE to `value` or the helper's bound (kMostBuffer in main.cc), of a socket in repair mode.
  kSendBuffer,
  kReceiveBuffer,  ///< the same with SO_RCVBUFFORCE
  /// Puts a TCP socket that is not bound into repair mode, bound to `address`. That is a local end of
  /// kLocalEnd, or the end at which a second descriptor listens: then beside whatever has it (repair mode
  /// implies SK_FORCE_REUSE). Any other end: only where bind() would give it to a process without privilege,
  /// and not on loopback. Else -EPERM.
  kBind,
  /// The process has that of `rule`: protocol, local end (port 0: none; address of zeros: every one), VLAN.
  /// -EPERM from a process that has no CAP_NET_RAW, or is of another user than when the helper began.
  kLocalEnd,
  kSeal,  ///< there are no more of those, nor of kPort; else kRule says -EPERM
  kRule,  ///< a steering rule (CAP_NET_RAW) for a local end of kLocalEnd; the answer is its handle
  /// An AF_XDP port (PortRights): `value` is its device, rule.tag its mark; four descriptors: link, xsks,
  /// owners, ends. Asked as kLocalEnd is.
  kPort,
  /// The port rule.tag may steer the local end of `rule` (with remote: that connection), at which the socket
  /// that comes with the request is bound: docs/security.md, "The steering maps".
  kEnd,
  /// The port rule.tag has bound the AF_XDP socket that comes with the request to queue `value`, at which no
  /// port is. -EBUSY: one is.
  kQueue
};

constexpr int kMostDescriptors = 4;  ///< of a request

struct PrivilegedRequest {
  RequestType type;
  int32_t value;
  uint32_t length;      ///< of the address
  uint8_t address[28];  ///< sockaddr_in or sockaddr_in6
  FlowRule rule{};
};

}  // namespace accel::helper
