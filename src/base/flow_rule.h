// A steering rule for a raw-packet queue, in the words of the kernel's RDMA interface: what a process that
// may make none any more asks its helper for (helper/privileged_request.h).
#pragma once

#include <cstdint>

namespace accel {

/// Ports in host byte order, addresses as in IpAddress. What is 0 is not compared.
struct FlowRule {
  uint32_t queue_pair = 0;  ///< its handle
  uint32_t tag = 0;
  uint16_t priority = 0;
  uint8_t device_port = 0;
  uint8_t protocol = 0;
  uint16_t vlan = 0;
  uint16_t local_port = 0, remote_port = 0;
  uint16_t remote_mask = 0;  ///< which bits of remote_port
  bool one_remote = false;   ///< the remote address is compared, too
  uint8_t local[16] = {}, remote[16] = {};
};

}  // namespace accel
