#include "engine/netlink.h"

#include <linux/if.h>
#include <linux/if_addr.h>
#include <linux/if_ether.h>
#include <linux/rtnetlink.h>
#include <net/if_arp.h>
#include <netinet/in.h>
#include <netlink/cache.h>
#include <netlink/netlink.h>
#include <netlink/route/addr.h>
#include <netlink/route/link.h>
#include <netlink/route/link/vlan.h>
#include <netlink/route/neighbour.h>
#include <netlink/route/nexthop.h>
#include <netlink/route/route.h>
#include <netlink/route/rule.h>
#include <netlink/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <tuple>

#include "base/private_fds.h"
#include "base/real.h"

namespace accel {
namespace {

constexpr int kEventBuffer = 1 << 20;
constexpr uint8_t kTosMask = 0x1c;  ///< IPTOS_RT_MASK of the kernel: what routing looks at

/// libnl's own numbers to errno; what matters to callers.
Errno from_nl(int code) {
  switch (-code) {
    case NLE_NOMEM:
      return err(ENOMEM);
    case NLE_PERM:
    case NLE_NOACCESS:
      return err(EPERM);
    case NLE_DUMP_INTR:
      return err(EAGAIN);
    default:
      return err(EIO);
  }
}

IpAddress from_nl(const nl_addr* a) {
  if (!a || nl_addr_get_len(a) == 0) return {};
  const void* bytes = nl_addr_get_binary_addr(a);
  return nl_addr_get_family(a) == AF_INET ? IpAddress::from_v4_bytes(bytes) : IpAddress::from_v6_bytes(bytes);
}

IpAddress from_attribute(const nlattr* a, int family) {
  if (!a) return {};
  return family == AF_INET ? IpAddress::from_v4_bytes(nla_data(a)) : IpAddress::from_v6_bytes(nla_data(a));
}

struct FreeCache {
  void operator()(nl_cache* c) const { nl_cache_free(c); }
};
using Cache = std::unique_ptr<nl_cache, FreeCache>;

template <class Object, class Visit>
void each(const Cache& cache, Visit visit) {
  for (nl_object* o = nl_cache_get_first(cache.get()); o; o = nl_cache_get_next(o))
    visit(reinterpret_cast<Object*>(o));
}

bool has_address(uint16_t state) {
  return state & (NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_PERMANENT | NUD_NOARP);
}

nl_sock* connect_socket(int* code) {
  const MakingPrivate making;
  nl_sock* s = nl_socket_alloc();
  if (!s) {
    *code = -NLE_NOMEM;
    return nullptr;
  }
  *code = nl_connect(s, NETLINK_ROUTE);
  if (*code == 0) {
    note_private(nl_socket_get_fd(s), true);
    return s;
  }
  nl_socket_free(s);
  return nullptr;
}

uint16_t plain_tag(rtnl_link* l) {
  int priorities = 0;
  (void)rtnl_link_vlan_get_egress_map(l, &priorities);
  const bool plain = priorities == 0 && rtnl_link_vlan_get_protocol(l) == htons(ETH_P_8021Q);
  return plain ? static_cast<uint16_t>(rtnl_link_vlan_get_id(l)) : 0;
}

Link read_link(rtnl_link* l) {
  Link link;
  link.ifindex = rtnl_link_get_ifindex(l);
  if (const char* name = rtnl_link_get_name(l)) link.name = name;
  if (const char* kind = rtnl_link_get_type(l)) link.kind = kind;
  link.mtu = rtnl_link_get_mtu(l);
  link.master = rtnl_link_get_master(l);
  int32_t other_namespace = 0;
  if ((link.kind == "vlan" || link.kind == "macvlan") && rtnl_link_get_link_netnsid(l, &other_namespace) != 0)
    link.lower = rtnl_link_get_link(l);
  if (link.kind == "vlan") link.vlan = plain_tag(l);
  const unsigned flags = rtnl_link_get_flags(l);
  link.up = (flags & IFF_UP) && (flags & IFF_LOWER_UP);  // IFF_RUNNING follows late (net/core/link_watch.c)
  link.loopback = flags & IFF_LOOPBACK;
  link.ethernet = rtnl_link_get_arptype(l) == ARPHRD_ETHER;
  if (const nl_addr* mac = rtnl_link_get_addr(l); mac && nl_addr_get_len(mac) == 6)
    std::memcpy(link.mac.data(), nl_addr_get_binary_addr(mac), 6);
  return link;
}

std::optional<RouteKind> kind_of(rtnl_route* r) {
  const bool local = rtnl_route_get_table(r) == RT_TABLE_LOCAL;
  if (!local && rtnl_route_get_table(r) != RT_TABLE_MAIN) return {};
  switch (rtnl_route_get_type(r)) {
    case RTN_LOCAL:
      return RouteKind::kLocal;
    case RTN_BROADCAST:
    case RTN_ANYCAST:
      return RouteKind::kBroadcast;
    case RTN_UNICAST:
      return local ? std::nullopt : std::optional(RouteKind::kUnicast);
    case RTN_BLACKHOLE:
    case RTN_UNREACHABLE:
    case RTN_PROHIBIT:
      return RouteKind::kUnreachable;
    default:
      return {};
  }
}

/// Segments of a first receive window that are no less than the window is without them, 64 KiB.
constexpr uint32_t kWholeWindow = 55;

/// `metric`: the value of an RTAX_ number, 0 where the route has none. False: the kernel's TCP alone heeds
/// one of them.
template <class Metric>
bool read_metrics(Metric metric, RouteMetrics& out) {
  const auto locked = [all = metric(RTAX_LOCK)](int name) { return (all >> name & 1) != 0; };
  const uint32_t features = metric(RTAX_FEATURES);
  out.initial_window = metric(RTAX_INITCWND);
  if (locked(RTAX_RTO_MIN)) out.min_rto = std::chrono::milliseconds(metric(RTAX_RTO_MIN));
  out.advertised_mss = static_cast<uint16_t>(std::min<uint32_t>(metric(RTAX_ADVMSS), UINT16_MAX));
  out.hop_limit = static_cast<uint8_t>(std::min<uint32_t>(metric(RTAX_HOPLIMIT), UINT8_MAX));
  out.quickack = metric(RTAX_QUICKACK) != 0;
  out.ecn = (features & RTAX_FEATURE_ECN) != 0;
  for (const int other : {RTAX_WINDOW, RTAX_RTT, RTAX_RTTVAR, RTAX_SSTHRESH, RTAX_REORDERING, RTAX_CC_ALGO,
                          RTAX_FASTOPEN_NO_COOKIE})
    if (metric(other) != 0) return false;
  if (locked(RTAX_CWND) && metric(RTAX_CWND) != 0) return false;
  constexpr uint32_t kWithoutEffect = RTAX_FEATURE_SACK | RTAX_FEATURE_TIMESTAMP | RTAX_FEATURE_ALLFRAG;
  const uint32_t first_window = metric(RTAX_INITRWND);
  return (features & ~(RTAX_FEATURE_ECN | kWithoutEffect)) == 0 &&
         (first_window == 0 || first_window >= kWholeWindow);
}

/// Rows of the stack's table, one for each next hop.
void read_route(rtnl_route* r, std::vector<KernelRoute>& out) {
  const auto kind = kind_of(r);
  const int family = rtnl_route_get_family(r);
  if (!kind || (family != AF_INET && family != AF_INET6) || rtnl_route_get_tos(r) != 0) return;
  KernelRoute route;
  route.kind = *kind;
  const nl_addr* prefix = rtnl_route_get_dst(r);
  route.prefix = from_nl(prefix);
  const unsigned length = prefix ? nl_addr_get_prefixlen(prefix) : 0;
  if (family == AF_INET && length == 0) route.prefix = IpAddress::any_v4();
  route.prefix_length = static_cast<uint8_t>(length + (family == AF_INET ? 96 : 0));
  route.priority = rtnl_route_get_priority(r);
  const auto metric = [r](int name) {
    uint32_t value = 0;
    return rtnl_route_get_metric(r, name, &value) == 0 ? value : 0;
  };
  route.mtu = metric(RTAX_MTU);
  if (!read_metrics(metric, route.metrics) && route.kind == RouteKind::kUnicast)
    route.kind = RouteKind::kOther;
  const int hops = rtnl_route_get_nnexthops(r);
  if (hops == 0) out.push_back(route);
  for (int i = 0; i < hops; ++i) {
    rtnl_nexthop* hop = rtnl_route_nexthop_n(r, i);
    if (rtnl_route_nh_get_flags(hop) & RTNH_F_DEAD) continue;
    route.ifindex = rtnl_route_nh_get_ifindex(hop);
    const nl_addr* via = rtnl_route_nh_get_via(hop);  // RFC 8950: an IPv4 route through an IPv6 router
    route.gateway = from_nl(via ? via : rtnl_route_nh_get_gateway(hop));
    if (route.kind == RouteKind::kUnicast && rtnl_route_nh_get_encap_mpls_dst(hop))
      route.kind = RouteKind::kOther;
    out.push_back(route);
  }
}

/// Of routes to one prefix the kernel takes those with the lowest metric.
void keep_preferred(std::vector<KernelRoute>& routes) {
  auto key = [](const KernelRoute& r) {
    return std::tuple(r.prefix, r.prefix_length, r.kind == RouteKind::kLocal);
  };
  std::stable_sort(routes.begin(), routes.end(), [&](const KernelRoute& a, const KernelRoute& b) {
    return std::tuple(key(a), a.priority) < std::tuple(key(b), b.priority);
  });
  std::vector<KernelRoute> kept;
  for (KernelRoute& r : routes)
    if (kept.empty() || key(kept.back()) != key(r) || kept.back().priority == r.priority) kept.push_back(r);
  routes = std::move(kept);
}

NeighbourEvent parse_neighbour(nlmsghdr* header) {
  NeighbourEvent event;
  auto* n = static_cast<ndmsg*>(nlmsg_data(header));
  nlattr* attributes[NDA_MAX + 1]{};
  if (n->ndm_family != AF_INET && n->ndm_family != AF_INET6) return event;
  if (nlmsg_parse(header, sizeof(*n), attributes, NDA_MAX, nullptr) < 0 || !attributes[NDA_DST]) return event;
  if (nla_len(attributes[NDA_DST]) != (n->ndm_family == AF_INET ? 4 : 16)) return event;
  event.ifindex = n->ndm_ifindex;
  event.address = from_attribute(attributes[NDA_DST], n->ndm_family);
  event.failed = n->ndm_state & NUD_FAILED;
  if (header->nlmsg_type == RTM_DELNEIGH) return event;
  if (has_address(n->ndm_state) && attributes[NDA_LLADDR] && nla_len(attributes[NDA_LLADDR]) == 6) {
    event.now.mac.emplace();
    std::memcpy(event.now.mac->data(), nla_data(attributes[NDA_LLADDR]), 6);
  }
  event.now.stale = n->ndm_state & NUD_STALE;
  return event;
}

int on_event(nl_msg* message, void* context) {
  auto& changes = *static_cast<NetworkChanges*>(context);
  nlmsghdr* header = nlmsg_hdr(message);
  switch (header->nlmsg_type) {
    case RTM_NEWLINK:
    case RTM_DELLINK:
      changes.links = true;
      break;
    case RTM_NEWADDR:
    case RTM_DELADDR:
      changes.addresses = true;
      break;
    case RTM_NEWROUTE:
    case RTM_DELROUTE:
    case RTM_NEWRULE:
    case RTM_DELRULE:
      changes.routes = true;
      break;
    case RTM_NEWNETCONF:
      changes.source_rules = true;
      break;
    case RTM_NEWNEIGH:
    case RTM_DELNEIGH:
      if (NeighbourEvent event = parse_neighbour(header); event.ifindex != 0) changes.events.push_back(event);
      break;
    default:
      break;
  }
  return NL_OK;
}

RouteType type_of(uint8_t type) {
  switch (type) {
    case RTN_UNICAST:
      return RouteType::kUnicast;
    case RTN_LOCAL:
    case RTN_ANYCAST:
      return RouteType::kLocal;
    case RTN_BROADCAST:
      return RouteType::kBroadcast;
    case RTN_MULTICAST:
      return RouteType::kMulticast;
    default:
      return RouteType::kUnusual;
  }
}

/// A message of one question or order, in memory of its own: these are sent in any thread's calls, a signal
/// handler's too, and libnl's are from malloc().
class Request {
 public:
  template <class Head>
  Request(uint16_t type, uint16_t flags, const Head& head) {
    header()->nlmsg_type = type;
    header()->nlmsg_flags = flags;
    std::memcpy(NLMSG_DATA(header()), &head, sizeof head);
    header()->nlmsg_len = NLMSG_LENGTH(sizeof head);
  }
  void put(uint16_t type, const void* data, size_t size) {
    auto* a = reinterpret_cast<rtattr*>(bytes_.data() + NLMSG_ALIGN(header()->nlmsg_len));
    a->rta_type = type;
    a->rta_len = static_cast<uint16_t>(RTA_LENGTH(size));
    std::memcpy(RTA_DATA(a), data, size);
    header()->nlmsg_len = NLMSG_ALIGN(header()->nlmsg_len) + a->rta_len;
  }
  void put(uint16_t type, const IpAddress& a) {
    a.is_v4() ? put(type, a.v4_bytes(), 4) : put(type, a.bytes.data(), 16);
  }
  bool send(int fd, uint32_t number) {
    header()->nlmsg_seq = number;
    return real.syscall(SYS_sendto, static_cast<long>(fd), bytes_.data(), header()->nlmsg_len, 0L, nullptr,
                        0L) >= 0;
  }

