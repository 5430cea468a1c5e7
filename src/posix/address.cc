#include "posix/address.h"

#include <netinet/in.h>

#include <algorithm>

#include "base/real.h"
#include "base/user_memory.h"

namespace accel::posix {
namespace {

constexpr socklen_t kShortestIn6 = 24;  // SIN6_LEN_RFC2133: without sin6_scope_id

}  // namespace

sa_family_t family_of(const sockaddr* address) {
  sa_family_t family;
  std::memcpy(&family, &address->sa_family, sizeof family);
  return family;
}

bool is_unspecified(const sockaddr* address, socklen_t length) {
  return address != nullptr && length >= sizeof address->sa_family && family_of(address) == AF_UNSPEC;
}

Result<Endpoint> from_sockaddr(const sockaddr* address, socklen_t length, int domain) {
  if (address == nullptr) return err(length == 0 ? EINVAL : EFAULT);
  if (length < sizeof address->sa_family) return err(EINVAL);
  if (!can_read(address, std::min<size_t>(length, sizeof(sockaddr_storage)))) return err(EFAULT);
  const sa_family_t family = family_of(address);
  if (family == AF_INET) {
    sockaddr_in in{};
    if (length < sizeof in) return err(EINVAL);
    std::memcpy(&in, address, sizeof in);
    return Endpoint{IpAddress::from_v4_bytes(&in.sin_addr), ntohs(in.sin_port)};
  }
  if (family != AF_INET6 || domain != AF_INET6) return err(EAFNOSUPPORT);
  sockaddr_in6 in6{};
  if (length < kShortestIn6) return err(EINVAL);
  std::memcpy(&in6, address, std::min<size_t>(length, sizeof in6));
  return Endpoint{IpAddress::from_v6_bytes(&in6.sin6_addr), ntohs(in6.sin6_port)};
}

Result<void> put_address(const void* from, socklen_t size, sockaddr* address, socklen_t* length) {
  socklen_t room;
  if (!get_user(room, length)) return err(EFAULT);
  if (static_cast<int>(room) < 0) return err(EINVAL);
  const size_t shown = std::min<size_t>(size, room);
  if (!can_overwrite(address, shown)) return err(EFAULT);
  std::memcpy(address, from, shown);
  return put_user(length, size) ? Result<void>{} : err(EFAULT);
}

Result<void> to_sockaddr(const Endpoint& endpoint, int domain, sockaddr* address, socklen_t* length,
                         uint32_t scope, uint32_t flowinfo) {
  if (domain == AF_INET) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(endpoint.port);
    std::memcpy(&in.sin_addr, endpoint.address.v4_bytes(), sizeof in.sin_addr);
    return put_address(&in, sizeof in, address, length);
  }
  sockaddr_in6 in6{};
  in6.sin6_family = AF_INET6;
  in6.sin6_port = htons(endpoint.port);
  in6.sin6_flowinfo = htonl(flowinfo);
  in6.sin6_scope_id = endpoint.address.is_v4() || !endpoint.address.is_link_local() ? 0 : scope;
  std::memcpy(&in6.sin6_addr, endpoint.address.bytes.data(), sizeof in6.sin6_addr);
  return put_address(&in6, sizeof in6, address, length);
}

namespace {

/// `get`: getsockname() or getpeername().
template <class Get>
Endpoint told_name(int fd, Get get) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (get(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  Result<Endpoint> name = from_sockaddr(reinterpret_cast<sockaddr*>(&address), length, address.ss_family);
  return name ? *name : Endpoint{};
}

}  // namespace

Endpoint kernel_name(int fd) {
  return told_name(fd, [](auto... to) { return real.getsockname(to...); });
}

Endpoint kernel_peer_name(int fd) {
  return told_name(fd, [](auto... to) { return real.getpeername(to...); });
}

}  // namespace accel::posix
