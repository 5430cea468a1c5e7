// Frames as a hostile or an honest host on the wire would make them, byte by byte.
#pragma once

#include <cstring>
#include <string_view>
#include <vector>

#include "base/ip.h"
#include "sim.h"
#include "stack/tcp/segment.h"
#include "stack/wire/checksum.h"
#include "stack/wire/eth.h"
#include "stack/wire/ipv4.h"
#include "stack/wire/ipv6.h"
#include "stack/wire/tcp.h"
#include "stack/wire/udp.h"

namespace accel::sim {

using Bytes = std::vector<uint8_t>;

/// What a packet's headers say; its payload is a transport's segment, or a part of one.
struct Packaging {
  IpAddress from, to;
  uint8_t protocol = 6;
  Bytes options{};  ///< IPv4's, or IPv6's extension headers, of which `protocol` is then the first
  uint16_t fragment = 0;
  uint16_t id = 0;
  uint8_t tos = 0;
};

inline Bytes frame_of(const MacAddress& to_mac, const Packaging& p, std::span<const uint8_t> payload) {
  Bytes f(14);
  std::copy(to_mac.begin(), to_mac.end(), f.begin());
  f[6] = 2;
  f[11] = 0x77;
  const bool v4 = p.from.is_v4() && p.to.is_v4();
  wire_at<EthHeader>(f.data()).type = v4 ? kEtherIpv4 : kEtherIpv6;
  if (v4) {
    f.resize(14 + sizeof(Ipv4Header));
    auto& ip = wire_at<Ipv4Header>(&f[14]);
    ip.version_ihl = static_cast<uint8_t>(0x45 + p.options.size() / 4);
    ip.tos = p.tos;
    ip.total_length = static_cast<uint16_t>(sizeof(Ipv4Header) + p.options.size() + payload.size());
    ip.id = p.id;
    ip.fragment = p.fragment;
    ip.ttl = 64;
    ip.protocol = p.protocol;
    std::memcpy(ip.source.data(), p.from.v4_bytes(), 4);
    std::memcpy(ip.destination.data(), p.to.v4_bytes(), 4);
    f.insert(f.end(), p.options.begin(), p.options.end());
    store_checksum(&f[24], finish_sum(sum_bytes(&f[14], f.size() - 14)));
  } else {
    f.resize(14 + sizeof(Ipv6Header));
    auto& ip = wire_at<Ipv6Header>(&f[14]);
    ip.version_class_flow = 6u << 28 | uint32_t{p.tos} << 20;
    ip.payload_length = static_cast<uint16_t>(p.options.size() + payload.size());
    ip.next_header = p.protocol;
    ip.hop_limit = 64;
    ip.source = p.from.bytes;
    ip.destination = p.to.bytes;
    f.insert(f.end(), p.options.begin(), p.options.end());
  }
  f.insert(f.end(), payload.begin(), payload.end());
  return f;
}

inline uint16_t sum_l4(const IpAddress& from, const IpAddress& to, uint8_t protocol, const Bytes& l4) {
  const bool v4 = from.is_v4() && to.is_v4();
  const size_t n = v4 ? 4 : 16;
  uint64_t sum = sum_of(protocol) + sum_of(static_cast<uint16_t>(l4.size()));
  sum = add_sums(sum, sum_bytes(v4 ? from.v4_bytes() : from.bytes.data(), n));
  sum = add_sums(sum, sum_bytes(v4 ? to.v4_bytes() : to.bytes.data(), n));
  return finish_sum(add_sums(sum, sum_bytes(l4.data(), l4.size())));
}

struct SegmentFields {
  uint32_t seq = 1000, ack = 0;
  uint8_t flags = kSyn;
  Bytes options{};
};

inline Bytes tcp_segment(const Endpoint& from, const Endpoint& to, const SegmentFields& fields,
                         std::string_view text = {}) {
  Bytes l4(sizeof(TcpHeader));
  auto& tcp = wire_at<TcpHeader>(l4.data());
  tcp.source = from.port;
  tcp.destination = to.port;
  tcp.sequence = fields.seq;
  tcp.acknowledgment = fields.ack;
  tcp.data_offset = static_cast<uint8_t>((5 + fields.options.size() / 4) << 4);
  tcp.flags = fields.flags;
  tcp.window = 65535;
  l4.insert(l4.end(), fields.options.begin(), fields.options.end());
  l4.insert(l4.end(), text.begin(), text.end());
  store_checksum(&l4[16], sum_l4(from.address, to.address, 6, l4));
  return l4;
}

inline Bytes udp_datagram(const Endpoint& from, const Endpoint& to, std::string_view text) {
  Bytes l4(sizeof(UdpHeader));
  auto& udp = wire_at<UdpHeader>(l4.data());
  udp.source = from.port;
  udp.destination = to.port;
  udp.length = static_cast<uint16_t>(l4.size() + text.size());
  l4.insert(l4.end(), text.begin(), text.end());
  store_checksum(&l4[6], sum_l4(from.address, to.address, 17, l4));
  return l4;
}

}  // namespace accel::sim
