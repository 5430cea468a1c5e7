// The way back: frames that a rule of ours took and that are the kernel's.
#pragma once

#include <cstdint>

#include "base/module_fd.h"
#include "stack/packet.h"

namespace accel::mlx5 {

/// Sends the IP packet of a frame to this host itself through a raw socket. The kernel routes it over
/// loopback with the route's own destination entry, so the foreign source address is not questioned
/// (net/ipv4/raw.c, raw_send_hdrinc; drivers/net/loopback.c keeps the dst), and its TCP takes it as any other
/// segment.
class KernelInlet {
 public:
  KernelInlet() = default;
  ~KernelInlet();
  KernelInlet(const KernelInlet&) = delete;
  KernelInlet& operator=(const KernelInlet&) = delete;

  /// While there is the privilege: the process may give root up before its first frame comes that is the
  /// kernel's. What fails (no IPv6) is tried again when it is needed.
  void open();
  /// False: it could not be given (counted by the caller). The frame stays the caller's.
  bool give(const Packet& frame);
  /// Closes the sockets; also what a forked child does.
  void close();

 private:
  int socket_for(bool v6);
  Fd v4_, v6_;
};

}  // namespace accel::mlx5
