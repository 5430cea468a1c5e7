// A steering rule as comparisons of nf_tables: what the device takes.
#pragma once

#include <vector>

#include "model/core/flow.h"
#include "model/front/nftables.h"

namespace model {

struct Stolen {
  std::vector<StealTable::Compare> compares;
  uint16_t ether_type = 0;  // 0: any
  uint16_t order = 0;       // as FlowRule::before() has it
};

/// EOPNOTSUPP where a rule cannot be said to the kernel.
accel::Result<Stolen> to_steal(const FlowRule& rule);

}  // namespace model
