// Questions of the helper to the kernel about a socket that the process shows. Freestanding.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstdint>

#include "helper/freestanding.h"
#include "helper/local_ends.h"

#ifndef SO_NETNS_COOKIE  // Linux 5.14
#define SO_NETNS_COOKIE 71
#endif

namespace accel::helper {

constexpr int kTcpClose = 7, kTcpListen = 10;  ///< tcp_states.h

inline int state_of(int fd) {
  tcp_info info{};
  int length = sizeof info;
  return call(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 ? info.tcpi_state : 0;
}
inline bool read_name(int fd, LocalEnd& end) {
  uint8_t name[sizeof(sockaddr_in6)]{};
  uint32_t length = sizeof name;
  return call(SYS_getsockname, fd, name, &length) == 0 && end.read(name, length);
}
inline bool is_unnamed_tcp(int fd) {
  LocalEnd name;
  return fd >= 0 && state_of(fd) == kTcpClose && read_name(fd, name) && name.port == 0;
}
inline bool is_at(int fd, const LocalEnd& end) {
  LocalEnd name;
  if (!read_name(fd, name)) return false;
  int v6_only = 1, length = sizeof v6_only;
  call(SYS_getsockopt, fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, &length);
  return name.covers(end) || (v6_only == 0 && name.is_any() && name.port == end.port);
}
inline bool listens_at(int fd, const LocalEnd& end) {
  return fd >= 0 && state_of(fd) == kTcpListen && is_at(fd, end);
}
inline bool in_repair_mode(int fd) {
  int on = 0, length = sizeof on;
  return call(SYS_getsockopt, fd, IPPROTO_TCP, TCP_REPAIR, &on, &length) == 0 && on == 1;
}
inline long set_option(int fd, int level, int name, int value) {
  return call(SYS_setsockopt, fd, level, name, &value, sizeof value);
}

inline int option_of(int fd, int level, int name) {
  int value = 0, length = sizeof value;
  return call(SYS_getsockopt, fd, level, name, &value, &length) == 0 ? value : -1;
}
/// 0: the kernel has no network namespaces, or is too old to tell.
inline uint64_t network_of(long fd) {
  uint64_t cookie = 0;
  int length = sizeof cookie;
  return call(SYS_getsockopt, fd, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &length) == 0 ? cookie : 0;
}
inline bool is_of_own_network(int fd) {
  const long own = call(SYS_socket, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const uint64_t network = network_of(own);
  call(SYS_close, own);
  return own >= 0 && network_of(fd) == network;
}
/// A socket keeps the name of an automatic port that it has given back, and somebody else may have that now.
/// One that has a port gets no other: a bind() to none in particular changes nothing.
inline bool has_port(int fd, int domain) {
  sockaddr_in6 none{};
  none.sin6_family = static_cast<uint16_t>(domain);
  return call(SYS_bind, fd, &none, domain == AF_INET ? sizeof(sockaddr_in) : sizeof none) == -EINVAL;
}

}  // namespace accel::helper
