// Facts about this machine that decide whether libaccel can help here. No judgement: that is check.cc's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace accel::tools {

struct Nic {
  std::string name;
  std::string driver;
  int ifindex = 0;
  uint32_t mtu = 0;
  bool up = false;
  bool carrier = false;
  bool ethernet = false;
  uint32_t queues = 1;  ///< receive queues in use
  uint32_t max_queues = 1;
  uint32_t queues_held = 0;  ///< to which an AF_XDP socket of a running program is bound
  std::vector<std::string> addresses;
  std::string master;  ///< enslaved to this device
  /// What the driver says of XDP (netdev genetlink, Linux 6.3); none: the kernel does not tell.
  std::optional<uint64_t> xdp_features;
  uint32_t xdp_program = 0;  ///< id of the program attached, 0: none
  std::string xdp_program_name;
  bool tx_checksum = false, tso = false, gso = false, gro = false;
};

/// Bits of Nic::xdp_features (include/uapi/linux/netdev.h).
constexpr uint64_t kXdpBasic = 1, kXdpRedirect = 2, kXdpZeroCopy = 8;

struct Machine {
  std::string kernel;
  int major = 0, minor = 0;
  bool net_admin = false, net_raw = false, bpf = false, ipc_lock = false;  ///< capabilities, effective
  int xdp_socket_error = 0;                                                ///< errno of socket(AF_XDP)
  int program_error = 0;         ///< errno of loading an XDP program
  uint64_t memlock = 0;          ///< RLIMIT_MEMLOCK in bytes, ~0: none
  uint64_t huge_page_bytes = 0;  ///< size of one
  uint64_t huge_pages_free = 0, huge_pages_total = 0;
  int bpf_jit = -1;       ///< net.core.bpf_jit_enable, -1: unknown
  std::vector<Nic> nics;  ///< but loopback
};

Machine look_at_machine();

}  // namespace accel::tools
