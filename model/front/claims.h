// Which process has a match: the NIC's one steering table, as far as its users see each other.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/result.h"
#include "model/core/flow.h"

namespace model {

/// A match is claimed by the name of a Unix socket, so that it is free when the process ends, however it
/// does.
class Claims {
 public:
  ~Claims() { abandon(); }
  Claims() = default;
  Claims(const Claims&) = delete;
  Claims& operator=(const Claims&) = delete;

  /// EEXIST: another context, of this process or another one, has a rule of the same match (the kernel: with
  /// another tag or action; with the same it would send copies to both, which is not modelled).
  accel::Result<void> add(const std::string& netdev, const FlowRule& rule, uint32_t handle);
  void remove(uint32_t handle);
  void abandon();

 private:
  struct Claim {
    int socket = -1;
    unsigned rules = 0;
  };
  std::map<std::string, Claim> claims_;
  std::map<uint32_t, std::string> names_;
};

}  // namespace model
