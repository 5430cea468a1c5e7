#include "engine/packet_filter.h"

#include <algorithm>
#include <tuple>

#include "base/config.h"
#include "base/log.h"
#include "base/proc.h"
#include "engine/stats.h"

namespace accel {
namespace {

/// Any port, where the kernel does not say.
std::pair<uint16_t, uint16_t> automatic_ports() {
  const auto range = local_port_range();
  if (!range || range->first > range->second || range->second > 65535) return {0, 65535};
  return {static_cast<uint16_t>(range->first), static_cast<uint16_t>(range->second)};
}

}  // namespace

firewall::Question PacketFilter::question_of(const FilteredFlow& flow) const {
  firewall::Question q;
  q.protocol = flow.protocol;
  q.local = flow.local;
  q.remote = flow.remote;
  q.active = flow.active;
  q.established = flow.established;
  q.mark = flow.mark;
  q.marks_route = network_.policy_routing;
  if (flow.local.port == 0) std::tie(q.port_from, q.port_to) = local_ports_;
  const Link* link = network_.link(flow.ifindex);
  q.device = {flow.ifindex, link ? link->name : ""};
  while (link && link->lower != 0 && q.below.size() < 4) {
    const int below = link->lower;
    link = network_.link(below);
    if (link) q.below.push_back({below, link->name});
  }
  q.local_on_device = std::any_of(
      network_.addresses.begin(), network_.addresses.end(),
      [&](const LocalAddress& a) { return a.ifindex == flow.ifindex && a.address == flow.local.address; });
  q.peer_by_device = flow.routed || peers_come_by(flow.ifindex, flow.local.address.is_v4());
  return q;
}

/// Whether the way back to any peer is known to lead out by the device.
bool PacketFilter::peers_come_by(int ifindex, bool v4) const {
  if (network_.policy_routing) return false;
  bool by_default = false;
  for (const KernelRoute& r : network_.routes) {
    if (r.prefix.is_v4() != v4 || r.prefix.is_link_local()) continue;
    if (r.ifindex != ifindex) return false;
    by_default = by_default || r.prefix_length == (v4 ? 96 : 0);
  }
  return by_default;
}

bool PacketFilter::accepts_all(int ifindex) const {
  return config().settings.firewall == FirewallUse::kIgnore || rules_.touches_nothing(ifindex);
}

PathChoice PacketFilter::judge(const FilteredFlow& flow, Instant now) {
  PathChoice choice;
  choice.reason = Reason::accelerated;
  const firewall::Key key{flow.protocol,    flow.local,   flow.remote, flow.active,
                          flow.established, flow.ifindex, flow.mark};
  const firewall::Finding* known = rules_.judged(key);
  if (known == nullptr) {
    refresh(now);  // a datagram's question comes here first
    known = &rules_.judge(question_of(flow));
  }
  if (known->accepted) return choice;
  choice.reason = Reason::firewall;
  choice.detail = stats::note_detail(known->rule.c_str());
  const Settings& settings = config().settings;
  const bool wanted = settings.path == Path::kStack || settings.require != Require::kOff;
  log(wanted ? LogLevel::kWarning : LogLevel::kInfo, "left to the kernel for the firewall: %s",
      known->rule.c_str());
  return choice;
}

void PacketFilter::refresh(Instant now, Duration between_looks) {
  if (config().settings.firewall == FirewallUse::kIgnore) return;
  if (local_ports_.second == 0) local_ports_ = automatic_ports();
  if (rules_.refresh(now, between_looks)) changed_ = true;
  if (!rules_.unseen().empty() && !std::exchange(told_of_unseen_rules_, true))
    log(LogLevel::kWarning, "%s: taken to be none; CAP_NET_ADMIN, or firewall = \"ignore\" if that is meant",
        rules_.unseen().c_str());
}

}  // namespace accel
