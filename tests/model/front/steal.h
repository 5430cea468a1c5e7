// A steering rule as comparisons of nf_tables: what the device takes, the kernel must not see.
#pragma once

#include <vector>

#include "tests/model/core/flow.h"
#include "tests/model/front/nftables.h"

namespace model {

struct Stolen {
  std::vector<DropTable::Compare> compares;
  uint16_t ether_type = 0;  // 0: any
};

/// EOPNOTSUPP where a rule cannot be said to the kernel.
accel::Result<Stolen> to_drop_rule(const FlowRule& rule);

}  // namespace model
