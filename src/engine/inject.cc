#include "engine/inject.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/private_fds.h"
#include "base/real.h"

namespace accel {

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
