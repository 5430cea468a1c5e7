// What carries a socket, and why.
#pragma once

#include <cstdint>

#include "base/config.h"
#include "base/ip.h"
#include "stack/stack.h"

namespace accel {

enum class PathKind : uint8_t { kUndecided, kKernel, kXdp, kMlx5, kIwarp, kShm };

enum class Reason : uint8_t {
#define REASON(name, text) name,
#include "engine/reasons.def"
#undef REASON
};
const char* reason_text(Reason r);
const char* reason_name(Reason r);  ///< as docs/reasons.md has it
const char* path_name(PathKind p);  ///< "kernel", "xdp", "mlx5", "iwarp", "shm", "undecided"

/// The outcome of path selection: a path, why, and for an accelerated one where frames go.
struct PathChoice {
  PathKind path = PathKind::kKernel;
  Reason reason = Reason::not_decided;
  Route route;
  uint8_t detail = 0;  ///< what a firewall's or an option's reason is about (stats::note_detail)
  bool accelerated() const { return path == PathKind::kXdp || path == PathKind::kMlx5; }
  /// As it is told to the operator: until its port is open the kernel serves it.
  PathKind shown() const { return reason == Reason::port_opening ? PathKind::kUndecided : path; }
};

/// What selection needs to know of a socket.
struct FlowRequest {
  Role role = Role::kTcpClient;
  Endpoint local;         ///< address may be any(), port 0
  Endpoint remote;        ///< for clients, senders and connected UDP
  int bound_ifindex = 0;  ///< SO_BINDTODEVICE
  uint32_t mark = 0;      ///< SO_MARK
  uint8_t tos = 0;
  bool looped = false;  ///< to a multicast group whose members on this host have a copy (IP_MULTICAST_LOOP)
};

}  // namespace accel
