#include "posix/joined_groups.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include "base/real.h"
#include "base/socket_option.h"
#include "base/user_memory.h"
#include "posix/address.h"

namespace accel::posix {
namespace {

constexpr size_t kUsualSources = 32;

/// The address of a sockaddr_in or sockaddr_in6.
IpAddress address_of(const sockaddr_storage& a) {
  return from_sockaddr(reinterpret_cast<const sockaddr*>(&a), sizeof a, a.ss_family)->address;
}

sockaddr_storage storage_of(const IpAddress& address) {
  sockaddr_storage a{};
  socklen_t length = sizeof a;
  (void)to_sockaddr({address, 0}, address.is_v4() ? AF_INET : AF_INET6, reinterpret_cast<sockaddr*>(&a),
                    &length);
  return a;
}

/// The group that an option (is_group_option()) names; nullopt: none.
std::optional<IpAddress> group_of(int level, int name, const void* value) {
  const auto* bytes = static_cast<const char*>(value);
  if (name == IP_MULTICAST_ALL || (level == IPPROTO_IPV6 && name == IPV6_MULTICAST_ALL)) return std::nullopt;
  if (level == IPPROTO_IP && name <= IP_MSFILTER) {
    in_addr group{};  // the first member of all their structures
    if (!get_user(group, bytes)) return std::nullopt;
    return IpAddress::from_v4_bytes(&group);
  }
  if (level == IPPROTO_IPV6 && name <= IPV6_DROP_MEMBERSHIP) {
    in6_addr group{};
    if (!get_user(group, bytes)) return std::nullopt;
    return IpAddress::from_v6_bytes(group.s6_addr);
  }
  sockaddr_storage group{};
  static_assert(offsetof(group_req, gr_group) == offsetof(group_source_req, gsr_group) &&
                offsetof(group_req, gr_group) == offsetof(group_filter, gf_group));
  sockaddr_in6 head{};  // of the storage, the rest is not looked at
  if (!get_user(head, bytes + offsetof(group_req, gr_group))) return std::nullopt;
  std::memcpy(&group, &head, sizeof head);
  if (group.ss_family != AF_INET && group.ss_family != AF_INET6) return std::nullopt;
  return address_of(group);
}

/// nullopt: `fd` is no member of it there.
std::optional<GroupMembership> membership_of(int fd, const IpAddress& group, int ifindex) {
  for (size_t room = kUsualSources;;) {
    std::vector<char> memory(GROUP_FILTER_SIZE(room));
    auto& filter = *reinterpret_cast<group_filter*>(memory.data());
    filter.gf_interface = static_cast<uint32_t>(ifindex);
    filter.gf_group = storage_of(group);
    filter.gf_numsrc = static_cast<uint32_t>(room);
    auto length = static_cast<socklen_t>(memory.size());
    if (real.getsockopt(fd, group.is_v4() ? IPPROTO_IP : IPPROTO_IPV6, MCAST_MSFILTER, &filter, &length) != 0)
      return std::nullopt;
    if (filter.gf_numsrc > room) {
      room = filter.gf_numsrc;
      continue;
    }
    GroupMembership found{group, ifindex, filter.gf_fmode == MCAST_EXCLUDE, {}};
    for (uint32_t i = 0; i < filter.gf_numsrc; ++i) {
      sockaddr_storage source;
      std::memcpy(&source, reinterpret_cast<const char*>(filter.gf_slist) + i * sizeof source, sizeof source);
      found.sources.push_back(address_of(source));
    }
    return found;
  }
}

}  // namespace

bool is_group_option(int level, int name) {
  switch (name) {
    case MCAST_JOIN_GROUP:
    case MCAST_LEAVE_GROUP:
    case MCAST_JOIN_SOURCE_GROUP:
    case MCAST_LEAVE_SOURCE_GROUP:
    case MCAST_BLOCK_SOURCE:
    case MCAST_UNBLOCK_SOURCE:
    case MCAST_MSFILTER:
      return level == IPPROTO_IP || level == IPPROTO_IPV6;
    case IP_ADD_MEMBERSHIP:
    case IP_DROP_MEMBERSHIP:
    case IP_ADD_SOURCE_MEMBERSHIP:
    case IP_DROP_SOURCE_MEMBERSHIP:
    case IP_BLOCK_SOURCE:
    case IP_UNBLOCK_SOURCE:
    case IP_MSFILTER:
    case IP_MULTICAST_ALL:
      return level == IPPROTO_IP;
    default:
      return level == IPPROTO_IPV6 &&
             (name == IPV6_ADD_MEMBERSHIP || name == IPV6_DROP_MEMBERSHIP || name == IPV6_MULTICAST_ALL);
  }
}

void JoinedGroups::option_was_set(int level, int name, const void* value) {
  if (!is_group_option(level, name)) return;
  touched_ = true;
  const std::optional<IpAddress> group = group_of(level, name, value);
  if (group && std::find(names_.begin(), names_.end(), *group) == names_.end()) names_.push_back(*group);
}

Groups JoinedGroups::read(int fd, std::span<const int> devices) {
  Groups groups;
  std::erase_if(names_, [&](const IpAddress& name) {
    const size_t before = groups.memberships.size();
    for (const int ifindex : devices)
      if (auto found = membership_of(fd, name, ifindex)) groups.memberships.push_back(std::move(*found));
    return groups.memberships.size() == before;
  });
  groups.all_v4 = int_option(fd, IPPROTO_IP, IP_MULTICAST_ALL, 1) != 0;
  groups.all_v6 = int_option(fd, IPPROTO_IPV6, IPV6_MULTICAST_ALL, 1) != 0;
  return groups;
}

}  // namespace accel::posix
