#include "stack/egress.h"

#include "stack/wire/eth.h"
#include "stack/wire/ipv4.h"
#include "stack/wire/ipv6.h"

namespace accel {

void StackCore::make_template(const Hop& hop, const IpAddress& local, const IpAddress& remote,
                              Protocol protocol, const HeaderFields& fields, HeaderTemplate& out) const {
  out = {};
  out.v6 = !remote.is_v4();
  uint8_t* at = out.bytes.data();
  auto& eth = wire_at<EthHeader>(at);
  std::memcpy(at, hop.ethernet.data(), 12);  // transmit() writes them again
  const uint16_t type = out.v6 ? kEtherIpv6 : kEtherIpv4;
  const auto& vlan = interfaces[hop.interface].info.vlan;
  eth.type = vlan ? kEtherVlan : type;
  out.ip_offset = 14;
  if (vlan) {
    auto& tag = wire_at<VlanTag>(at + 14);
    tag.control = *vlan;
    tag.type = type;
    out.ip_offset = 18;
  }
  at += out.ip_offset;
  const uint8_t ttl = fields.ttl ? fields.ttl : 64;
  if (out.v6) {
    auto& ip = wire_at<Ipv6Header>(at);
    ip.version_class_flow = 6u << 28 | uint32_t{fields.tos} << 20 | fields.flow_label;
    ip.next_header = static_cast<uint8_t>(protocol);
    ip.hop_limit = ttl;
    ip.source = local.bytes;
    ip.destination = remote.bytes;
    out.length = static_cast<uint8_t>(out.ip_offset + 40);
    out.pseudo_sum = fold_sum(sum_fixed<32>(at + 8) + sum_of(static_cast<uint16_t>(protocol)));
    return;
  }
  auto& ip = wire_at<Ipv4Header>(at);
  ip.version_ihl = 0x45;
  ip.tos = fields.tos;
  ip.fragment = fields.dont_fragment ? kIpDontFragment : uint16_t{0};
  ip.ttl = ttl;
  ip.protocol = static_cast<uint8_t>(protocol);
  std::memcpy(ip.source.data(), local.v4_bytes(), 4);
  std::memcpy(ip.destination.data(), remote.v4_bytes(), 4);
  out.length = static_cast<uint8_t>(out.ip_offset + 20);
  out.ip_sum = fold_sum(sum_fixed<20>(at));
  out.pseudo_sum = fold_sum(sum_fixed<8>(at + 12) + sum_of(static_cast<uint16_t>(protocol)));
}

uint32_t StackCore::flow_label(uint32_t wanted, uint32_t flow_hash) const {
  if (wanted != kNoFlowLabel && wanted != kAutoFlowLabel) return wanted;
  const AutoFlowLabels mode = config.auto_flow_labels;
  if (mode == AutoFlowLabels::kOff) return 0;
  if (wanted == kNoFlowLabel && mode != AutoFlowLabels::kForced) return 0;
  constexpr uint32_t kStateless = 0x80000;  // IPV6_FLOWLABEL_STATELESS_FLAG
  return flow_hash >> 12 | (config.flow_label_ranges ? kStateless : 0);
}

void StackCore::transmit(Packet* frame, Hop& hop) {
  InterfaceState& out = interfaces[hop.interface];
  if (!out.present) return drop(frame, Counter::drop_no_interface);
  frame->interface = hop.interface;
  if (hop.resolved) {
    std::memcpy(frame->data(), hop.ethernet.data(), 12);
    out.tx.push_back(frame);
    return;
  }
  if (hop.address.is_any()) return drop(frame, Counter::drop_no_way_back);  // nowhere()
  // A neighbour that never answers must not hold the pool: 64 frames each (the oldest go), an eighth in all.
  if (hop.parked.size() >= Hop::kMaxParked) {
    --parked_total;
    drop(hop.parked.pop_front(), Counter::drop_unresolved);
  }
  if (parked_total >= pool.size() / 8) return drop(frame, Counter::drop_unresolved);
  hop.parked.push_back(frame);
  ++parked_total;
  if (!hop.waiting) {
    hop.waiting = true;
    waiting_hops.push_back(&hop);
  }
}

}  // namespace accel
