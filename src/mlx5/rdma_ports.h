// Which port of an RDMA device a netdev is on, as the kernel says by netlink (rdma_netlink.h, RDMA_NL_NLDEV):
// in switchdev mode the uplink and all representors are ports of one device, and those without RoCE have no
// GIDs by which sysfs would tell.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace accel::mlx5 {

/// Of an answer to RDMA_NLDEV_CMD_GET: the number of the device with that name; -1: it has none.
int64_t device_number(std::span<const uint8_t> answer, const std::string& name);
/// Of an answer to RDMA_NLDEV_CMD_PORT_GET: the port with that netdev; 0: it has none.
uint8_t port_with(std::span<const uint8_t> answer, uint32_t ifindex);

/// Asks the kernel. 0: it does not know.
uint8_t ask_for_port(const std::string& device, uint32_t ifindex);

}  // namespace accel::mlx5
