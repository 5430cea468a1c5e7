// Ports that are opened in the background. To load and attach the XDP program takes 10 to 30 ms, most of it a
// grace period of RCU (bpf_dispatcher_change_prog()), and registering memory a few more. Whoever listens,
// binds or connects does not wait for that: what needs the port is the kernel's until it is open.
#include <algorithm>

#include "base/idle_code.h"
#include "base/signals_blocked.h"
#include "engine/engine.h"
#include "engine/process.h"

namespace accel {
namespace {

/// Engine::settle_ports().
constexpr Duration kPause = 50ms;

}  // namespace

void Process::forget_requests() {
  opening.forget_all();
  opens_ports.store(false, std::memory_order_relaxed);
}

/// A listener may have been closed since, or have released its queues at fork().
bool Process::still_wanted(int ifindex) const {
  const Link* link = network.link(ifindex);
  return link != nullptr && link->up && std::any_of(flows.begin(), flows.end(), [](const auto& f) {
           return f->uncovered == Reason::port_opening;
         });
}

std::optional<Link> Process::next_to_open(bool all, Duration pause, Instant* next) {
  const Locked held_here(*this);
  set_pass_now(clock_now());
  while (const auto* first = opening.first(pass_now(), all)) {
    const int ifindex = first->first;
    // Of all those are left out that may never be needed: the privilege goes, and logins and cron jobs do
    // that.
    const bool wanted = first->second.need == Need::kIfItLives ? !all : still_wanted(ifindex);
    const Link* known = network.link(ifindex);
    if (known && wanted) {
      Link link = *known;
      link.passed_by = opening.is_passed_by(ifindex);
      return link;
    }
    opening.forget(ifindex);
  }
  *next = opening.postpone(pass_now(), pause);
  opens_ports.store(opening.any_requested(), std::memory_order_relaxed);
  return std::nullopt;
}

Instant Process::open_requested(bool all, bool* opened, Duration pause) {
  const ScopedLock one_at_a_time(opening_lock);
  Instant next = kNever;
  while (const std::optional<Link> link = next_to_open(all, pause, &next)) {
    open_in_background(*link);
    *opened = true;
  }
  if (*opened) release_idle_code();
  return next;
}

void Process::open_in_background(const Link& link) {
  const uint32_t queues = opening.queues_to_hold();
  const Inside own_calls_go_to_the_kernel;  // through our wrappers
  OpenedPort opened = begin_port(link, queues, *worker.pool);
  const Locked held_here(*this);
  set_pass_now(clock_now());
  opening.forget(link.ifindex);
  const bool is_there = std::any_of(slots.begin(), slots.end(),
                                    [&](const PortSlot& s) { return s.ifindex == link.ifindex && s.port(); });
  const auto id = slots.free_slot(link.ifindex);
  if (!is_there && id && !ending) {
    complete_port(opened, link, queues, *worker.pool);
    if (opened.port)
      interfaces.install(*id, std::move(opened), link.ifindex, pass_now());
    else
      interfaces.note_failure(link, opened, pass_now());
    cover_flows();
  }
  work(pass_now());
}

bool Process::open_here(bool all, Duration pause) {
  bool opened = false;
  const AllSignalsBlocked handlers_wait;  // one that forks would wait for us
  (void)open_requested(all, &opened, pause);
  return opened;
}

bool Engine::open_requested_ports() { return process_->open_here(true, {}); }
bool Engine::settle_ports() { return process_->open_here(false, kPause); }

PathChoice Process::path_of(const BoundFlow& flow) const {
  PathChoice choice;
  choice.reason = flow.keys.empty() ? flow.uncovered : Reason::accelerated;
  // What the socket is to become: until then its shadow serves.
  choice.path = choice.reason == Reason::port_opening ? PathKind::kXdp : PathKind::kKernel;
  if (flow.refused) choice.detail = *flow.refused;
  if (flow.keys.empty()) return choice;
  const InterfaceId id = flow.keys.front().interface;
  choice.path = slots[id].opened.kind;
  choice.route.interface = id;
  choice.route.source = flow.keys.front().key.local.address;
  choice.route.mtu = worker.stack->interface(id).mtu;
  return choice;
}

PathChoice Engine::path_of(Pass& pass, const BoundFlow& flow) const {
  return Process::of(pass).path_of(flow);
}

PathChoice Engine::path_of(Pass& pass, const BoundFlow& flow, const PathChoice& chosen) const {
  return flow.refused ? path_of(pass, flow) : chosen;
}

}  // namespace accel
