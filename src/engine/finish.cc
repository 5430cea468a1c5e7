// The end of the process, or of its engine: what is not delivered goes on in the kernel.
#include <algorithm>
#include <vector>

#include "base/real.h"
#include "engine/accept_queue.h"
#include "engine/engine.h"
#include "engine/hand_back.h"
#include "engine/process.h"

namespace accel {
namespace {

constexpr Duration kAskAgain =
    std::chrono::milliseconds(10);  // whether the kernel's sockets have been acknowledged
constexpr Duration kFarewell = std::chrono::milliseconds(200);
constexpr Duration kExec = std::chrono::seconds(1);  ///< then it has failed, and the process goes on

}  // namespace

/// Bounded, since peers may send as fast as this takes.
void Process::empty_rings() {
  int polls = 0;
  do {
    poll(clock_now());
  } while (!arm_ports() && ++polls < kMostPolls);
}

void Engine::finish(Duration limit, bool for_good) {
  Pass pass{*this};
  Process& p = Process::of(pass);
  p.forget_requests();
  p.ending |= for_good;
  Stack& stack = *p.worker.stack;
  stack.flush(pass.now());
  p.empty_rings();  // what is acknowledged there need not be handed back
  std::vector<int> shadows;
  for (TcpConn* conn : all_connections(stack))
    if (!stack.tcp().all_acked(*conn))
      if (const auto shadow = hand_back_closed(pass, conn)) shadows.push_back(*shadow);
  wait_for_delivery(pass, limit);
  p.unsteer_closed();
  if (for_good) p.steering.unsteer_connections_for_good();
  p.empty_rings();  // the queues end with the process
  // Not before: the kernel loses a FIN that comes while close() makes a TIME-WAIT socket of one.
  for (const int shadow : shadows) real.close(shadow);
  p.counters_file.remove(for_good ? kNever : clock_now() + kExec);
}

void Engine::retire(Duration limit) {
  {
    Pass pass{*this, Pass::Polling::kNo};
    wait_for_the_others(pass, limit);
  }
  finish(limit, true);
  {
    Pass pass{*this, Pass::Polling::kNo};
    Process& p = Process::of(pass);
    for (PortSlot& slot : p.slots) slot.lost = bool(slot.opened.port) || slot.vlan.has_value();
    (void)end_lost_ports(pass);
    p.opening.close_ready();
    close_accept_queue();
  }
}

/// They have been woken. What they would sleep by again is a call that they may not make by then.
void Engine::wait_for_the_others(Pass& pass, Duration limit) {
  Process& p = Process::of(pass);
  WaitRequest request;
  request.condition = [](void* self) ACCEL_REQUIRES(worker_lock) {
    return static_cast<Process*>(self)->sleepers.none_asleep_but(self);
  };
  request.context = process_.get();
  request.may_spin = false;
  request.deadline = pass.now() + limit;
  p.awaits_absence = true;
  (void)wait(pass, request);
  p.awaits_absence = false;
}

void Engine::wait_for_delivery(Pass& pass, Duration limit) {
  WaitRequest request;
  request.condition = [](void* self) ACCEL_REQUIRES(worker_lock) {
    const Process& process = *static_cast<Process*>(self);
    return process.worker.stack->tcp().lingering() == 0 &&
           (!process.channels || process.channels->all_delivered());
  };
  request.context = process_.get();
  request.may_spin = false;
  const Instant end = pass.now() + limit;
  do {
    // The kernel makes no event of an acknowledgement: of channels it must be asked.
    request.deadline = process_->channels ? std::min(end, pass.now() + kAskAgain) : end;
  } while (wait(pass, request) != Woke::kReady && pass.now() < end);
  if (!process_->channels) return;
  // A peer's last credits, coming to a process that is gone, would reset what the peer still reads.
  request.condition = [](void* p) { return static_cast<Process*>(p)->channels->all_over(); };
  request.deadline = std::min(end, pass.now() + kFarewell);
  (void)wait(pass, request);
}

}  // namespace accel
