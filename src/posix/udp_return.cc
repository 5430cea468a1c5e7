// What a UDP socket has queued when it moves to the kernel path: its shadow gets it.
#include <netinet/in.h>

#include <utility>
#include <vector>

#include "engine/inject.h"
#include "posix/udp_socket.h"
#include "stack/udp.h"
#include "stack/wire/checksum.h"
#include "stack/wire/ip_header.h"
#include "stack/wire/ipv6.h"
#include "stack/wire/udp.h"

namespace accel::posix {
namespace {

IpFields fields_of(const Datagram& d) { return {d.from.address, d.to.address, IPPROTO_UDP, d.tos, d.ttl}; }

/// The headers that the datagram came with, as far as its receiver may ask for them.
size_t put_headers(const Datagram& d, uint8_t* out) {
  UdpHeader udp{};
  udp.source = d.from.port;
  udp.destination = d.to.port;
  udp.length = static_cast<uint16_t>(sizeof udp + d.size);
  const size_t at = put_ip_header(out, fields_of(d), udp.length);
  std::memcpy(out + at, &udp, sizeof udp);
  return at + sizeof udp;
}

/// IPv4 may leave it out (RFC 768), IPv6 may not (RFC 8200 section 8.1).
void put_checksum(std::vector<uint8_t>& packet, const Datagram& d) {
  const uint16_t value = transport_checksum(packet, fields_of(d));
  store_checksum(packet.data() + sizeof(Ipv6Header) + offsetof(UdpHeader, checksum),
                 value != 0 ? value : 0xffff);
}

}  // namespace

/// The kernel's queue is all processes' who have the socket.
void UdpSocket::hand_off_queue(Pass& pass) {
  if (shared_ && flow_ != nullptr) give_queue_to_shadow(pass);
}

void UdpSocket::give_queue_to_shadow(Pass& pass) {
  if (flow_ == nullptr) return;
  pass.engine().stop_taking(pass, *flow_);
  UdpPcb& p = *pcb(pass);
  Stack& stack = pass.stack();
  Injector injector;
  while (const Datagram* front = stack.udp().front(p)) {
    const Datagram d = *front;
    std::vector<uint8_t> packet(sizeof(Ipv6Header) + sizeof(UdpHeader) + d.size);
    const size_t headers = put_headers(d, packet.data());
    packet.resize(headers + d.size);
    const iovec payload{packet.data() + headers, d.size};
    (void)stack.udp().receive(p, {&payload, 1}, true);
    if (!d.to.address.is_v4()) put_checksum(packet, d);
    const PortInfo* port = pass.engine().port_info(pass, d.interface);
    const bool wanted = local_.port != 0 && (remote_.port == 0 || remote_ == d.from);
    const bool given = wanted && injector.send(packet, d.to.address, port != nullptr ? port->ifindex : 0);
    pass.engine().counters().add(given ? Counter::udp_to_shadow : Counter::drop_udp_left_behind);
  }
}

}  // namespace accel::posix
