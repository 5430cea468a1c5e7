#include "model/front/steal.h"

#include <algorithm>

#include "model/core/bytes.h"

namespace model {
namespace {

using Compare = StealTable::Compare;

bool any(std::span<const uint8_t> mask) {
  return std::any_of(mask.begin(), mask.end(), [](uint8_t b) { return b != 0; });
}

void add(Stolen& s, Compare::Base base, uint8_t offset, std::span<const uint8_t> value,
         std::span<const uint8_t> mask, bool negate = false) {
  if (!any(mask)) return;
  s.compares.push_back({base, offset, {value.begin(), value.end()}, {mask.begin(), mask.end()}, negate});
}

void add_ipv4(Stolen& s, const FlowFields& v, const FlowFields& m) {
  add(s, Compare::kNetwork, 1, {&v.tos, 1}, {&m.tos, 1});
  add(s, Compare::kNetwork, 8, {&v.ttl, 1}, {&m.ttl, 1});
  add(s, Compare::kNetwork, 9, {&v.proto, 1}, {&m.proto, 1});
  add(s, Compare::kNetwork, 12, v.src4, m.src4);
  add(s, Compare::kNetwork, 16, v.dst4, m.dst4);
}

void add_ipv6(Stolen& s, const FlowFields& v, const FlowFields& m) {
  std::array<uint8_t, 4> value{}, mask{};
  store32(value.data(),
          static_cast<uint32_t>(v.traffic_class) << 20 | (load32(v.flow_label.data()) & 0xfffff));
  store32(mask.data(),
          static_cast<uint32_t>(m.traffic_class) << 20 | (load32(m.flow_label.data()) & 0xfffff));
  add(s, Compare::kNetwork, 0, value, mask);
  add(s, Compare::kNetwork, 6, {&v.proto, 1}, {&m.proto, 1});
  add(s, Compare::kNetwork, 7, {&v.hop_limit, 1}, {&m.hop_limit, 1});
  add(s, Compare::kNetwork, 8, v.src6, m.src6);
  add(s, Compare::kNetwork, 24, v.dst6, m.dst6);
}

uint16_t order_of(const FlowRule& rule) {
  constexpr uint16_t kDefaults = StealTable::kLastOrder - 1;
  if (rule.kind == FlowKind::kNormal) return std::min<uint16_t>(rule.priority, kDefaults - 1);
  return rule.kind == FlowKind::kAllDefault ? kDefaults : StealTable::kLastOrder;
}

}  // namespace

accel::Result<Stolen> to_steal(const FlowRule& rule) {
  Stolen s;
  s.order = order_of(rule);
  // Holds for what has an Ethernet header. What the kernel sends to a group and loops back to its own members
  // (dev_loopback_xmit()) has none, and passes no NIC.
  s.compares.push_back({Compare::kLink, 0, {0}, {0}, false});
  if (rule.kind == FlowKind::kAllDefault) return s;  // everything
  if (rule.kind == FlowKind::kMulticastDefault) {
    const uint8_t bit = 1;
    add(s, Compare::kLink, 0, {&bit, 1}, {&bit, 1});
    return s;
  }
  const FlowFields &v = rule.value, &m = rule.mask;
  add(s, Compare::kLink, 0, v.dst_mac, m.dst_mac);
  add(s, Compare::kLink, 6, v.src_mac, m.src_mac);
  if (any(m.vlan)) {
    std::array<uint8_t, 4> value{}, mask{0xff, 0xff, m.vlan[0], m.vlan[1]};
    store16(value.data(), kTypeVlan);
    std::copy(v.vlan.begin(), v.vlan.end(), value.begin() + 2);
    add(s, Compare::kLink, 12, value, mask);
  }
  const uint16_t type_mask = load16(m.type.data());
  if (type_mask != 0 && type_mask != 0xffff) return accel::err(EOPNOTSUPP);
  if (type_mask == 0) {
    // Fields of a header need to know which header.
    if (any(m.src4) || any(m.dst4) || any(m.src6) || any(m.dst6) || m.proto != 0)
      return accel::err(EOPNOTSUPP);
    return s;
  }
  s.ether_type = load16(v.type.data());
  if (s.ether_type == kTypeIpv4) add_ipv4(s, v, m);
  if (s.ether_type == kTypeIpv6) add_ipv6(s, v, m);
  if (m.l4 == 0) return s;
  if (s.ether_type == kTypeIpv4) {  // fragments have no ports: they stay the kernel's
    const uint8_t zero[2] = {}, fragment[2] = {0x3f, 0xff};
    add(s, Compare::kNetwork, 6, zero, fragment);
  }
  add(s, Compare::kTransport, 0, v.src_port, m.src_port);
  add(s, Compare::kTransport, 2, v.dst_port, m.dst_port);
  return s;
}

}  // namespace model
