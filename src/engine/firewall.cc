// The host's packet filters, as path selection and housekeeping ask them (firewall/firewall.h).
#include <algorithm>

#include "base/config.h"
#include "base/log.h"
#include "base/proc.h"
#include "engine/stats.h"
#include "engine/worker.h"
#include "stack/tcp/conn.h"

namespace accel {
namespace {

/// Some hooks tell of no changes. They are looked at this often where no flow begins.
constexpr Duration kBetweenIdleLooks = 5s;

/// Any port, where the kernel does not say.
std::pair<uint16_t, uint16_t> automatic_ports() {
  const auto range = local_port_range();
  if (!range || range->first > range->second || range->second > 65535) return {0, 65535};
  return {static_cast<uint16_t>(range->first), static_cast<uint16_t>(range->second)};
}

}  // namespace

firewall::Question Engine::Impl::question_of(const FilteredFlow& flow) const {
  firewall::Question q;
  q.protocol = flow.protocol;
  q.local = flow.local;
  q.remote = flow.remote;
  q.active = flow.active;
  q.established = flow.established;
  q.mark = flow.mark;
  q.marks_route = network.policy_routing;
  if (flow.local.port == 0) std::tie(q.port_from, q.port_to) = local_ports;
  const Link* link = network.link(flow.ifindex);
  q.device = {flow.ifindex, link ? link->name : ""};
  while (link && link->lower != 0 && q.below.size() < 4) {
    const int below = link->lower;
    link = network.link(below);
    if (link) q.below.push_back({below, link->name});
  }
  q.local_on_device = std::any_of(
      network.addresses.begin(), network.addresses.end(),
      [&](const LocalAddress& a) { return a.ifindex == flow.ifindex && a.address == flow.local.address; });
  q.peer_by_device = flow.routed || peers_come_by(flow.ifindex, flow.local.address.is_v4());
  return q;
}

/// Whether the way back to any peer is known to lead out by the device.
bool Engine::Impl::peers_come_by(int ifindex, bool v4) const {
  if (network.policy_routing) return false;
  bool by_default = false;
  for (const KernelRoute& r : network.routes) {
    if (r.prefix.is_v4() != v4 || r.prefix.is_link_local()) continue;
    if (r.ifindex != ifindex) return false;
    by_default = by_default || r.prefix_length == (v4 ? 96 : 0);
  }
  return by_default;
}

/// The kernel's path with the rule, or `accelerated`. Devices that cannot have a port are not asked about.
PathChoice Engine::Impl::filtered(const FilteredFlow& flow) {
  PathChoice choice;
  choice.reason = Reason::accelerated;
  if (config().settings.firewall == FirewallUse::kIgnore || firewall.touches_nothing(flow.ifindex) ||
      !may_have_port(flow.ifindex))
    return choice;
  const firewall::Key key{flow.protocol,    flow.local,   flow.remote, flow.active,
                          flow.established, flow.ifindex, flow.mark};
  const firewall::Finding* known = firewall.judged(key);
  if (known == nullptr) {
    refresh_firewall();  // a datagram's question comes here first
    known = &firewall.judge(question_of(flow));
  }
  if (known->accepted) return choice;
  choice.reason = Reason::firewall;
  choice.rule = stats::note_rule(known->rule.c_str());
  const Settings& settings = config().settings;
  const bool wanted = settings.path == Path::kStack || settings.require != Require::kOff;
  log(wanted ? LogLevel::kWarning : LogLevel::kInfo, "left to the kernel for the firewall: %s",
      known->rule.c_str());
  return choice;
}

/// Before new flows are judged: changes are heard at once.
void Engine::Impl::refresh_firewall(Duration between_looks) {
  if (config().settings.firewall == FirewallUse::kIgnore || ports_barred != Reason::accelerated) return;
  if (local_ports.second == 0) local_ports = automatic_ports();
  if (firewall.refresh(pass_now, between_looks)) firewall_changed = true;
  if (!firewall.unseen().empty() && !std::exchange(told_of_unseen_rules, true))
    log(LogLevel::kWarning, "%s: taken to be none; CAP_NET_ADMIN, or firewall = \"ignore\" if that is meant",
        firewall.unseen().c_str());
}

/// Housekeeping's, under the lock: changed rules hold for what is open, too. Listeners and UDP sockets are
/// the kernel's where they are refused now; connections are handed back, so that the kernel applies the
/// rules.
void Engine::Impl::follow_firewall() {
  if (flows.empty() && steering.count() == 0) return;
  refresh_firewall(kBetweenIdleLooks);
  if (!std::exchange(firewall_changed, false)) return;
  cover_flows();
  auto look = [](TcpConn& conn, void* self)
                  ACCEL_REQUIRES(worker_lock) { static_cast<Impl*>(self)->filter_connection(conn); };
  stack->tcp_for_each(look, this);
}

bool Engine::Impl::is_open(const TcpConn& conn) {
  using enum TcpState;
  for (const TcpState passing : {kSynSent, kSynReceived, kTimeWait, kClosed})
    if (conn.tcp_state == passing) return false;
  return true;
}

void Engine::Impl::filter_connection(const TcpConn& conn) {
  // Handshakes are judged when they began; the next change has those that are open by then.
  if (!is_open(conn)) return;
  const InterfaceId id = stack->tcp_interface(conn);
  FilteredFlow flow;
  flow.routed = true;
  flow.local = stack->tcp_local(conn);
  flow.remote = stack->tcp_remote(conn);
  flow.active = !firewall_listens(flow.local);
  flow.established = true;
  flow.ifindex = slots[id].ifindex;
  // Most rules speak of one end only: what is accepted with any other end needs no look of its own.
  FilteredFlow any = flow;
  (flow.active ? any.local.port : any.remote.port) = 0;
  if (!flow.active) any.remote.address = {};
  if (filtered(any).reason == Reason::accelerated) return;
  const PathChoice now = filtered(flow);
  if (now.reason == Reason::accelerated) return;
  const FlowKey key{Protocol::kTcp, flow.local, flow.remote};
  strays[key] = {Reason::firewall, now.rule};
}

bool Engine::Impl::firewall_listens(const Endpoint& local) const {
  return std::any_of(flows.begin(), flows.end(), [&](const auto& f) {
    return f->protocol == Protocol::kTcp && f->local.port == local.port;
  });
}

PathChoice Engine::why_strayed(Pass& pass, const TcpConn& conn) const {
  Impl& w = Impl::of(pass);
  const Stack& stack = *w.stack;
  const auto found = w.strays.find({Protocol::kTcp, stack.tcp_local(conn), stack.tcp_remote(conn)});
  const Impl::Departure departure = found == w.strays.end() ? Impl::Departure{} : found->second;
  PathChoice choice;
  choice.reason = departure.why;
  choice.rule = departure.rule;
  return choice;
}

}  // namespace accel
