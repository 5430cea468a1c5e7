// The netdev that stands for the port: its MTU, and whether there is a carrier.
#pragma once

#include <cstdint>

namespace model {

struct Netdev {
  uint32_t mtu = 1500;
  bool running = false;
};

/// Asks the kernel. fd: any socket of the netdev's namespace.
Netdev ask_netdev(int fd);

}  // namespace model
