// What the environment says; read once, before the first hook acts.
#pragma once

#include <string>

namespace model {

struct Environment {
  std::string netdev;  // MLX5_MODEL_NETDEV: the netdev that is the NIC's port; empty: the model is off
  std::string sysfs;   // SYSFS_PATH: where sysfs.py wrote the tree
  std::string report;  // MLX5_MODEL_REPORT: folder for violations and counters; empty: none
  std::string faults;  // MLX5_MODEL_FAULTS, see faults.h
  std::string refuse;  // MLX5_MODEL_REFUSE, see refuse.h
  std::string rules;   // MLX5_MODEL_RULES: room for so many of each priority; empty: for any number
  std::string clock;   // MLX5_MODEL_CLOCK: "real", stamps are the time of day; empty: the counter's
  std::string part;    // MLX5_MODEL_PART: the PCI device, four hexadecimal digits; empty: 1017, a ConnectX-5
};

const Environment& environment();

inline constexpr char kDeviceNode[] = "/dev/infiniband/uverbs0";

}  // namespace model
