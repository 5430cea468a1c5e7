// IPsec policies (xfrm): packets of a flow that one selects are encrypted, or dropped, by the kernel only.
#pragma once

#include <optional>

#include "firewall/attributes.h"
#include "firewall/packet.h"

namespace accel::firewall {

struct IpsecPolicy {
  bool outgoing = false;  ///< else for packets that come in
  bool v4 = true;
  IpAddress from, to;
  uint8_t from_bits = 0, to_bits = 0;  ///< lengths of prefixes
  uint16_t from_port = 0, from_port_mask = 0, to_port = 0, to_port_mask = 0;
  uint8_t protocol = 0;  ///< 0: any
  int ifindex = 0;       ///< 0: any
  bool passes = false;   ///< allows without any transformation
  uint32_t index = 0;    ///< as "ip xfrm policy" shows it
  bool operator==(const IpsecPolicy&) const = default;
};

/// Reads XFRM_MSG_NEWPOLICY messages. Policies of single sockets are left out: they are those sockets'
/// options.
std::vector<IpsecPolicy> parse_policies(View messages);

/// The first policy that may apply to the flow's packets; nullptr: none.
const IpsecPolicy* policy_for(const std::vector<IpsecPolicy>& policies, const Question& question);

}  // namespace accel::firewall
