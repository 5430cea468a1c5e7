// Packets by the kernel's routing: into this host's own stack as if a peer's, or (raw_segment.h) to a peer.
#pragma once

#include <cstdint>
#include <span>

#include "base/ip.h"
#include "base/result.h"

namespace accel {

/// By raw sockets (raw(7), IPPROTO_RAW): the destination is local, so a packet never leaves the host, and the
/// kernel routes it over loopback with the route's own destination entry, so the foreign source is not
/// questioned (raw_send_hdrinc(), loopback_xmit()).
class Injector {
 public:
  Injector() = default;
  ~Injector();
  Injector(const Injector&) = delete;
  Injector& operator=(const Injector&) = delete;

  /// `packet`: with its IP header, in which IPv4's total length, ID and checksum are the kernel's to fill in.
  /// `ifindex`: the scope of a link-local `to`. Errors: EPERM, EMFILE, and sendto()'s.
  Result<void> send(std::span<const uint8_t> packet, const IpAddress& to, int ifindex = 0);

  /// While the process may: for the time when it may no more. Once.
  static void keep_sockets();

 private:
  int socket_for(bool v4);
  int v4_ = -1, v6_ = -1;
};

}  // namespace accel