 private:
  nlmsghdr* header() { return reinterpret_cast<nlmsghdr*>(bytes_.data()); }
  alignas(nlmsghdr) std::array<uint8_t, 256> bytes_{};  ///< the longest is one of two IPv6 addresses
};

/// The attributes of a route and, nested, its metrics; a later one of a type counts.
template <size_t N>
void find_attributes(const void* first, size_t size, std::array<const rtattr*, N>& found) {
  auto* a = static_cast<const rtattr*>(first);
  for (auto left = static_cast<int>(size); RTA_OK(a, left); a = RTA_NEXT(a, left))
    if (const size_t type = a->rta_type & NLA_TYPE_MASK; type < N) found[type] = a;
}

uint32_t number_in(const rtattr* a) {
  uint32_t value = 0;
  if (RTA_PAYLOAD(a) >= sizeof value) std::memcpy(&value, RTA_DATA(a), sizeof value);
  return value;
}

IpAddress address_in(const rtattr* a, int family) {
  if (a == nullptr || RTA_PAYLOAD(a) < (family == AF_INET ? 4u : 16u)) return {};
  return family == AF_INET ? IpAddress::from_v4_bytes(RTA_DATA(a)) : IpAddress::from_v6_bytes(RTA_DATA(a));
}

RouteAnswer read_answer(const nlmsghdr* message, int family) {
  const auto* route = static_cast<const rtmsg*>(NLMSG_DATA(message));
  std::array<const rtattr*, RTA_MAX + 1> a{};
  find_attributes(RTM_RTA(route), RTM_PAYLOAD(message), a);
  RouteAnswer answer;
  answer.type = type_of(route->rtm_type);
  if (a[RTA_MULTIPATH] || a[RTA_ENCAP] || a[RTA_ENCAP_TYPE]) answer.type = RouteType::kUnusual;
  if (a[RTA_OIF]) answer.ifindex = static_cast<int>(number_in(a[RTA_OIF]));
  if (a[RTA_GATEWAY]) answer.gateway = address_in(a[RTA_GATEWAY], family);
  if (a[RTA_VIA]) {  // RFC 8950: an IPv4 route through an IPv6 router
    const auto* via = static_cast<const rtvia*>(RTA_DATA(a[RTA_VIA]));
    answer.gateway = via->rtvia_family == AF_INET ? IpAddress::from_v4_bytes(via->rtvia_addr)
                                                  : IpAddress::from_v6_bytes(via->rtvia_addr);
  }
  answer.source = address_in(a[RTA_PREFSRC], family);
  if (a[RTA_METRICS]) {
    std::array<const rtattr*, RTAX_MAX + 1> metrics{};
    find_attributes(RTA_DATA(a[RTA_METRICS]), RTA_PAYLOAD(a[RTA_METRICS]), metrics);
    const auto metric = [&](int name) { return metrics[name] ? number_in(metrics[name]) : 0; };
    answer.mtu = metric(RTAX_MTU);
    answer.mtu_locked = (metric(RTAX_LOCK) >> RTAX_MTU & 1) != 0;
    if (!read_metrics(metric, answer.metrics) && answer.type == RouteType::kUnicast)
      answer.type = RouteType::kUnusual;
  }
  return answer;
}

/// One answer comes to one question; older ones belong to a thread that was cancelled meanwhile.
Result<RouteAnswer> hear_answer(int fd, uint32_t number, int family) {
  alignas(nlmsghdr) std::array<uint8_t, 8192> bytes;
  for (;;) {
    const ssize_t n =
        real.syscall(SYS_recvfrom, static_cast<long>(fd), bytes.data(), bytes.size(), 0L, nullptr, nullptr);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return err(EIO);
    auto size = static_cast<uint32_t>(n);
    for (auto* m = reinterpret_cast<nlmsghdr*>(bytes.data()); NLMSG_OK(m, size); m = NLMSG_NEXT(m, size)) {
      if (m->nlmsg_seq != number) continue;
      if (m->nlmsg_type == NLMSG_ERROR) return err(-static_cast<const nlmsgerr*>(NLMSG_DATA(m))->error);
      if (m->nlmsg_type != RTM_NEWROUTE || m->nlmsg_len < NLMSG_LENGTH(sizeof(rtmsg)))
        return err(EHOSTUNREACH);
      return read_answer(m, family);
    }
  }
}

Result<RouteAnswer> ask(int fd, uint32_t number, const RouteQuestion& q, unsigned flags) {
  const int family = q.destination.is_v4() ? AF_INET : AF_INET6;
  const uint8_t bits = family == AF_INET ? 32 : 128;
  const bool with_source = !q.source.is_any();
  rtmsg head{};
  head.rtm_family = static_cast<uint8_t>(family);
  head.rtm_dst_len = bits;
  head.rtm_src_len = with_source ? bits : 0;
  head.rtm_tos = q.tos & kTosMask;
  head.rtm_flags = flags;
  Request request(RTM_GETROUTE, NLM_F_REQUEST, head);
  request.put(RTA_DST, q.destination);
  if (with_source) request.put(RTA_SRC, q.source);
  if (q.ifindex != 0) request.put(RTA_OIF, &q.ifindex, sizeof q.ifindex);
  if (q.mark != 0) request.put(RTA_MARK, &q.mark, sizeof q.mark);
  if (!request.send(fd, number)) return err(EIO);
  return hear_answer(fd, number, family);
}

}  // namespace

Result<std::unique_ptr<Netlink>> Netlink::open() {
  std::unique_ptr<Netlink> n{new Netlink};
  int code = 0;
  n->questions_ = connect_socket(&code);
  if (n->questions_) n->snapshots_ = connect_socket(&code);
  if (n->snapshots_) n->events_ = connect_socket(&code);
  if (!n->events_) return from_nl(code);
  nl_socket_disable_auto_ack(n->questions_);
  nl_socket_disable_seq_check(n->events_);
  nl_socket_set_nonblocking(n->events_);
  nl_socket_set_buffer_size(n->events_, kEventBuffer, 0);
  code = nl_socket_add_memberships(n->events_, RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR,
                                   RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE, RTNLGRP_IPV4_RULE,
                                   RTNLGRP_IPV6_RULE, RTNLGRP_NEIGH, RTNLGRP_IPV4_NETCONF, RTNLGRP_NONE);
  if (code < 0) return from_nl(code);
  return n;
}

Netlink::~Netlink() {
  for (nl_sock* s : {questions_, snapshots_, events_})
    if (s) {
      note_private(nl_socket_get_fd(s), false);
      nl_socket_free(s);
    }
}

void Netlink::abandon_in_child() {
  for (nl_sock* s : {questions_, snapshots_, events_})
    if (s) close_private(nl_socket_get_fd(s));
}

Result<void> Netlink::read_links(std::map<int, Link>& out) {
  nl_cache* raw = nullptr;
  if (int code = rtnl_link_alloc_cache(snapshots_, AF_UNSPEC, &raw); code < 0) return from_nl(code);
  Cache cache{raw};
  out.clear();
  each<rtnl_link>(cache, [&](rtnl_link* l) {
    Link link = read_link(l);
    out[link.ifindex] = std::move(link);
  });
  return {};
}

namespace {

Result<void> addresses_by(nl_sock* socket, std::vector<LocalAddress>& out) {
  nl_cache* raw = nullptr;
  if (int code = rtnl_addr_alloc_cache(socket, &raw); code < 0) return from_nl(code);
  Cache cache{raw};
  out.clear();
  each<rtnl_addr>(cache, [&](rtnl_addr* a) {
    const int family = rtnl_addr_get_family(a);
    if (family != AF_INET && family != AF_INET6) return;
    const unsigned flags = rtnl_addr_get_flags(a);
    const bool tentative = (flags & IFA_F_TENTATIVE) && !(flags & IFA_F_OPTIMISTIC);
    out.push_back({rtnl_addr_get_ifindex(a), from_nl(rtnl_addr_get_local(a)),
                   !tentative && !(flags & IFA_F_DADFAILED)});
  });
  return {};
}

/// Of the kernel's answers to orders, which are errors only; nobody waits for those, the neighbour's state
/// tells.
void empty(int fd) {
  char error[512];
  while (real.recv(fd, error, sizeof(error), MSG_DONTWAIT) > 0) {
  }
}

}  // namespace

Result<void> Netlink::read_addresses(std::vector<LocalAddress>& out) { return addresses_by(snapshots_, out); }

Result<void> Netlink::ask_addresses(std::vector<LocalAddress>& out) {
  empty(nl_socket_get_fd(questions_));  // libnl takes an unexpected number for an error
  return addresses_by(questions_, out);
}

namespace {

/// The priority of the rule that leads to the kernel's local table. fib_default_rules_init() gives it 0.
uint32_t priority_of_local(const Cache& rules, int family) {
  uint32_t least = UINT32_MAX;
  each<rtnl_rule>(rules, [&](rtnl_rule* r) {
    if (rtnl_rule_get_family(r) == family && rtnl_rule_get_table(r) == RT_TABLE_LOCAL)
      least = std::min(least, rtnl_rule_get_prio(r));
  });
  return least;
}

}  // namespace

Result<void> Netlink::read_routes(std::vector<KernelRoute>& out, bool& policy_routing, bool& own_first) {
  nl_cache* raw = nullptr;
  if (int code = rtnl_route_alloc_cache(snapshots_, AF_UNSPEC, 0, &raw); code < 0) return from_nl(code);
  Cache cache{raw};
  out.clear();
  policy_routing = false;
  own_first = true;
  each<rtnl_route>(cache, [&](rtnl_route* r) {
    read_route(r, out);
    const nl_addr* source = rtnl_route_get_src(r);
    policy_routing |= source != nullptr && nl_addr_get_prefixlen(source) != 0;
  });
  keep_preferred(out);
  if (int code = rtnl_rule_alloc_cache(snapshots_, AF_UNSPEC, &raw); code < 0) return from_nl(code);
  Cache rules{raw};
  const uint32_t local4 = priority_of_local(rules, AF_INET), local6 = priority_of_local(rules, AF_INET6);
  each<rtnl_rule>(rules, [&](rtnl_rule* r) {
    const uint32_t table = rtnl_rule_get_table(r);
    const bool usual = table == RT_TABLE_LOCAL || table == RT_TABLE_MAIN || table == RT_TABLE_DEFAULT;
    const int family = rtnl_rule_get_family(r);
    if (family != AF_INET && family != AF_INET6) return;
    if (!usual) policy_routing = true;
    if (table != RT_TABLE_LOCAL && rtnl_rule_get_prio(r) < (family == AF_INET ? local4 : local6))
      own_first = false;
  });
  return {};
}

Result<void> Netlink::read_neighbours(std::map<NeighbourKey, Neighbour>& out) {
  nl_cache* raw = nullptr;
  if (int code = rtnl_neigh_alloc_cache(snapshots_, &raw); code < 0) return from_nl(code);
  Cache cache{raw};
  out.clear();
  each<rtnl_neigh>(cache, [&](rtnl_neigh* n) {
    const int family = rtnl_neigh_get_family(n);
    if (family != AF_INET && family != AF_INET6) return;
    const nl_addr* mac = rtnl_neigh_get_lladdr(n);
    const int state = rtnl_neigh_get_state(n);
    if (state < 0 || !has_address(static_cast<uint16_t>(state)) || !mac || nl_addr_get_len(mac) != 6) return;
    Neighbour& entry = out[{rtnl_neigh_get_ifindex(n), from_nl(rtnl_neigh_get_dst(n))}];
    std::memcpy(entry.mac.emplace().data(), nl_addr_get_binary_addr(mac), 6);
    entry.stale = state & NUD_STALE;
  });
  return {};
}

Result<void> Netlink::read_all(Network& out) {
  if (auto r = read_links(out.links); !r) return r;
  if (auto r = read_addresses(out.addresses); !r) return r;
  if (auto r = read_routes(out.routes, out.policy_routing, out.own_first); !r) return r;
  return read_neighbours(out.neighbours);
}

/// Before Linux 5.14 a socket does not tell; then it is as a rule that of the thread.
uint64_t network_of(int socket) {
  uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  if (real.getsockopt(socket, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &size) == 0) return cookie;
  struct stat mine {};
  return stat("/proc/thread-self/ns/net", &mine) == 0 ? mine.st_ino : 0;
}

int Netlink::event_fd() const { return nl_socket_get_fd(events_); }

NetworkChanges Netlink::read_changes() {
  NetworkChanges changes;
  nl_socket_modify_cb(events_, NL_CB_VALID, NL_CB_CUSTOM, on_event, &changes);
  for (;;) {
    const int code = nl_recvmsgs_default(events_);
    if (code == -NLE_AGAIN) break;
    if (code == -NLE_NOMEM) {  // ENOBUFS: events were lost
      changes.links = changes.addresses = changes.routes = changes.neighbours = changes.source_rules = true;
      continue;
    }
    if (code < 0) break;
  }
  return changes;
}

Result<RouteAnswer> Netlink::ask_route(const RouteQuestion& question) {
  const int fd = nl_socket_get_fd(questions_);
  auto answer = ask(fd, ++asked_, question, 0);
  if (!answer || answer->type != RouteType::kUnicast) return answer;
  // The answer shows the next hop chosen; the route itself tells whether there are several, or a tunnel.
  if (auto match = ask(fd, ++asked_, question, RTM_F_FIB_MATCH); match && match->type == RouteType::kUnusual)
    answer->type = RouteType::kUnusual;
  return answer;
}

void Netlink::resolve(int ifindex, const IpAddress& address) {
  ndmsg head{};
  head.ndm_family = address.is_v4() ? AF_INET : AF_INET6;
  head.ndm_ifindex = ifindex;
  head.ndm_state = NUD_NONE;
  head.ndm_flags = NTF_USE;
  Request request(RTM_NEWNEIGH, NLM_F_REQUEST | NLM_F_CREATE | NLM_F_REPLACE, head);
  request.put(NDA_DST, address);
  const int fd = nl_socket_get_fd(questions_);
  empty(fd);
  (void)request.send(fd, 0);
}

}  // namespace accel
