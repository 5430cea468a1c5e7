// What a UDP socket has queued when it moves to the kernel path: its shadow gets it.
#include <netinet/in.h>

#include <utility>
#include <vector>

#include "base/real.h"
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

/// Sends an IP packet to this host itself. The kernel routes it over loopback with the route's own
/// destination entry, so the foreign source is not questioned (raw_send_hdrinc(), loopback_xmit()).
bool send_to_self(const std::vector<uint8_t>& packet, const Datagram& d, int ifindex) {
  const bool v4 = d.to.address.is_v4();
  sockaddr_storage name{};
  socklen_t length = sizeof name;
  if (!to_sockaddr({d.to.address, 0}, v4 ? AF_INET : AF_INET6, reinterpret_cast<sockaddr*>(&name), &length,
                   d.to.address.is_link_local() ? static_cast<uint32_t>(ifindex) : 0))
    return false;
  const int fd = real.socket(v4 ? AF_INET : AF_INET6, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_RAW);
  if (fd < 0) return false;
  const bool sent = real.sendto(fd, packet.data(), packet.size(), MSG_NOSIGNAL,
                                reinterpret_cast<sockaddr*>(&name), length) >= 0;
  real.close(fd);
  return sent;
}

}  // namespace

void UdpSocket::give_queue_to_shadow(Pass& pass) {
  if (flow_ == nullptr) return;
  pass.engine().stop_taking(*flow_);
  UdpPcb& p = *pcb(pass);
  Stack& stack = pass.stack();
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
    const bool given = wanted && send_to_self(packet, d, port != nullptr ? port->ifindex : 0);
    pass.engine().counters().add(given ? Counter::udp_to_shadow : Counter::drop_udp_left_behind);
  }
}

}  // namespace accel::posix
