// The way through a pass: enter, poll, the caller's work, flush, transmit, notify, leave.
#include "engine/process.h"

#include <time.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/cancellation.h"
#include "base/real.h"

namespace accel {
namespace {

/// Polling again this soon finds nothing worth the look.
constexpr Duration kPollInterval = 1us, kSeldomInterval = 10us;
/// Frames that a port has not taken are offered again after this, when nothing else happens.
constexpr Duration kRetryTransmit = 100us;

}  // namespace

Instant clock_now() {
  timespec t;
  real.clock_gettime(CLOCK_MONOTONIC, &t);
  return Instant{Duration{int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec}};
}

// Held from here to unlock_out(), of which a Pass is the proof.
void Process::lock_in() ACCEL_LOCKS_UNCHECKED {
  signal_brackets.worker = true;  // before: a handler that comes in between must not try to take the lock
  worker.lock.lock();
  bar_cancellation();
}

void Process::unlock_out() ACCEL_LOCKS_UNCHECKED {
  Alarms alarms;
  sleepers.take_alarms(alarms);
  if (notices.any()) tell_housekeeping();
  std::array<Port*, kMaxInterfaces> to_tell;
  const size_t tells = worker.telling_deferred ? worker.begin_telling(to_tell) : 0;
  worker.lock.unlock();
  bool told = true;
  for (size_t i = 0; i < tells; ++i) told &= to_tell[i]->tell();  // NOLINT: filled by the loop above
  sleepers.ring(alarms);
  if (!told) wake_in_charge();
  admit_cancellation();
  signal_brackets.worker = false;
  admit_if_outside();
}

void Process::tell_housekeeping() {
  const uint8_t told = notices.take();
  if ((told & Notices::kThreadOut) != 0) housekeeping.watch();
  if ((told & Notices::kApplicationBegan) != 0) housekeeping.application_began();
  if ((told & Notices::kPortsRequested) != 0) {
    opens_ports.store(true, std::memory_order_relaxed);
    housekeeping.ports_requested();
  }
}

/// The thread that watches the ports has to have the device told again. Between two steps of unlock_out(),
/// which has let go of the lock.
void Process::wake_in_charge() ACCEL_LOCKS_UNCHECKED {
  worker.lock.lock();
  sleepers.alarm_in_charge();
  worker.lock.unlock();
}

void Process::enter(Pass::Polling polling, Instant* now) {
  lock_in();
  *now = clock_now();
  set_pass_now(*now);
  worker.note_pass();
  if (polling == Pass::Polling::kNo) return;
  if (*now - worker.last_poll < (polling == Pass::Polling::kYes ? kPollInterval : kSeldomInterval)) return;
  try {
    poll(*now);
  } catch (const std::bad_alloc&) {  // the Pass that is being made has to let go of the lock
    worker.counters.add(Counter::broken_off);
  }
}

void Process::leave(bool in_turn) {
  try {
    if (std::exchange(worker.poll_at_end, false)) poll(pass_now());
    if (!in_turn || !worker.stack->has_to_send() || !worker.turns.keep(pass_now())) {
      send(pass_now());
    } else {
      worker.counters.add(Counter::passes_kept);
      housekeeping.frames_kept();
    }
    tell(pass_now());
  } catch (const std::bad_alloc&) {
    worker.counters.add(Counter::broken_off);
  }
  const Instant due = std::max(due_uncovered(pass_now()), worker.turns.overdue());
  worker.next_due.store(due, std::memory_order_relaxed);
  if (due < kNever) {
    if (due < pass_now() + HousekeepingRequests::kRest) housekeeping.needed();
    housekeeping.look_by(due, pass_now());
  }
  unlock_out();
}

bool Process::poll(Instant now) {
  bool busy = worker.receive(now);
  if (worker.stack->has_work(now)) {
    busy = true;
    if (worker.stack->has_route_questions()) answer_route_questions(now);
    if (PacketQueue& frames = worker.stack->frames_for_kernel(); !frames.empty()) give_to_kernel(frames);
    if (worker.stack->next_deadline() <= now) worker.stack->on_deadlines(now);
  }
  if (channels && channels->due(now)) channels->poll(now);  // a program may never wait
  if (shm_links) busy |= shm_links->glance(now, sleepers.any_asleep());
  return busy;
}

bool Process::poll_all(Instant now) {
  const bool linked = shm_links && shm_links->poll(now, sleepers.any_asleep());
  const bool busy = poll(now);  // behind it: the glance there finds the rings looked at
  if (channels) channels->poll(now);
  return busy || channels || linked || worker.tx_waiting();
}

bool Process::in_use() const {
  return steering.count() > 0 || channel_count.load(std::memory_order_relaxed) > 0;
}

void Process::work(Instant now) {
  send(now);
  tell(now);
}

void Process::send(Instant now) {
  worker.turns.let_go(now);
  steer_opened();
  worker.stack->flush(now);
  if (worker.stack->has_unresolved()) neighbours.resolve();
  worker.transmit(sleepers.threads() > 1);
  unsteer_closed();
}

void Process::tell(Instant now) {
  notify_edges();
  if (worker.untold.empty()) return;
  if (sleepers.any_asleep()) sleepers.wake_ready(worker.untold, now);
  worker.untold = {};
}

Result<void> Process::steer_connection(InterfaceId id, const FlowKey& key, int shadow) {
  learn_address(key.local.address);
  auto steered = steering.steer(id, key, false, shadow);
  return steered;
}

void Process::note_numbers(InterfaceId id, const FlowKey& key) {
  if (TcpNumbers* numbers = steering.numbers(id, key)) worker.stack->tcp().note_numbers(key, numbers);
}

void Process::steer_opened() {
  auto& changes = worker.stack->flow_changes();
  if (changes.empty()) return;
  // An error leaves the handshake to the kernel, which resets it: the table is full, and that is counted.
  for (const auto& change : changes) {
    if (change.to == Stack::Flow::kClosed)
      steering.unsteer_later(change.interface, change.key);
    else if (change.to == Stack::Flow::kFinSent)
      steering.remove_from_helper(change.interface, change.key);
    else if (change.to == Stack::Flow::kResting)
      steering.enter_time_wait(change.interface, change.key);
    else if (change.to == Stack::Flow::kTakesAcks || change.to == Stack::Flow::kLeavesAcks)
      steering.take_acks(change.interface, change.key, change.to == Stack::Flow::kTakesAcks);
    else if (const auto steered = steer_connection(change.interface, change.key); steered)
      note_numbers(change.interface, change.key);
    else if (steered.is(EEXIST))
      worker.stack->tcp().end_handshake(
          change.key);  // another process was faster: its SYN came by another queue
  }
  changes.clear();
}

void Process::unsteer_closed() {
  steer_opened();  // what flush() closed
  steering.unsteer_closed();
}

void Process::notify_edges() {
  Pass pass{*this, pass_now()};
  while (StackSocket* socket = worker.stack->take_ready()) {
    const uint32_t edges = std::exchange(socket->edges, 0);
    if (socket->owner == nullptr) continue;
    worker.untold.add(socket->owner);
    above.notify(pass, socket->owner, edges);
  }
  if (channels && notify_channels(pass)) worker.untold.add_any();
  if (shm_links && notify_links(pass)) worker.untold.add_any();
}

bool Process::arm_ports() {
  bool quiet = worker.arm();
  for (const PortSlot& slot : slots)
    if (const PortLife* port = slot.life(); port && !port->alive()) housekeeping.needed();
  if (shm_links) quiet &= shm_links->arm();
  return quiet;
}

Instant Process::next_deadline() const {
  const Instant of_links = shm_links ? shm_links->next_deadline() : kNever;
  const Instant of_channels = channels ? channels->next_deadline() : kNever;
  return std::min({worker.stack->next_deadline(), of_channels, of_links});
}

Instant Process::next_poll(Instant now) const {
  const Instant due = next_deadline();
  return worker.tx_waiting() ? std::min(due, now + kRetryTransmit) : due;
}

Pass::Pass(Process& process, Polling polling) : engine_(process.engine), process_(process) {
  process.enter(polling, &now_);
}
Pass::Pass(Process& process, OverFork) : Pass(process, process.pass_now()) {}
Pass::Pass(Process& process, Instant now)
    : engine_(process.engine), process_(process), now_(now), lent_(true) {}
Pass::~Pass() {
  if (!lent_) process_.leave(in_turn_);
}
void Pass::in_turn(const void* sender) {
  in_turn_ = true;
  if (sender) Turns::answered(sender);
}
Stack& Pass::stack() { return *Process::of(*this).worker.stack; }

}  // namespace accel
