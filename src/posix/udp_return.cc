// What a UDP socket has queued when it moves to the kernel path: its shadow gets it.
#include <netinet/in.h>

#include <utility>
#include <vector>

#include "engine/inject.h"
#include "posix/udp_socket.h"
#include "stack/wire/checksum.h"
#include "stack/wire/ipv4.h"
#include "stack/wire/ipv6.h"
#include "stack/wire/udp.h"

namespace accel::posix {
namespace {

/// The headers that the datagram came with, as far as its receiver may ask for them.
size_t put_headers(const Datagram& d, uint8_t* out) {
  const auto length = static_cast<uint16_t>(sizeof(UdpHeader) + d.size);
  UdpHeader udp{};
  udp.source = d.from.port;
  udp.destination = d.to.port;
  udp.length = length;
  size_t at = 0;
  if (d.to.address.is_v4()) {
    Ipv4Header ip{};  // lengths and checksum are the kernel's to fill in
    ip.version_ihl = 0x45;
    ip.tos = d.tos;
    ip.ttl = d.ttl;
    ip.protocol = IPPROTO_UDP;
    std::memcpy(ip.source.data(), d.from.address.v4_bytes(), 4);
    std::memcpy(ip.destination.data(), d.to.address.v4_bytes(), 4);
    std::memcpy(out, &ip, at = sizeof ip);
  } else {
    Ipv6Header ip{};
    ip.version_class_flow = 6u << 28 | uint32_t{d.tos} << 20;
    ip.payload_length = length;
    ip.next_header = IPPROTO_UDP;
    ip.hop_limit = d.ttl;
    ip.source = d.from.address.bytes;
    ip.destination = d.to.address.bytes;
    std::memcpy(out, &ip, at = sizeof ip);
  }
  std::memcpy(out + at, &udp, sizeof udp);
  return at + sizeof udp;
}

/// IPv4 may leave it out (RFC 768), IPv6 may not (RFC 8200 section 8.1).
void put_checksum(std::vector<uint8_t>& packet) {
  constexpr size_t kAddresses = 8, kUdp = sizeof(Ipv6Header);
  PartSum sum(sum_of(IPPROTO_UDP) + sum_of(static_cast<uint16_t>(packet.size() - kUdp)));
  sum.add(packet.data() + kAddresses, packet.size() - kAddresses);
  const uint16_t value = finish_sum(sum.sum());
  store_checksum(packet.data() + kUdp + 6, value != 0 ? value : 0xffff);
}

}  // namespace

void UdpSocket::give_queue_to_shadow(Pass& pass) {
  if (flow_ == nullptr) return;
  pass.engine().stop_taking(*flow_);
  UdpPcb& p = *pcb(pass);
  Stack& stack = pass.stack();
  Injector injector;
  while (const Datagram* front = stack.udp_front(p)) {
    const Datagram d = *front;
    std::vector<uint8_t> packet(sizeof(Ipv6Header) + sizeof(UdpHeader) + d.size);
    const size_t headers = put_headers(d, packet.data());
    packet.resize(headers + d.size);
    const iovec payload{packet.data() + headers, d.size};
    (void)stack.udp_receive(p, {&payload, 1}, true);
    if (!d.to.address.is_v4()) put_checksum(packet);
    const PortInfo* port = pass.engine().port_info(d.interface);
    const bool wanted = local_.port != 0 && (remote_.port == 0 || remote_ == d.from);
    const bool given = wanted && injector.send(packet, d.to.address, port != nullptr ? port->ifindex : 0);
    pass.engine().counters().add(given ? Counter::udp_to_shadow : Counter::drop_udp_left_behind);
  }
}

}  // namespace accel::posix
