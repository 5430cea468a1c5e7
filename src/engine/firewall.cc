// The host's packet filters have changed: what that means for sockets that are open.
#include <algorithm>

#include "engine/engine.h"
#include "engine/process.h"

namespace accel {
namespace {

/// Some hooks tell of no changes. They are looked at this often where no flow begins.
constexpr Duration kBetweenIdleLooks = 5s;
constexpr int kLoopback = 1;  // LOOPBACK_IFINDEX of the kernel's

}  // namespace

/// Housekeeping's, under the lock: changed rules hold for what is open, too. Listeners and UDP sockets are
/// the kernel's where they are refused now; connections are handed back, so that the kernel applies the
/// rules.
void Process::follow_firewall() {
  const bool on_host = shm_links && shm_links->links() > 0;
  if (flows.empty() && steering.count() == 0 && !on_host) return;
  if (on_host && Engine::reads_filters())
    filter.refresh(pass_now(), kBetweenIdleLooks);  // also where the process can have no port
  else
    paths.refresh_filter(pass_now(), kBetweenIdleLooks);
  if (!filter.take_changed()) return;
  if (on_host) filters_changed.store(true, std::memory_order_relaxed);
  cover_flows();
  auto look = [](TcpConn& conn, void* self) ACCEL_REQUIRES(worker_lock) {
    auto& p = *static_cast<Process*>(self);
    p.filter_connection(conn);
  };
  worker.stack->tcp().for_each(look, this);
}

void Process::filter_connection(const TcpConn& conn) {
  // Handshakes are judged when they began; the next change has those that are open by then.
  if (!worker.is_open(conn)) return;
  const InterfaceId id = worker.stack->tcp().interface(conn);
  FilteredFlow flow;
  flow.routed = true;
  flow.local = worker.stack->tcp().local(conn);
  flow.remote = worker.stack->tcp().remote(conn);
  flow.active = !firewall_listens(flow.local);
  flow.established = true;
  flow.ifindex = slots[id].ifindex;
  // Most rules speak of one end only: what is accepted with any other end needs no look of its own.
  FilteredFlow any = flow;
  (flow.active ? any.local.port : any.remote.port) = 0;
  if (!flow.active) any.remote.address = {};
  if (paths.filtered(any, pass_now()).reason == Reason::accelerated) return;
  const PathChoice now = paths.filtered(flow, pass_now());
  if (now.reason == Reason::accelerated) return;
  const FlowKey key{Protocol::kTcp, flow.local, flow.remote};
  hand_backs.refuse(key, now.detail);
}

PathChoice Engine::judge_on_host(Pass& pass, const Endpoint& local, const Endpoint& remote) {
  Process& p = Process::of(pass);
  PathChoice choice;
  choice.reason = Reason::accelerated;
  if (reads_filters())
    p.filter.refresh(pass.now());
  else if (!p.filter.has_looked())
    return choice;  // a look would find nothing out, and say so
  if (p.filter.accepts_all(kLoopback)) return choice;
  FilteredFlow flow;
  flow.local = local;
  flow.remote = remote;
  flow.established = flow.routed = true;
  flow.ifindex = kLoopback;
  for (const bool active : {true, false}) {
    flow.active = active;
    if (choice = p.filter.judge(flow, pass.now()); choice.reason != Reason::accelerated) break;
  }
  return choice;
}

bool Process::firewall_listens(const Endpoint& local) const {
  return std::any_of(flows.begin(), flows.end(), [&](const auto& f) {
    return f->protocol == Protocol::kTcp && f->local.port == local.port;
  });
}

}  // namespace accel
