#include "model/core/flow.h"

#include <infiniband/verbs.h>

#include <algorithm>

#include "model/core/bytes.h"

namespace model {
namespace {

using accel::err;

constexpr size_t kSpecHeader = 8;

template <size_t N>
void copy(std::array<uint8_t, N>& to, const uint8_t* from) {
  std::copy_n(from, N, to.begin());
}

/// One specification: value and mask are each (size - 8) / 2 bytes long.
struct Spec {
  uint32_t type;
  std::span<const uint8_t> value, mask;
};

void read_eth(const Spec& s, FlowFields& value, FlowFields& mask) {
  const auto half = [](const uint8_t* p, FlowFields& f) {
    copy(f.dst_mac, p);
    copy(f.src_mac, p + 6);
    copy(f.type, p + 12);
    copy(f.vlan, p + 14);
  };
  half(s.value.data(), value);
  half(s.mask.data(), mask);
  if (load16(mask.vlan.data()) != 0) value.vlan_there = mask.vlan_there = 1;
}

void read_ipv4(const Spec& s, FlowFields& value, FlowFields& mask) {
  const auto half = [](std::span<const uint8_t> p, FlowFields& f) {
    copy(f.src4, p.data());
    copy(f.dst4, p.data() + 4);
    if (p.size() < 12) return;  // the 8-byte filter of IBV_FLOW_SPEC_IPV4
    f.proto = p[8];
    f.tos = p[9];
    f.ttl = p[10];
  };
  half(s.value, value);
  half(s.mask, mask);
  store16(value.type.data(), kTypeIpv4);
  store16(mask.type.data(), 0xffff);
}

void read_ipv6(const Spec& s, FlowFields& value, FlowFields& mask) {
  const auto half = [](const uint8_t* p, FlowFields& f) {
    copy(f.src6, p);
    copy(f.dst6, p + 16);
    copy(f.flow_label, p + 32);
    f.proto = p[36];
    f.traffic_class = p[37];
    f.hop_limit = p[38];
  };
  half(s.value.data(), value);
  half(s.mask.data(), mask);
  store16(value.type.data(), kTypeIpv6);
  store16(mask.type.data(), 0xffff);
}

void read_ports(const Spec& s, FlowFields& value, FlowFields& mask) {
  const bool tcp = s.type == IBV_FLOW_SPEC_TCP;
  const auto half = [](const uint8_t* p, FlowFields& f) {
    copy(f.dst_port, p);
    copy(f.src_port, p + 2);
  };
  half(s.value.data(), value);
  half(s.mask.data(), mask);
  value.proto = tcp ? kProtoTcp : kProtoUdp;
  mask.proto = 0xff;
  if (load16(mask.dst_port.data()) != 0 || load16(mask.src_port.data()) != 0) {
    value.l4 = static_cast<uint8_t>(tcp ? L4::kTcp : L4::kUdp);
    mask.l4 = 0xff;
  }
}

accel::Result<void> read_match(const Spec& s, FlowRule& rule) {
  const auto at_least = [&](size_t n) { return s.value.size() >= n; };
  switch (s.type) {
    case IBV_FLOW_SPEC_ETH:
      if (!at_least(16)) return err(EINVAL);
      read_eth(s, rule.value, rule.mask);
      return {};
    case IBV_FLOW_SPEC_IPV4:
    case IBV_FLOW_SPEC_IPV4_EXT:
      if (!at_least(8)) return err(EINVAL);
      if (at_least(12) && s.mask[11] != 0) return err(EOPNOTSUPP);  // fragment flags
      read_ipv4(s, rule.value, rule.mask);
      return {};
    case IBV_FLOW_SPEC_IPV6:
      if (!at_least(39)) return err(EINVAL);
      read_ipv6(s, rule.value, rule.mask);
      return {};
    case IBV_FLOW_SPEC_TCP:
    case IBV_FLOW_SPEC_UDP:
      if (!at_least(4)) return err(EINVAL);
      read_ports(s, rule.value, rule.mask);
      return {};
    default:
      return err(EOPNOTSUPP);  // tunnels, inner headers, ESP, counters, action handles
  }
}

const uint8_t* raw(const FlowFields& f) { return reinterpret_cast<const uint8_t*>(&f); }

}  // namespace

bool FlowRule::same_match(const FlowRule& o) const {
  return kind == o.kind && priority == o.priority && memcmp(&value, &o.value, sizeof value) == 0 &&
         memcmp(&mask, &o.mask, sizeof mask) == 0;
}

bool FlowRule::before(const FlowRule& o) const {
  return kind != o.kind ? kind < o.kind : priority < o.priority;
}

FlowFields fields_of(std::span<const uint8_t> frame, const Parsed& p) {
  FlowFields f;
  if (frame.size() < kEthernetHeader) return f;
  copy(f.dst_mac, frame.data());
  copy(f.src_mac, frame.data() + 6);
  store16(f.type.data(), p.type);
  store16(f.vlan.data(), p.vlan_tci);
  f.vlan_there = p.vlan;
  const uint8_t* l3 = frame.data() + p.l3_at;
  if (p.l3 == L3::kIpv4) {
    copy(f.src4, l3 + 12);
    copy(f.dst4, l3 + 16);
    f.tos = l3[1];
    f.ttl = l3[8];
  } else if (p.l3 == L3::kIpv6) {
    copy(f.src6, l3 + 8);
    copy(f.dst6, l3 + 24);
    store32(f.flow_label.data(), load32(l3) & 0xfffff);
    f.traffic_class = static_cast<uint8_t>(load32(l3) >> 20);
    f.hop_limit = l3[7];
  }
  f.proto = p.proto;
  f.l4 = static_cast<uint8_t>(p.l4);
  if (p.l4 != L4::kNone) {
    copy(f.src_port, frame.data() + p.l4_at);
    copy(f.dst_port, frame.data() + p.l4_at + 2);
  }
  return f;
}

bool matches(const FlowRule& rule, const FlowFields& fields) {
  if (rule.kind == FlowKind::kMulticastDefault) return (fields.dst_mac[0] & 1) != 0;
  if (rule.kind == FlowKind::kAllDefault) return true;
  const uint8_t *f = raw(fields), *v = raw(rule.value), *m = raw(rule.mask);
  for (size_t i = 0; i < sizeof(FlowFields); ++i) {
    if ((f[i] & m[i]) != (v[i] & m[i])) return false;
  }
  return true;
}

accel::Result<FlowRule> parse_flow(uint32_t type, uint16_t priority, uint8_t count,
                                   std::span<const uint8_t> specs) {
  FlowRule rule;
  rule.priority = priority;
  switch (type) {
    case IBV_FLOW_ATTR_NORMAL:
      rule.kind = FlowKind::kNormal;
      break;
    case IBV_FLOW_ATTR_ALL_DEFAULT:
      rule.kind = FlowKind::kAllDefault;
      break;
    case IBV_FLOW_ATTR_MC_DEFAULT:
      rule.kind = FlowKind::kMulticastDefault;
      break;
    default:
      return err(EOPNOTSUPP);  // sniffer
  }
  for (unsigned i = 0; i < count; ++i) {
    if (specs.size() < kSpecHeader) return err(EINVAL);
    uint32_t spec_type;
    uint16_t size;
    memcpy(&spec_type, specs.data(), 4);
    memcpy(&size, specs.data() + 4, 2);
    if (size < kSpecHeader || size > specs.size()) return err(EINVAL);
    const auto body = specs.subspan(kSpecHeader, size - kSpecHeader);
    if (spec_type == IBV_FLOW_SPEC_ACTION_TAG) {
      if (body.size() < 4) return err(EINVAL);
      memcpy(&rule.tag, body.data(), 4);
      if (rule.tag > 0xffffff) return err(EINVAL);  // 24 bits in the CQE
    } else if (spec_type == IBV_FLOW_SPEC_ACTION_DROP) {
      rule.drop = true;
    } else {
      const size_t half = body.size() / 2;
      auto read = read_match({spec_type, body.first(half), body.subspan(half, half)}, rule);
      if (!read) return read.error();
    }
    specs = specs.subspan(size);
  }
  // The kernel's check_valid_spec (mlx5_core, fs_core.c): bits that the mask leaves out are zero.
  const uint8_t *v = raw(rule.value), *m = raw(rule.mask);
  for (size_t i = 0; i < sizeof(FlowFields); ++i) {
    if ((v[i] & ~m[i]) != 0) return err(EINVAL);
  }
  return rule;
}

accel::Result<uint32_t> FlowTable::add(const FlowRule& rule) {
  for (const Entry& e : rules_) {
    if (e.rule.same_match(rule) && (e.rule.tag != rule.tag || e.rule.drop != rule.drop)) return err(EEXIST);
  }
  const auto at =
      std::find_if(rules_.begin(), rules_.end(), [&](const Entry& e) { return rule.before(e.rule); });
  rules_.insert(at, {next_, rule});
  return next_++;
}

bool FlowTable::remove(uint32_t handle) {
  return std::erase_if(rules_, [&](const Entry& e) { return e.handle == handle; }) != 0;
}

bool FlowTable::uses(uint32_t target) const {
  return std::any_of(rules_.begin(), rules_.end(), [&](const Entry& e) { return e.rule.target == target; });
}

size_t FlowTable::count(uint16_t priority) const {
  return static_cast<size_t>(std::count_if(rules_.begin(), rules_.end(),
                                           [&](const Entry& e) { return e.rule.priority == priority; }));
}

const FlowRule* FlowTable::find(uint32_t handle) const {
  for (const Entry& e : rules_) {
    if (e.handle == handle) return &e.rule;
  }
  return nullptr;
}

std::span<const FlowRule* const> FlowTable::lookup(const FlowFields& fields) {
  found_.clear();
  conflicting_ = nullptr;
  for (const Entry& e : rules_) {
    if (!found_.empty() && found_.front()->before(e.rule)) break;
    if (!matches(e.rule, fields)) continue;
    if (found_.empty() || found_.front()->same_match(e.rule)) {
      found_.push_back(&e.rule);
    } else if (conflicting_ == nullptr) {
      conflicting_ = &e.rule;
    }
  }
  return found_;
}

}  // namespace model
