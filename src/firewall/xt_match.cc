// Matches of xtables: iptables-nft puts them into nf_tables rules (net/netfilter/nft_compat.c) as they stand
// in iptables-legacy's tables.
#include <netinet/in.h>
// after libc's names for the same
#include <linux/netfilter/xt_addrtype.h>
#include <linux/netfilter/xt_conntrack.h>
#include <linux/netfilter/xt_mark.h>
#include <linux/netfilter/xt_multiport.h>
#include <linux/netfilter/xt_pkttype.h>
#include <linux/netfilter/xt_rpfilter.h>
#include <linux/netfilter/xt_state.h>
#include <linux/netfilter/xt_tcpudp.h>
#include <linux/rtnetlink.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "firewall/match.h"

namespace accel::firewall {
namespace {

/// The match's structure; fields that an older revision's lacks are 0.
template <class T>
std::optional<T> structure(const Expression& e, size_t least = sizeof(T)) {
  if (e.data.size() < least) return {};
  T t{};
  std::memcpy(&t, e.data.data(), std::min(e.data.size(), sizeof t));
  return t;
}

/// Ports in the host's byte order, as xtables has them.
Match port_in(const Packet& p, bool destination, uint16_t from, uint16_t to) {
  Registers r;
  for (size_t i = 0; i < 2; ++i)
    r.set_bits(i, p.transport.value[i + (destination ? 2 : 0)], p.transport.known[i + (destination ? 2 : 0)]);
  const uint8_t low[2] = {static_cast<uint8_t>(from >> 8), static_cast<uint8_t>(from)};
  const uint8_t high[2] = {static_cast<uint8_t>(to >> 8), static_cast<uint8_t>(to)};
  return in_range(r, 0, low, high);
}

/// xt_tcpudp.c: tcp_mt(), udp_mt()
Match tcp(const Expression& e, const Packet& p) {
  const auto info = structure<xt_tcp>(e);
  if (p.protocol != Protocol::kTcp) return Match::kNo;
  if (!info) return Match::kMaybe;
  Match match = inverted(port_in(p, false, info->spts[0], info->spts[1]), info->invflags & XT_TCP_INV_SRCPT);
  match = both(match,
               inverted(port_in(p, true, info->dpts[0], info->dpts[1]), info->invflags & XT_TCP_INV_DSTPT));
  Registers flags;
  flags.set_bits(0, static_cast<uint8_t>(p.transport.value[13] & info->flg_mask),
                 static_cast<uint8_t>(p.transport.known[13] | ~info->flg_mask));
  const uint8_t wanted[1] = {info->flg_cmp};
  match =
      both(match, inverted(compare(flags, 0, wanted, Comparison::kEqual), info->invflags & XT_TCP_INV_FLAGS));
  return info->option == 0 ? match : both(match, Match::kMaybe);
}

Match udp(const Expression& e, const Packet& p) {
  const auto info = structure<xt_udp>(e);
  if (p.protocol != Protocol::kUdp) return Match::kNo;
  if (!info) return Match::kMaybe;
  return both(inverted(port_in(p, false, info->spts[0], info->spts[1]), info->invflags & XT_UDP_INV_SRCPT),
              inverted(port_in(p, true, info->dpts[0], info->dpts[1]), info->invflags & XT_UDP_INV_DSTPT));
}

/// xt_multiport.c: ports_match_v1()
Match multiport(const Expression& e, const Packet& p) {
  const auto info = structure<xt_multiport_v1>(e);
  if (e.revision != 1 || !info) return Match::kMaybe;
  Match any = Match::kNo;
  for (int i = 0; i < std::min<int>(info->count, XT_MULTI_PORTS); ++i) {
    const uint16_t from = info->ports[i];
    const uint16_t to = info->pflags[i] && i + 1 < info->count ? info->ports[++i] : from;
    if (info->flags != XT_MULTIPORT_DESTINATION) any = std::max(any, port_in(p, false, from, to));
    if (info->flags != XT_MULTIPORT_SOURCE) any = std::max(any, port_in(p, true, from, to));
  }
  return inverted(any, info->invert);
}

Match in_states(const Packet& p, const Place& place, uint32_t mask, uint32_t untracked_bit) {
  if (p.state.value == kUntracked) return sure(mask & untracked_bit);
  if (!place.tracked || !p.state.sure()) return Match::kMaybe;
  return sure(mask & p.state.value);
}

/// xt_conntrack.c: conntrack_mt(). We translate no address and expect no connection.
Match conntrack(const Expression& e, const Packet& p, const Place& place) {
  const auto info = structure<xt_conntrack_mtinfo2>(e, sizeof(xt_conntrack_mtinfo1));
  if (!info || e.revision == 0) return Match::kMaybe;
  uint16_t states = info->state_mask;
  if (e.revision == 1) states &= 0xff;  // there the two masks are bytes
  constexpr uint16_t kUnderstood = XT_CONNTRACK_STATE | XT_CONNTRACK_STATE_ALIAS;
  Match match = Match::kYes;
  if (info->match_flags & (XT_CONNTRACK_STATE | XT_CONNTRACK_STATE_ALIAS))
    match = inverted(in_states(p, place, states, XT_CONNTRACK_STATE_UNTRACKED),
                     info->invert_flags & XT_CONNTRACK_STATE);
  return info->match_flags & ~kUnderstood ? both(match, Match::kMaybe) : match;
}

Match state(const Expression& e, const Packet& p, const Place& place) {
  const auto info = structure<xt_state_info>(e);
  return info ? in_states(p, place, info->statemask, XT_STATE_UNTRACKED) : Match::kMaybe;
}

/// xt_addrtype.c: the kinds of address are those of the routing table.
Match addrtype(const Expression& e, const Packet& p) {
  const auto info = structure<xt_addrtype_info_v1>(e);
  if (e.revision != 1 || !info) return Match::kMaybe;
  const Question& q = *p.question;
  const bool by_device = info->flags & (XT_ADDRTYPE_LIMIT_IFACE_IN | XT_ADDRTYPE_LIMIT_IFACE_OUT);
  auto one = [&](bool ours, uint16_t mask) {
    if (mask == 0) return Match::kYes;
    if (ours) return by_device && !q.local_on_device ? Match::kMaybe : sure(mask >> RTN_LOCAL & 1);
    if (by_device) return Match::kMaybe;  // a peer of another kind is a martian
    return sure(mask >> RTN_UNICAST & 1);
  };
  auto side = [&](bool ours, uint16_t mask, uint32_t invert) {
    return mask == 0 ? Match::kYes : inverted(one(ours, mask), info->flags & invert);
  };
  return both(side(!p.incoming, info->source, XT_ADDRTYPE_INVERT_SOURCE),
              side(p.incoming, info->dest, XT_ADDRTYPE_INVERT_DEST));
}

Match mark(const Expression& e, const Packet& p) {
  const auto info = structure<xt_mark_mtinfo1>(e, 9);
  if (e.revision != 1 || !info) return Match::kMaybe;
  if ((p.mark.value ^ info->mark) & info->mask & p.mark.known) return inverted(Match::kNo, info->invert);
  if ((info->mask & ~p.mark.known) == 0 && (info->mark & ~info->mask) == 0)
    return inverted(Match::kYes, info->invert);
  return Match::kMaybe;
}

Match pkttype(const Expression& e, const Packet& p) {
  const auto info = structure<xt_pkttype_info>(e);
  if (!info || !p.incoming) return Match::kMaybe;
  return inverted(sure(info->pkttype == 0), info->invert);  // PACKET_HOST
}

Match rpfilter(const Expression& e, const Packet& p) {
  const auto info = structure<xt_rpfilter_info>(e, 1);
  if (!info || !p.question->peer_by_device || p.question->marks_route) return Match::kMaybe;
  return inverted(Match::kYes, info->flags & XT_RPFILTER_INVERT);
}

}  // namespace

Match xt_match(const Expression& e, const Packet& p, const Place& place) {
  const std::string_view name = e.name;
  if (name == "comment") return Match::kYes;
  if (name == "tcp") return tcp(e, p);
  if (name == "udp") return udp(e, p);
  if (name == "multiport") return multiport(e, p);
  if (name == "conntrack") return conntrack(e, p, place);
  if (name == "state") return state(e, p, place);
  if (name == "addrtype") return addrtype(e, p);
  if (name == "mark") return mark(e, p);
  if (name == "pkttype") return pkttype(e, p);
  if (name == "rpfilter") return rpfilter(e, p);
  // Matches of other protocols and of extension headers (xt_icmp, ip6t_rt, ip6t_hbh, ip6t_frag, ip6t_mh).
  for (const std::string_view foreign : {"icmp", "icmp6", "rt", "hbh", "dst", "frag", "mh", "sctp", "dccp"})
    if (name == foreign) return Match::kNo;
  return Match::kMaybe;
}

}  // namespace accel::firewall
