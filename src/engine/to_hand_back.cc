// Ports that are lost, and pending hand-backs: what the layer above is told, and what is left of them.
#include <netinet/tcp.h>

#include <utility>

#include "engine/engine.h"
#include "engine/hand_back.h"
#include "engine/process.h"
#include "engine/raw_segment.h"

namespace accel {
namespace {

FlowKey key_of(const Stack& stack, const TcpConn& conn) {
  return {Protocol::kTcp, stack.tcp().local(conn), stack.tcp().remote(conn)};
}

/// A handshake that a peer began and whose end would find nobody. The kernel's listener has no part in it. A
/// peer that has our SYN-ACK is reset; one that has not does not mind a reset without ACK (RFC 9293 section
/// 3.10.7.3), sends its SYN again and finds that listener.
void reset_handshake(const TcpLayer& tcp, const TcpConn& conn, int ifindex) {
  (void)send_raw({.from = tcp.local(conn),
                  .to = tcp.remote(conn),
                  .seq = tcp.next_sequence(conn),
                  .flags = TH_RST,
                  .ifindex = ifindex});
}

}  // namespace

/// A device's table of queues was changed, or the peer sends by another of its queues to a virtual device:
/// RSS moves a connection to a queue that another process holds, or nobody.
void Process::look_for_misdirected(Instant now) {
  if (!hand_backs.look_due(now)) return;
  for (InterfaceId id = 0; id < slots.count(); ++id) {
    FlowSteering* port = slots[id].flows();
    if (port == nullptr || !port->has_misdirected()) continue;
    steering.for_each_connection(id, [&](const FlowKey& key) ACCEL_REQUIRES(worker_lock) {
      if (const auto segment = port->misdirected(key);
          segment && worker.stack->tcp().misdirected(key, *segment, now))
        hand_backs.add(key, Reason::misdirected);
    });
  }
}

bool Engine::lost(Pass& pass, const TcpConn& conn) const {
  Process& p = Process::of(pass);
  return p.slots[p.worker.stack->tcp().interface(conn)].lost;
}

bool Engine::hand_back_due(Pass& pass, const TcpConn& conn) const {
  Process& p = Process::of(pass);
  return p.hand_backs.contains(key_of(*p.worker.stack, conn));
}

PathChoice Engine::hand_back_reason(Pass& pass, const TcpConn& conn) const {
  Process& p = Process::of(pass);
  const PendingHandBacks::PendingHandBack pending = p.hand_backs.of(key_of(*p.worker.stack, conn));
  PathChoice choice;
  choice.reason = pending.why;
  choice.detail = pending.rule;
  return choice;
}

template <class Holds>
static bool any_unaccepted(Pass& pass, const BoundFlow& flow, Holds holds) {
  auto visit = [](const TcpConn& c, const void* self) { return (*static_cast<const Holds*>(self))(c); };
  return flow.listener && pass.stack().tcp().any_unaccepted(*flow.listener, visit, &holds);
}

bool Engine::lost(Pass& pass, const BoundFlow& flow) const {
  return any_unaccepted(pass, flow, [&](const TcpConn& c) { return lost(pass, c); });
}

bool Engine::hand_back_due(Pass& pass, const BoundFlow& flow) const {
  return any_unaccepted(pass, flow, [&](const TcpConn& c) { return hand_back_due(pass, c); });
}

bool Engine::end_lost_ports(Pass& pass) {
  Process& p = Process::of(pass);
  for (InterfaceId id = 0; id < p.slots.count(); ++id)
    if (p.slots[id].lost) p.end_connections_of(id, pass);
  p.close_lost();
  p.interfaces.none_lost();
  if (std::exchange(p.cover_after_loss, false) && !p.ending) p.cover_flows();
  return std::exchange(p.redirected, false);
}

void Process::end_connections_of(InterfaceId id, Pass& pass) {
  const TcpLayer& tcp = worker.stack->tcp();
  for (TcpConn* conn : all_connections(*worker.stack)) {
    if (worker.stack->tcp().interface(*conn) != id) continue;
    if (tcp.owner(*conn) || tcp.is_queued(*conn)) {
      worker.stack->tcp().end_with(*conn, ENETDOWN);
      continue;
    }
    if (tcp.state(*conn) == TcpState::kSynReceived) reset_handshake(tcp, *conn, slots[id].ifindex);
    hand_back_or_forget(pass, conn);
  }
  unsteer_closed();
  for (auto& flow : flows) {
    for (const auto& key : flow->keys)
      if (key.interface == id) steering.unsteer(id, key.key);
    std::erase_if(flow->keys, [id](const auto& k) { return k.interface == id; });
  }
  steering.clear(id);  // of connections in TIME-WAIT
}

void Engine::finish_hand_backs(Pass& pass) {
  Process& p = Process::of(pass);
  const TcpLayer& tcp = p.worker.stack->tcp();
  for (TcpConn* conn : all_connections(*p.worker.stack))
    if (hand_back_due(pass, *conn) && !tcp.owner(*conn) && !tcp.is_queued(*conn) &&
        tcp.state(*conn) > TcpState::kSynReceived)
      hand_back_or_forget(pass, conn);
  p.hand_backs.clear();
}

/// Once nothing names them: a VLAN's connections go before the port below. What is in the queues of one that
/// works still is taken; the slots are the devices' next ports'.
void Process::close_lost() {
  for (InterfaceId id = 0; id < slots.count(); ++id) {
    if (!std::exchange(slots[id].lost, false)) continue;
    if (PortLife* life = slots[id].life()) {
      int polls = 0;
      do {
        poll(clock_now());
      } while (life->alive() && !slots[id].port()->arm() && ++polls < kMostPolls);
      life->count(counters);
    }
    interfaces.close(id, pass_now());
  }
}

}  // namespace accel
