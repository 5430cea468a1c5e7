// Which source addresses may come in by which interface: net/ipv4/route.c ip_route_input_slow() and
// net/ipv4/fib_frontend.c fib_validate_source() for IPv4, net/ipv6/ip6_input.c ip6_rcv_core() for IPv6.
// The kernel validates each packet that it has no cached route for; the first packet of a flow does here.
#include <algorithm>

#include "stack/core.h"

namespace accel {
namespace {

bool is_zero_net(const IpAddress& a) { return a.is_v4() && a.v4_bytes()[0] == 0; }
constexpr IpAddress kLimitedBroadcast = IpAddress::v4(0xffffffff);

}  // namespace

StackCore::Source StackCore::judge(const Passage& packet) const {
  const IpAddress &from = packet.source, &to = packet.destination;
  const SourceRules& rules = interfaces[packet.interface].info.sources;
  if (from.is_multicast() || from.is_any() || from == kLimitedBroadcast || is_zero_net(from) ||
      is_zero_net(to))
    return Source::kMartian;
  const bool localnet = from.is_v4() && rules.route_localnet;
  if ((from.is_loopback() || to.is_loopback()) && !localnet) return Source::kMartian;
  return judge_by_routes(packet, rules);
}

StackCore::Source StackCore::judge_by_routes(const Passage& packet, const SourceRules& rules) const {
  const auto rows = routes.find(packet.source, packet.destination);
  if (rows.empty() && routes.is_question(packet.source, packet.destination)) return Source::kQuestion;
  const uint8_t filter = packet.source.is_v4() ? rules.rp_filter : uint8_t{0};
  const RouteKind kind = rows.empty() ? RouteKind::kUnreachable : rows.front().kind;
  switch (kind) {
    case RouteKind::kLocal:
      // Of IPv6 the kernel takes them, but answers itself by loopback: nobody beyond the wire is served.
      if (!packet.source.is_v4() || !rules.accept_local) return Source::kMartian;
      break;
    case RouteKind::kBroadcast:
      return filter == 0 ? Source::kGood : Source::kMartian;
    case RouteKind::kUnreachable:
      return filter == 0 ? Source::kGood : Source::kNotReversePath;
    case RouteKind::kUnicast:
    case RouteKind::kOther:
      break;
  }
  constexpr uint8_t kStrict = 1;
  if (filter != kStrict) return Source::kGood;
  const bool same = std::any_of(rows.begin(), rows.end(),
                                [&](const RouteEntry& r) { return r.interface == packet.interface; });
  return same ? Source::kGood : Source::kNotReversePath;
}

bool StackCore::admit(Packet* frame, const Passage& packet, uint32_t ip_header) {
  GoodSource& good = good_source(packet);
  if (good.address == packet.source && good.interface == packet.interface &&
      !packet.destination.is_loopback())
    return true;
  switch (judge(packet)) {
    case Source::kGood:
      if (!routes.asks()) good = {packet.source, packet.interface};
      return true;
    case Source::kMartian:
      drop(frame, Counter::drop_martian);
      return false;
    case Source::kNotReversePath:
      drop(frame, Counter::drop_reverse_path);
      return false;
    case Source::kQuestion:
      break;
  }
  if (awaiting_route.size() >= kMostAwaiting) {
    drop(frame, Counter::drop_route_unknown);
    return false;
  }
  frame->offset -= ip_header;
  frame->length += ip_header;
  frame->interface = packet.interface;
  awaiting_route.push_back(frame);
  return false;
}

}  // namespace accel
