// RDMA devices of the host: what each is, what it is good for here, and why one cannot be used. By looking at
// files only.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tools/finding.h"

namespace accel::tools {

struct RdmaDevice {
  std::string name;      ///< mlx5_0
  std::string driver;    ///< mlx5_core, mlx4_core, irdma, efa, rxe, siw; "": not known
  std::string kind;      ///< of mlx5: physical, virtual or sub-function
  std::string use;       ///< what libaccel has of it
  std::string uverbs;    ///< its character device's name, uverbs0; "": none
  std::string provider;  ///< the name of its driver in libibverbs
  Findings findings;
};

struct Rdma {
  std::vector<RdmaDevice> devices;
  Findings findings;  ///< of the host
};

/// Below `root`: /sys, /dev, /etc, /proc, /usr, /lib; "/" is this host.
Rdma look_at_rdma(const std::filesystem::path& root);

}  // namespace accel::tools
