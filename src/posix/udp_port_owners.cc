#include "posix/udp_port_owners.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/sock_diag.h"
#include "posix/unix_rendezvous.h"

namespace accel::posix {
namespace {

// ---- what the kernel tells ----

bool is_v6_only(const nlmsghdr& message) {
  const auto* at = reinterpret_cast<const char*>(NLMSG_DATA(&message)) + NLMSG_ALIGN(sizeof(inet_diag_msg));
  const auto* const end = reinterpret_cast<const char*>(&message) + message.nlmsg_len;
  nlattr attribute;
  for (; at + sizeof attribute <= end; at += NLA_ALIGN(attribute.nla_len)) {
    std::memcpy(&attribute, at, sizeof attribute);
    if (attribute.nla_len < sizeof attribute) return false;
    if (attribute.nla_type == INET_DIAG_SKV6ONLY && at + NLA_HDRLEN < end) return at[NLA_HDRLEN] != 0;
  }
  return false;
}

UdpUser user_of(const nlmsghdr& message) {
  inet_diag_msg told;
  std::memcpy(&told, NLMSG_DATA(&message), sizeof told);
  const auto end = [&](const void* address, uint16_t port) {
    return Endpoint{
        told.idiag_family == AF_INET ? IpAddress::from_v4_bytes(address) : IpAddress::from_v6_bytes(address),
        ntohs(port)};
  };
  UdpUser user;
  user.local = end(told.id.idiag_src, told.id.idiag_sport);
  user.remote = end(told.id.idiag_dst, told.id.idiag_dport);
  user.ifindex = static_cast<int>(told.id.idiag_if);
  user.v6 = told.idiag_family == AF_INET6;
  user.v6_only = user.v6 && is_v6_only(message);
  user.cookie = uint64_t{told.id.idiag_cookie[1]} << 32 | told.id.idiag_cookie[0];
  return user;
}

// ---- whose a datagram is ----

bool takes(const UdpUser& user, const IpAddress& to) {
  if (!user.local.address.is_any()) return user.local.address == to;
  return user.v6 ? !to.is_v4() || !user.v6_only : to.is_v4();
}

/// No device brings what is sent there.
bool is_apart(const IpAddress& local) { return local.is_loopback() || local.is_multicast(); }

/// An address for which both take datagrams; nullopt: there is none.
std::optional<IpAddress> common_address(const UdpUser& a, const UdpUser& b) {
  if (is_apart(a.local.address) || is_apart(b.local.address)) return std::nullopt;
  if (a.ifindex != 0 && b.ifindex != 0 && a.ifindex != b.ifindex) return std::nullopt;
  if (a.remote.port != 0 && b.remote.port != 0 && a.remote != b.remote) return std::nullopt;
  const bool v4 = !a.v6 || !b.v6;
  IpAddress to = v4 ? IpAddress::any_v4() : IpAddress::any_v6();
  if (!a.local.address.is_any())
    to = a.local.address;
  else if (!b.local.address.is_any())
    to = b.local.address;
  return takes(a, to) && takes(b, to) ? std::optional(to) : std::nullopt;
}

/// As UdpLayer's score().
int points(const UdpUser& user, const IpAddress& to) {
  return (user.local.address.is_any() ? 0 : 16) + (user.remote.port != 0 ? 8 : 0) +
         (user.ifindex != 0 ? 4 : 0) + (user.v6 != to.is_v4() ? 1 : 0);
}

}  // namespace

std::vector<UdpUser> users_of_udp_port(uint16_t port) {
  std::vector<UdpUser> users;
  for (const uint8_t family : {AF_INET, AF_INET6}) {
    inet_diag_req_v2 request{};
    request.sdiag_family = family;
    request.sdiag_protocol = IPPROTO_UDP;
    request.idiag_states = ~0u;
    request.id.idiag_sport = htons(port);
    (void)dump_sockets<inet_diag_msg>(request, [&](const nlmsghdr& m) { users.push_back(user_of(m)); });
  }
  return users;
}

PortOwnership ownership_at(uint16_t port, uint64_t cookie) {
  std::vector<UdpUser> users = users_of_udp_port(port);
  if (users.size() < 2) return PortOwnership::kSole;
  for_each_open_udp([&](const Socket& s) {
    if (s.local_endpoint().port != port) return;
    const uint64_t here = cookie_of(s.shadow());
    std::erase_if(users, [&](const UdpUser& u) { return u.cookie == here && here != cookie; });
  });
  return ownership_of(cookie, users);
}

bool others_take_groups(const std::vector<UdpUser>& users, uint16_t port, uint64_t cookie) {
  std::vector<uint64_t> ours{cookie};
  for_each_open_udp([&](const Socket& s) {
    if (s.local_endpoint().port == port) ours.push_back(cookie_of(s.shadow()));
  });
  return std::any_of(users.begin(), users.end(), [&](const UdpUser& u) {
    const IpAddress& local = u.local.address;
    return (local.is_any() || local.is_multicast()) &&
           std::find(ours.begin(), ours.end(), u.cookie) == ours.end();
  });
}

PortOwnership ownership_of(uint64_t cookie, const std::vector<UdpUser>& users) {
  const auto own =
      std::find_if(users.begin(), users.end(), [&](const UdpUser& u) { return u.cookie == cookie; });
  if (own == users.end()) return PortOwnership::kSole;
  PortOwnership ownership = PortOwnership::kSole;
  for (auto other = users.begin(); other != users.end(); ++other) {
    const auto to = other == own ? std::nullopt : common_address(*own, *other);
    if (!to) continue;
    const int mine = points(*own, *to), theirs = points(*other, *to);
    if (theirs > mine || (theirs == mine && other < own)) return PortOwnership::kNotOwner;
    ownership = PortOwnership::kOwner;
  }
  return ownership;
}

}  // namespace accel::posix
