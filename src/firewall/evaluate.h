// The verdict of a host's rules on a flow, before the flow exists.
//
// Fields that are not known (any peer, a port not chosen yet) make matches that are "maybe", and then both
// ways count: the flow is accepted only if every way through the rules ends in accept, with the packet
// unchanged. A rule that is not understood accepts nothing.
#pragma once

#include <string>

#include "firewall/packet.h"
#include "firewall/rules.h"

namespace accel::firewall {

struct Finding {
  bool accepted = true;
  std::string rule;  ///< else: "inet filter/input handle 5: drops"
};

Finding evaluate(const Ruleset& rules, const Question& question);

}  // namespace accel::firewall
