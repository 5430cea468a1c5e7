#include "firewall/ipsec.h"

#include <netinet/in.h>
// after libc's names for the same
#include <linux/xfrm.h>

#include <algorithm>

namespace accel::firewall {
namespace {

uint16_t host(uint16_t network_order) { return ntohs(network_order); }

IpsecPolicy policy_of(const xfrm_userpolicy_info& raw) {
  IpsecPolicy p;
  const xfrm_selector& s = raw.sel;
  p.v4 = s.family == AF_INET;
  p.outgoing = raw.dir == XFRM_POLICY_OUT;
  p.from = p.v4 ? IpAddress::from_v4_bytes(&s.saddr) : IpAddress::from_v6_bytes(&s.saddr);
  p.to = p.v4 ? IpAddress::from_v4_bytes(&s.daddr) : IpAddress::from_v6_bytes(&s.daddr);
  p.from_bits = s.prefixlen_s;
  p.to_bits = s.prefixlen_d;
  p.from_port = host(s.sport);
  p.from_port_mask = host(s.sport_mask);
  p.to_port = host(s.dport);
  p.to_port_mask = host(s.dport_mask);
  p.protocol = s.proto;
  p.ifindex = s.ifindex;
  p.index = raw.index;
  return p;
}

bool within(const IpAddress& prefix, unsigned bits, const IpAddress& address) {
  if (bits > 128) return true;
  for (unsigned i = 0; i < bits; ++i)
    if ((prefix.bytes[i / 8] ^ address.bytes[i / 8]) & (0x80 >> i % 8)) return false;
  return true;
}

/// An end of the flow, of which address and port may be unknown.
bool may_be(const IpsecPolicy& p, bool from, const Endpoint& end, bool address_known) {
  const unsigned bits = (from ? p.from_bits : p.to_bits) + (p.v4 ? 96u : 0u);
  if (address_known && !within(from ? p.from : p.to, bits, end.address)) return false;
  const uint16_t port = from ? p.from_port : p.to_port, mask = from ? p.from_port_mask : p.to_port_mask;
  return end.port == 0 || ((port ^ end.port) & mask) == 0;
}

}  // namespace

std::vector<IpsecPolicy> parse_policies(View messages) {
  std::vector<IpsecPolicy> all;
  each_message(messages, [&](uint16_t type, View payload) {
    xfrm_userpolicy_info raw;
    if (type != XFRM_MSG_NEWPOLICY || payload.size() < sizeof raw) return;
    std::memcpy(&raw, payload.data(), sizeof raw);
    if (raw.dir > XFRM_POLICY_OUT || raw.dir == XFRM_POLICY_FWD) return;
    IpsecPolicy p = policy_of(raw);
    const View rest = payload.subspan(std::min(payload.size(), size_t{NLMSG_ALIGN(sizeof raw)}));
    p.passes = raw.action == XFRM_POLICY_ALLOW && attribute(rest, XFRMA_TMPL).empty();
    all.push_back(p);
  });
  return all;
}

const IpsecPolicy* policy_for(const std::vector<IpsecPolicy>& policies, const Question& q) {
  const bool peer = !q.remote.address.is_any();
  for (const IpsecPolicy& p : policies) {
    if (p.passes || p.v4 != q.local.address.is_v4()) continue;
    if (p.protocol != 0 && p.protocol != static_cast<uint8_t>(q.protocol)) continue;
    if (p.ifindex != 0 && p.ifindex != q.device.ifindex) continue;
    const Endpoint &from = p.outgoing ? q.local : q.remote, &to = p.outgoing ? q.remote : q.local;
    if (may_be(p, true, from, p.outgoing || peer) && may_be(p, false, to, !p.outgoing || peer)) return &p;
  }
  return nullptr;
}

}  // namespace accel::firewall
