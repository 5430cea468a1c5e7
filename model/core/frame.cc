#include "model/core/frame.h"

#include "model/core/bytes.h"

namespace model {
namespace {

constexpr size_t kIpv6Header = 40;

void parse_transport(std::span<const uint8_t> frame, size_t at, Parsed& p) {
  const bool tcp = p.proto == kProtoTcp && p.end >= at + 20;
  const bool udp = p.proto == kProtoUdp && p.end >= at + 8;
  if (p.fragment || (!tcp && !udp) || frame.size() < at + 8) return;
  p.l4 = tcp ? L4::kTcp : L4::kUdp;
  p.l4_at = static_cast<uint16_t>(at);
}

void parse_ipv4(std::span<const uint8_t> frame, Parsed& p) {
  const uint8_t* h = frame.data() + p.l3_at;
  const size_t room = frame.size() - p.l3_at;
  if (room < 20 || h[0] >> 4 != 4) return;
  const size_t header = (h[0] & 15u) * 4;
  const size_t total = load16(h + 2);
  if (header < 20 || total < header || total > room) return;
  p.l3 = L3::kIpv4;
  p.end = static_cast<uint32_t>(p.l3_at + total);
  p.proto = h[9];
  p.fragment = (load16(h + 6) & 0x3fff) != 0;
  parse_transport(frame, p.l3_at + header, p);
}

void parse_ipv6(std::span<const uint8_t> frame, Parsed& p) {
  const uint8_t* h = frame.data() + p.l3_at;
  const size_t room = frame.size() - p.l3_at;
  if (room < kIpv6Header || h[0] >> 4 != 6) return;
  const size_t payload = load16(h + 4);
  if (kIpv6Header + payload > room) return;
  p.l3 = L3::kIpv6;
  p.end = static_cast<uint32_t>(p.l3_at + kIpv6Header + payload);
  p.proto = h[6];
  p.fragment = p.proto == 44;
  parse_transport(frame, p.l3_at + kIpv6Header, p);
}

uint16_t pseudo_sum(std::span<const uint8_t> frame, const Parsed& p) {
  const uint8_t* h = frame.data() + p.l3_at;
  const uint32_t length = p.end - p.l4_at;
  const uint32_t rest = p.proto + (length >> 16) + (length & 0xffff);
  if (p.l3 == L3::kIpv4) return ones_sum({h + 12, 8}, rest);
  return ones_sum({h + 8, 32}, rest);
}

}  // namespace

Parsed parse(std::span<const uint8_t> frame) {
  Parsed p;
  if (frame.size() < kEthernetHeader) return p;
  size_t at = kEthernetHeader;
  p.type = load16(frame.data() + 12);
  if (p.type == kTypeVlan && frame.size() >= at + kVlanTag) {
    p.vlan = true;
    p.vlan_tci = load16(frame.data() + 14);
    p.type = load16(frame.data() + 16);
    at += kVlanTag;
  }
  p.l3_at = static_cast<uint16_t>(at);
  if (p.type == kTypeIpv4) parse_ipv4(frame, p);
  if (p.type == kTypeIpv6) parse_ipv6(frame, p);
  return p;
}

uint16_t ones_sum(std::span<const uint8_t> bytes, uint32_t start) {
  uint64_t sum = start;
  size_t i = 0;
  for (; i + 1 < bytes.size(); i += 2) sum += load16(bytes.data() + i);
  if (i < bytes.size()) sum += static_cast<uint32_t>(bytes[i]) << 8;
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(sum);
}

uint16_t transport_sum(std::span<const uint8_t> frame, const Parsed& p) {
  return ones_sum(frame.subspan(p.l4_at, p.end - p.l4_at), pseudo_sum(frame, p));
}

bool fill_ip_checksum(std::span<uint8_t> frame, const Parsed& p) {
  if (p.l3 != L3::kIpv4) return false;
  uint8_t* h = frame.data() + p.l3_at;
  const size_t header = (h[0] & 15u) * 4;
  store16(h + 10, 0);
  store16(h + 10, static_cast<uint16_t>(~ones_sum({h, header})));
  return true;
}

bool fill_transport_checksum(std::span<uint8_t> frame, const Parsed& p) {
  if (p.l4 == L4::kNone) return false;
  uint8_t* field = frame.data() + p.l4_at + (p.l4 == L4::kTcp ? 16 : 6);
  store16(field, 0);
  uint16_t sum = static_cast<uint16_t>(~transport_sum(frame, p));
  if (p.l4 == L4::kUdp && sum == 0) sum = 0xffff;  // RFC 768: 0 would say "none"
  store16(field, sum);
  return true;
}

Verdict verify(std::span<const uint8_t> frame, const Parsed& p) {
  Verdict v;
  if (p.l3 == L3::kIpv4) {
    const uint8_t* h = frame.data() + p.l3_at;
    v.l3_ok = ones_sum({h, (h[0] & 15u) * 4u}) == 0xffff;
  } else {
    v.l3_ok = p.l3 == L3::kIpv6;
  }
  if (p.l4 == L4::kNone) return v;
  const bool none = p.l4 == L4::kUdp && p.l3 == L3::kIpv4 && load16(frame.data() + p.l4_at + 6) == 0;
  v.l4_ok = none || transport_sum(frame, p) == 0xffff;
  return v;
}

}  // namespace model
