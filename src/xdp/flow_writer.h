// Writes to a netdev's steering maps by a program (writer.bpf.c): how a process that has given up its
// privilege steers its own flows, without a descriptor of the maps.
#pragma once

#include <cstdint>
#include <string>

#include "base/module_fd.h"
#include "base/result.h"
#include "xdp/flow_abi.h"
#include "xdp/program.h"

namespace accel::xdp {

class FlowWriter {
 public:
  /// Takes the privilege that joining `maps` took, and Linux 6.1. `owner`: the port's mark.
  static Result<FlowWriter> load(const Program& maps, uint32_t owner, std::string* why);

  /// One of enum accel_operation; errors as there.
  Result<void> run(accel_operation operation, accel_request& request) const;
  Result<void> run(accel_operation operation, const accel_flow_key& key = {}, uint32_t queue = 0) const;

  /// The map accel_ends, until close_ends_map().
  int ends() const { return ends_.get(); }
  void close_ends_map() { ends_ = Fd(); }

 private:
  Fd program_, ends_;
};

}  // namespace accel::xdp
