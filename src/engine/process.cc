// The way through a pass: enter, poll, the caller's work, flush, transmit, notify, leave.
#include "engine/process.h"

#include <time.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/cancellation.h"
#include "base/real.h"
#include "engine/tap.h"

namespace accel {
namespace {

constexpr size_t kBurst = 64;
/// Bursts of one port in one poll: then the caller's turn, whatever is still in the ring.
constexpr int kBurstsPerPoll = 4;
/// Polling again this soon finds nothing worth the look.
constexpr Duration kPollInterval = 1us, kSeldomInterval = 10us;
/// Frames that a port has not taken are offered again after this, when nothing else happens.
constexpr Duration kRetryTransmit = 100us;

/// Those that the device makes of it; 0: it goes as it is.
uint32_t segments(const Packet& frame, uint32_t size) {
  return frame.tso_size == 0 ? 0 : (size - frame.header_length + frame.tso_size - 1) / frame.tso_size;
}

/// For accel capture.
tap::Where tapped(const PortSlots& slots, InterfaceId id) ACCEL_REQUIRES(worker_lock) {
  const PortInfo* info = slots.info_of(id);
  return {info != nullptr ? static_cast<uint32_t>(info->ifindex) : 0,
          static_cast<uint8_t>(slots[id].opened.kind)};
}

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
  size_t tells = 0;
  if (std::exchange(worker.telling_deferred, false))
    for (InterfaceId id = 0; id < slots.count(); ++id)
      if (Port* port = slots[id].port(); port && port->begin_telling()) to_tell[tells++] = port;
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
    counters.add(Counter::broken_off);
  }
}

void Process::leave(bool in_turn) {
  try {
    if (std::exchange(worker.poll_at_end, false)) poll(pass_now());
    if (!in_turn || !stack->has_to_send() || !worker.turns.keep(pass_now())) {
      send(pass_now());
    } else {
      counters.add(Counter::passes_kept);
      housekeeping.frames_kept();
    }
    tell(pass_now());
  } catch (const std::bad_alloc&) {
    counters.add(Counter::broken_off);
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
  worker.last_poll = worker.pass_now = now;
  worker.cut_short = false;
  bool busy = false;
  for (InterfaceId id = 0; id < slots.count(); ++id) {
    Port* port = slots[id].port();
    if (!port) continue;
    int full = 0;
    for (; full < kBurstsPerPoll; ++full) {
      Packet* frames[kBurst];
      const size_t n = port->rx_burst(frames);
      if (n == 0) break;
      busy = true;
      if (tap::on()) tap::received({frames, n}, tapped(slots, id));
      stack->on_packets({frames, n}, id, now, sched_getcpu());
      if (n < kBurst) break;
      worker.crowded = true;
    }
    worker.cut_short |= full == kBurstsPerPoll;
  }
  if (stack->has_work(now)) {
    busy = true;
    if (stack->has_route_questions()) answer_route_questions(now);
    if (PacketQueue& frames = stack->frames_for_kernel(); !frames.empty()) give_to_kernel(frames);
    if (stack->next_deadline() <= now) stack->on_deadlines(now);
  }
  if (channels && channels->due(now)) channels->poll(now);  // a program may never wait
  if (shm_links) busy |= shm_links->look(sleepers.any_asleep());
  return busy;
}

bool Process::poll_all(Instant now) {
  const bool busy = poll(now);
  if (channels) channels->poll(now);
  const bool linked = shm_links && shm_links->poll(now, sleepers.any_asleep());
  return busy || channels || linked || tx_waiting();
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
  stack->flush(now);
  neighbours.resolve();
  for (InterfaceId id = 0; id < slots.count(); ++id)
    if (!stack->tx_queue(id).empty()) transmit(id);
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
  if (TcpNumbers* numbers = steering.numbers(id, key)) stack->tcp().note_numbers(key, numbers);
}

void Process::steer_opened() {
  auto& changes = stack->flow_changes();
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
      stack->tcp().end_handshake(change.key);  // another process was faster: its SYN came by another queue
  }
  changes.clear();
}

void Process::unsteer_closed() {
  steer_opened();  // what flush() closed
  steering.unsteer_closed();
}

void Process::notify_edges() {
  Pass pass{*this, pass_now()};
  while (StackSocket* socket = stack->take_ready()) {
    const uint32_t edges = std::exchange(socket->edges, 0);
    if (socket->owner == nullptr) continue;
    worker.untold.add(socket->owner);
    above.notify(pass, socket->owner, edges);
  }
  if (channels && notify_channels(pass)) worker.untold.add_any();
  if (shm_links && notify_links(pass)) worker.untold.add_any();
}

bool Process::bursts_pay() const {
  for (InterfaceId id = 0; id < slots.count(); ++id)
    if (const Port* port = slots[id].port(); port && port->info().told_by_call) return true;
  return false;
}

void Process::transmit(InterfaceId id) {
  PacketQueue& queue = stack->tx_queue(id);
  Port* port = slots.port_of(id);
  while (!queue.empty()) {
    Packet* burst[kBurst];
    size_t n = 0;
    uint64_t bytes = 0;
    while (n < kBurst && !queue.empty()) burst[n++] = queue.pop_front();
    if (!port) {  // the device is gone: retransmission finds another way, or the connection ends
      for (size_t i = 0; i < n; ++i) FramePool::release(burst[i]);
      continue;
    }
    uint32_t sizes[kBurst], cuts[kBurst];  // the port may release a frame at once
    for (size_t i = 0; i < n; ++i) {
      sizes[i] = burst[i]->total();
      cuts[i] = segments(*burst[i], sizes[i]);
    }
    const bool contended = sleepers.threads() > 1;
    worker.telling_deferred |= contended;
    port->defer_telling(contended);
    if (tap::on()) tap::sending({burst, n}, tapped(slots, id));
    const size_t taken = port->tx_burst({burst, n});
    if (tap::on()) tap::sent(taken);
    for (size_t i = 0; i < taken; ++i) {
      bytes += sizes[i];  // NOLINT: filled by the loop above
      if (cuts[i] == 0) continue;
      counters.add(Counter::tx_tso_frames);
      counters.add(Counter::tx_tso_segments, cuts[i]);
    }
    counters.add(Counter::tx_bursts);
    counters.add(Counter::tx_frames, taken);
    counters.add(Counter::tx_bytes, bytes);
    for (size_t i = n; i > taken; --i) queue.push_front(burst[i - 1]);
    if (taken < n) break;
  }
}

bool Process::arm_ports() {
  bool quiet = true;
  for (InterfaceId id = 0; id < slots.count(); ++id)
    if (Port* port = slots[id].port()) {
      quiet &= port->arm();
      if (!slots[id].life()->alive()) housekeeping.needed();
    }
  if (shm_links) quiet &= shm_links->arm();
  return quiet;
}

bool Process::tx_waiting() const {
  for (InterfaceId id = 0; id < slots.count(); ++id)
    if (!stack->tx_queue(id).empty()) return true;
  return false;
}

Instant Process::next_deadline() const {
  const Instant of_links = shm_links ? shm_links->next_deadline() : kNever;
  const Instant of_channels = channels ? channels->next_deadline() : kNever;
  return std::min({stack->next_deadline(), of_channels, of_links});
}

Instant Process::next_poll(Instant now) const {
  const Instant due = next_deadline();
  return tx_waiting() ? std::min(due, now + kRetryTransmit) : due;
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
Stack& Pass::stack() { return *Process::of(*this).stack; }

}  // namespace accel
