#include "engine/group_members.h"

#include <linux/if_addr.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/kernel_version.h"
#include "engine/netlink.h"
#include "firewall/attributes.h"

namespace accel {
namespace {

constexpr unsigned kGroupOfV4 = 37, kGroupOfV6 = 38;  ///< RTNLGRP_IPV4_MCADDR, RTNLGRP_IPV6_MCADDR

Result<void> hear_of_members(firewall::NetlinkSocket& socket) {
  if (Result<void> r = socket.open(NETLINK_ROUTE); !r) return r;
  for (const unsigned group : {kGroupOfV4, kGroupOfV6})
    if (Result<void> r = socket.join(group); !r) {
      socket.close();
      return r;
    }
  return {};
}

Result<void> dump_members(firewall::NetlinkSocket& socket, int family, firewall::Bytes& out) {
  ifaddrmsg head{};
  head.ifa_family = static_cast<uint8_t>(family);
  return socket.dump(RTM_GETMULTICAST, firewall::Payload(head).view(), out);
}

}  // namespace

bool GroupMembers::are_told() { return kernel_is_at_least(6, 15); }

Result<void> GroupMembers::begin(uint64_t network) {
  if (changes_.is_open()) return {};
  known_ = false;
  if (Result<void> r = hear_of_members(changes_); !r) return r;
  if (network_of(changes_.fd()) == network) return {};
  changes_.close();
  return err(ENOTSUP);
}

Result<void> GroupMembers::read() {
  // Another socket: what comes to ours meanwhile is a change behind the dump.
  firewall::NetlinkSocket questions;
  if (Result<void> r = questions.open(NETLINK_ROUTE); !r) return r;
  firewall::Bytes messages;
  if (Result<void> r = dump_members(questions, AF_INET, messages); !r) return r;
  // EOPNOTSUPP: without IPv6 nobody answers (ipv6.disable=1).
  if (Result<void> r = dump_members(questions, AF_INET6, messages); !r && !r.is(EOPNOTSUPP)) return r;
  members_.clear();
  const bool whole = firewall::each_message(messages, [&](uint16_t, firewall::View payload) {
    ifaddrmsg head;
    if (payload.size() < sizeof head) return;
    std::memcpy(&head, payload.data(), sizeof head);
    const firewall::View group =
        firewall::attribute(payload.subspan(NLMSG_ALIGN(sizeof head)), IFA_MULTICAST);
    if (head.ifa_family == AF_INET && group.size() == 4)
      members_.emplace_back(head.ifa_index, IpAddress::from_v4_bytes(group.data()));
    else if (head.ifa_family == AF_INET6 && group.size() == 16)
      members_.emplace_back(head.ifa_index, IpAddress::from_v6_bytes(group.data()));
  });
  if (!whole) return err(EIO);
  std::sort(members_.begin(), members_.end());
  return {};
}

bool GroupMembers::may_have(int ifindex, const IpAddress& group, uint64_t network) {
  if (!are_told_ || !begin(network)) return true;
  // The messages are read before the dump, which has what they tell of. A dump that ends with EAGAIN, since
  // the lists changed under it, is made anew for the next datagram.
  if (changes_.heard()) known_ = false;
  if (!known_ && !(known_ = read().ok())) return true;
  return std::binary_search(members_.begin(), members_.end(), std::pair(ifindex, group));
}

}  // namespace accel
