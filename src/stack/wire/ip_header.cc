#include "stack/wire/ip_header.h"

#include <cstring>

#include "stack/wire/checksum.h"
#include "stack/wire/ipv4.h"
#include "stack/wire/ipv6.h"

namespace accel {

size_t put_ip_header(uint8_t* out, const IpFields& fields, size_t payload) {
  if (fields.to.is_v4()) {
    Ipv4Header ip{};
    ip.version_ihl = 0x45;
    ip.tos = fields.tos;
    ip.ttl = fields.ttl;
    ip.protocol = fields.protocol;
    std::memcpy(ip.source.data(), fields.from.v4_bytes(), 4);
    std::memcpy(ip.destination.data(), fields.to.v4_bytes(), 4);
    std::memcpy(out, &ip, sizeof ip);
    return sizeof ip;
  }
  Ipv6Header ip{};
  ip.version_class_flow = 6u << 28 | uint32_t{fields.tos} << 20;
  ip.payload_length = static_cast<uint16_t>(payload);
  ip.next_header = fields.protocol;
  ip.hop_limit = fields.ttl;
  ip.source = fields.from.bytes;
  ip.destination = fields.to.bytes;
  std::memcpy(out, &ip, sizeof ip);
  return sizeof ip;
}

uint16_t transport_checksum(std::span<const uint8_t> packet, const IpFields& fields) {
  const bool v4 = fields.to.is_v4();
  const size_t header = v4 ? sizeof(Ipv4Header) : sizeof(Ipv6Header), addresses = header - (v4 ? 8 : 32);
  PartSum sum(sum_of(fields.protocol) + sum_of(static_cast<uint16_t>(packet.size() - header)));
  sum.add(packet.data() + addresses, packet.size() - addresses);
  return finish_sum(sum.sum());
}

}  // namespace accel
