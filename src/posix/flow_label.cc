#include "posix/flow_label.h"

#include <linux/in6.h>
#include <netinet/in.h>

#include <cstring>

#include "base/real.h"
#include "base/user_memory.h"

namespace accel::posix {

static_assert(kFlowLabelManager == IPV6_FLOWLABEL_MGR && kFlowInfoSend == IPV6_FLOWINFO_SEND);

uint32_t flowinfo_of(const sockaddr* address) {
  sockaddr_in6 in6;
  std::memcpy(&in6, address, offsetof(sockaddr_in6, sin6_addr));
  return in6.sin6_family == AF_INET6 ? ntohl(in6.sin6_flowinfo) & 0x0fffffff : 0;  // IPV6_FLOWINFO_MASK
}

uint32_t flowinfo_to_send(const Socket& s, const sockaddr* address) {
  const uint32_t flowinfo = s.v6() ? flowinfo_of(address) : 0;
  return flowinfo != 0 && s.shadow_option(IPPROTO_IPV6, kFlowInfoSend) != 0 ? flowinfo : 0;
}

bool may_send_flowinfo(const Socket& s, const Endpoint& remote, uint32_t flowinfo) {
  in6_flowlabel_req lease{};
  lease.flr_label = htonl(flowinfo & kFlowLabelMask);
  if (lease.flr_label == 0) return true;
  lease.flr_action = IPV6_FL_A_RENEW;
  lease.flr_share = IPV6_FL_S_ANY;
  if (real.setsockopt(s.shadow(), IPPROTO_IPV6, kFlowLabelManager, &lease, sizeof lease) == 0) return true;
  // Without a lease. A UDP socket's connect() asks the same and sends nothing.
  const int probe = real.socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return true;
  sockaddr_in6 to{};
  socklen_t length = sizeof to;
  (void)to_sockaddr(remote, AF_INET6, reinterpret_cast<sockaddr*>(&to), &length, 0, flowinfo);
  const int on = 1;
  real.setsockopt(probe, IPPROTO_IPV6, kFlowInfoSend, &on, sizeof on);
  const Result<int> r = from_libc(real.connect(probe, reinterpret_cast<sockaddr*>(&to), sizeof to));
  real.close(probe);
  return !r.is(EINVAL);
}

bool lease_changes_packets(const void* value, socklen_t length) {
  in6_flowlabel_req lease;
  if (length < sizeof lease || !can_read(value, sizeof lease)) return false;  // the kernel refuses it
  std::memcpy(&lease, value, sizeof lease);
  return length > sizeof lease || (lease.flr_flags & IPV6_FL_F_REFLECT) != 0;
}

}  // namespace accel::posix
