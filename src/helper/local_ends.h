// The local ends that the helper's process had while it was privileged. Freestanding.
#pragma once

#include <netinet/in.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "base/flow_rule.h"
#include "helper/freestanding.h"

namespace accel::helper {

/// Port in host byte order, address as in IpAddress: IPv4 in its mapped form.
struct LocalEnd {
  uint8_t address[16] = {};
  uint16_t port = 0;

  /// A socket's name: sockaddr_in or sockaddr_in6. False: neither.
  bool read(const uint8_t* name, size_t length) {
    uint16_t family = 0, network_port = 0;
    if (length < sizeof family + sizeof network_port) return false;
    memcpy(&family, name, sizeof family);
    memcpy(&network_port, name + sizeof family, sizeof network_port);
    port = __builtin_bswap16(network_port);
    if (family == AF_INET && length >= sizeof(sockaddr_in)) {
      memset(address, 0, sizeof address);
      address[10] = address[11] = 0xff;
      memcpy(address + 12, name + offsetof(sockaddr_in, sin_addr), 4);
      return true;
    }
    if (family != AF_INET6 || length < sizeof(sockaddr_in6)) return false;
    memcpy(address, name + offsetof(sockaddr_in6, sin6_addr), sizeof address);
    return true;
  }
  static LocalEnd of(const FlowRule& rule) {
    LocalEnd end;
    memcpy(end.address, rule.local, sizeof end.address);
    end.port = rule.local_port;
    return end;
  }
  bool is_v4() const { return has_zeros(0, 10) && address[10] == 0xff && address[11] == 0xff; }
  bool is_any() const { return has_zeros(0, 16) || (is_v4() && has_zeros(12, 16)); }
  bool is_loopback() const { return is_v4() ? address[12] == 127 : has_zeros(0, 15) && address[15] == 1; }
  /// Of `other`'s family where both are given: :: covers IPv6 alone, since IPV6_V6ONLY is not known here.
  bool covers(const LocalEnd& other) const {
    if (port == 0 || port != other.port || is_v4() != other.is_v4()) return false;
    if (is_any()) return true;
    for (size_t i = 0; i < sizeof address; ++i)
      if (address[i] != other.address[i]) return false;
    return true;
  }

 private:
  bool has_zeros(size_t from, size_t to) const {
    for (size_t i = from; i < to; ++i)
      if (address[i] != 0) return false;
    return true;
  }
};

/// An address of this host, and not of loopback. `ifindex`: the scope of a link-local one.
inline bool is_of_this_host(const LocalEnd& end, uint32_t ifindex) {
  if (end.is_any() || end.is_loopback()) return false;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  memcpy(&v4.sin_addr, end.address + 12, 4);
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  memcpy(&v6.sin6_addr, end.address, 16);
  v6.sin6_scope_id = ifindex;
  const bool is_v6 = !end.is_v4();
  const long fd = call(SYS_socket, is_v6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const long bound = is_v6 ? call(SYS_bind, fd, &v6, sizeof v6) : call(SYS_bind, fd, &v4, sizeof v4);
  call(SYS_close, fd);
  return bound == 0;
}

class LocalEnds {
 public:
  /// 0, or a negative errno value.
  long add(const FlowRule& rule) {
    if (rule.local_port == 0) return -EPERM;
    if (has(rule)) return 0;
    if (count_ == kMost) return -ENOSPC;
    rows_[count_].protocol = rule.protocol;
    rows_[count_].vlan = rule.vlan;
    rows_[count_++].end = LocalEnd::of(rule);
    return 0;
  }
  /// Exactly that one.
  bool has(const FlowRule& rule) const {
    const LocalEnd end = LocalEnd::of(rule);
    for (size_t i = 0; i < count_; ++i) {
      const Row& row = rows_[i];
      if (row.protocol == rule.protocol && row.vlan == rule.vlan && row.end.port == end.port &&
          same_address(row.end, end))
        return true;
    }
    return false;
  }
  /// TCP, of any VLAN; a wildcard covers every address of its family.
  bool covers(const LocalEnd& end) const {
    for (size_t i = 0; i < count_; ++i)
      if (rows_[i].protocol == IPPROTO_TCP && rows_[i].end.covers(end)) return true;
    return false;
  }

 private:
  static constexpr size_t kMost = 4096;
  struct Row {
    LocalEnd end;
    uint16_t vlan = 0;
    uint8_t protocol = 0;
  };
  static bool same_address(const LocalEnd& a, const LocalEnd& b) {
    for (size_t i = 0; i < sizeof a.address; ++i)
      if (a.address[i] != b.address[i]) return false;
    return true;
  }

  Row rows_[kMost] = {};  // zero: pages that are never touched take no memory
  size_t count_ = 0;
};

}  // namespace accel::helper
