#include "engine/inject.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/private_fds.h"
#include "base/real.h"
#include "stack/wire/checksum.h"
#include "stack/wire/ipv4.h"
#include "stack/wire/ipv6.h"

namespace accel {

size_t put_ip_header(uint8_t* out, const IpFields& fields, size_t payload) {
  if (fields.to.is_v4()) {
    Ipv4Header ip{};  // lengths and checksum are the kernel's to fill in
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

Injector::~Injector() {
  for (const int fd : {v4_, v6_})
    if (fd >= 0) real.close(fd);
}

namespace {

int raw_socket(bool v4) {
  return real.socket(v4 ? AF_INET : AF_INET6, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_RAW);
}

std::atomic<int> kept_v4{-1}, kept_v6{-1};

}  // namespace

void Injector::keep_sockets() {
  if (kept_v4 < 0) kept_v4 = keep_private(raw_socket(true));
  if (kept_v6 < 0) kept_v6 = keep_private(raw_socket(false));
}

int Injector::socket_for(bool v4) {
  int& fd = v4 ? v4_ : v6_;
  if (fd < 0) fd = raw_socket(v4);
  return fd >= 0 || errno != EPERM ? fd : (v4 ? kept_v4 : kept_v6).load();
}

Result<void> Injector::send(std::span<const uint8_t> packet, const IpAddress& to, int ifindex) {
  const bool v4 = to.is_v4();
  const int fd = socket_for(v4);
  if (fd < 0) return err(EPERM);
  sockaddr_in to4{};
  sockaddr_in6 to6{};
  to4.sin_family = AF_INET;
  to6.sin6_family = AF_INET6;
  if (v4)
    std::memcpy(&to4.sin_addr, to.v4_bytes(), 4);
  else
    std::memcpy(&to6.sin6_addr, to.bytes.data(), 16);
  if (to.is_link_local()) to6.sin6_scope_id = static_cast<uint32_t>(ifindex);
  const auto* name = v4 ? reinterpret_cast<const sockaddr*>(&to4) : reinterpret_cast<const sockaddr*>(&to6);
  const socklen_t length = v4 ? sizeof(to4) : sizeof(to6);
  if (real.sendto(fd, packet.data(), packet.size(), MSG_NOSIGNAL, name, length) < 0) return err(errno);
  return {};
}

}  // namespace accel
