#include "posix/udp_groups.h"

#include <netinet/in.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <utility>

#include "base/real.h"
#include "base/user_memory.h"
#include "engine/housekeeping.h"
#include "posix/early_wait.h"
#include "posix/fork_state.h"
#include "posix/udp_port_owners.h"
#include "posix/udp_socket.h"
#include "posix/unix_rendezvous.h"
#include "stack/udp.h"

namespace accel::posix {
namespace {

/// How long a socket of a program without libaccel may have to wait for its groups.
constexpr Duration kLook = 100ms;
/// While they are left to the kernel.
constexpr Duration kLookForLeave = 1s;
constexpr size_t kUsualSources = 32;

IpAddress address_of(const sockaddr_storage& a) {
  if (a.ss_family == AF_INET)
    return IpAddress::from_v4_bytes(&reinterpret_cast<const sockaddr_in&>(a).sin_addr);
  return IpAddress::from_v6_bytes(reinterpret_cast<const sockaddr_in6&>(a).sin6_addr.s6_addr);
}

sockaddr_storage storage_of(const IpAddress& address) {
  sockaddr_storage a{};
  if (address.is_v4()) {
    auto& in = reinterpret_cast<sockaddr_in&>(a);
    in.sin_family = AF_INET;
    std::memcpy(&in.sin_addr, address.v4_bytes(), sizeof in.sin_addr);
  } else {
    auto& in6 = reinterpret_cast<sockaddr_in6&>(a);
    in6.sin6_family = AF_INET6;
    std::memcpy(&in6.sin6_addr, address.bytes.data(), sizeof in6.sin6_addr);
  }
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

template <class F>
void for_each_member(F visit) {
  fds.for_each(0, fds.limit(), [&](int fd, File* file) {
    if (file->kind() != FileKind::kUdp || file->bound_flow() == nullptr || fds.first_of(file) != fd) return;
    auto* s = static_cast<UdpSocket*>(file);
    if (s->in_group()) visit(*s);
  });
}

/// A socket has joined a group since the last look.
std::atomic<bool> look_asked_for{false};

/// Some socket of this process has joined one. Under the Guard.
bool groups_joined = false;

/// A port that has groups, as the last look found it.
struct Watched {
  uint16_t port;
  bool taken;
  bool may_be;
};

}  // namespace

void ask_for_look(Engine& engine) {
  look_asked_for.store(true, std::memory_order_relaxed);
  engine.housekeeping().wake();
}

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
  int all = 1;
  socklen_t length = sizeof all;
  if (real.getsockopt(fd, IPPROTO_IP, IP_MULTICAST_ALL, &all, &length) == 0) groups.all_v4 = all != 0;
  length = sizeof all;
  if (real.getsockopt(fd, IPPROTO_IPV6, IPV6_MULTICAST_ALL, &all, &length) == 0) groups.all_v6 = all != 0;
  return groups;
}

/// Processes that have one socket have one queue, the kernel's.
bool UdpSocket::may_take_groups() const {
  return config().settings.multicast && !groups_lent_ && !has_program && !dormant(*this);
}

/// The lock is held over fork().
void UdpSocket::share_accept_queue() {
  shared_ = groups_lent_ = true;
  Engine* engine = Engine::get();
  if (engine == nullptr || flow_ == nullptr) return;
  Pass pass{*engine, Pass::OverFork{}};
  follow_groups(pass);
}

/// Those who have got it by fork() have gone, or have closed it.
void UdpSocket::end_lending() { groups_lent_ = groups_lent_ && others_have(this); }

Groups UdpSocket::groups_now(Pass& pass, uint16_t port) {
  groups_joined = true;
  Groups groups = joined_.read(shadow(), pass.engine().devices(pass));
  groups.taken = !groups.memberships.empty() && may_take_groups() &&
                 !others_take_groups(users_of_udp_port(port), port, cookie_of(shadow()));
  return groups;
}

void UdpSocket::follow_groups(Pass& pass) {
  if (flow_ == nullptr || !joined_.touched()) return;
  Engine& engine = pass.engine();
  const bool had = engine.brings_groups(pass, *flow_);
  engine.set_groups(pass, *flow_, groups_now(pass, local_.port));
  const bool has = engine.brings_groups(pass, *flow_);
  if (has && !had) {  // what the shadow has came first
    pollfd kernel{shadow(), POLLIN, 0};
    shadows_first_ |= pass.stack().udp().front(*pcb(pass)) == nullptr && real.poll(&kernel, 1, 0) > 0;
  }
  ask_for_look(engine);
  look_at_shadow_ = true;
  engine.touch();
}

bool UdpSocket::brings_groups(Pass& pass) const {
  return flow_ != nullptr && pass.engine().brings_groups(pass, *flow_);
}

Result<void> UdpSocket::groups_were_set(Pass& pass) {
  if (state_ == State::kKernel || shadow_name().port == 0) return {};
  if (state_ == State::kUndecided && flow_ == nullptr) {
    // It is bound to a group, and a thread that waits for it in the kernel would never hear of our queue.
    if (!shadow_name().address.is_multicast() || served) return {};
    Result<void> opened = open(pass, Role::kUdpReceiver, shadow_name(), {});
    return opened || opened.error() == kOnKernel ? Result<void>{} : opened;
  }
  follow_groups(pass);
  const bool served_here = !joined_.any() || brings_groups(pass) || choice.reason == Reason::port_opening;
  return served_here ? Result<void>{} : may_use_kernel(Reason::multicast);
}

void settle_groups(Pass& pass, uint16_t port) {
  if (!groups_joined || port == 0) return;
  for_each_member([&](UdpSocket& s) {
    if (s.local_endpoint().port != port) return;
    if (s.port_is_shared()) s.settle_ownership(pass);  // those who had it may have gone
    s.follow_groups(pass);
  });
}

Instant look_at_groups() {
  static Instant due = kNever;  // the control thread's
  const Instant now = monotonic_now();
  if (!look_asked_for.exchange(false, std::memory_order_relaxed) && now < due) return due;
  std::vector<Watched> ports;
  {
    Guard guard(Pass::Polling::kNo);
    if (guard.pass() == nullptr) return kNever;
    for_each_member([&](UdpSocket& s) {
      s.end_lending();
      const uint16_t port = s.local_endpoint().port;
      const bool taken = s.brings_groups(*guard.pass());
      const auto known =
          std::find_if(ports.begin(), ports.end(), [&](const Watched& w) { return w.port == port; });
      if (known == ports.end())
        ports.push_back({port, taken, s.may_take_groups()});
      else
        *known = {port, known->taken || taken, known->may_be || s.may_take_groups()};
    });
  }
  const bool any_taken = std::any_of(ports.begin(), ports.end(), [](const Watched& w) { return w.taken; });
  due = ports.empty() ? kNever : now + (any_taken ? kLook : kLookForLeave);
  for (const Watched& watched : ports) {
    const std::vector<UdpUser> users = users_of_udp_port(watched.port);  // takes a while: without the lock
    Guard guard(Pass::Polling::kNo);
    if (guard.pass() == nullptr) return kNever;
    const bool may_be = watched.may_be && !others_take_groups(users, watched.port);
    if (may_be != watched.taken) settle_groups(*guard.pass(), watched.port);
  }
  return due;
}

}  // namespace accel::posix
