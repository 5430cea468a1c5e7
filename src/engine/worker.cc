// A worker's frames: from its ports to its stack, and back.
#include "engine/worker.h"

#include <sched.h>

#include "engine/tap.h"

namespace accel {
namespace {

constexpr size_t kBurst = 64;
/// Bursts of one port in one poll: then the caller's turn, whatever is still in the ring.
constexpr int kBurstsPerPoll = 4;
/// The part of the frames' memory that the program may hold in leases: sockets keep frames as long as half of
/// the pool is free, and a port moves frames out of a part that runs short.
constexpr size_t kLentShare = 8;

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

Result<void> Worker::start(size_t frames, uint32_t size, bool huge_pages, const StackConfig& config) {
  if (auto r = region.map(frames * size, huge_pages); !r) return r;
  pool = std::make_unique<FramePool>(region.bytes(), size);
  stack = std::make_unique<Stack>(config, *pool, counters);
  leases.set_most(frames * size / kLentShare);
  return {};
}

bool Worker::receive(Instant now) {
  last_poll = pass_now = now;
  cut_short = false;
  bool busy = false;
  for (InterfaceId id = 0; id < slots_.count(); ++id) {
    Port* port = slots_[id].port();
    if (!port) continue;
    int full = 0;
    for (; full < kBurstsPerPoll; ++full) {
      Packet* frames[kBurst];
      const size_t n = port->rx_burst(frames);
      if (n == 0) break;
      busy = true;
      if (tap::on()) tap::received({frames, n}, tapped(slots_, id));
      stack->on_packets({frames, n}, id, now, sched_getcpu());
      if (n < kBurst) break;
      crowded = true;
    }
    cut_short |= full == kBurstsPerPoll;
  }
  return busy;
}

void Worker::transmit(bool contended) {
  for (InterfaceId id = 0; id < slots_.count(); ++id)
    if (!stack->tx_queue(id).empty()) transmit(id, contended);
}

void Worker::transmit(InterfaceId id, bool contended) {
  PacketQueue& queue = stack->tx_queue(id);
  Port* port = slots_.port_of(id);
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
    telling_deferred |= contended;
    port->defer_telling(contended);
    if (tap::on()) tap::sending({burst, n}, tapped(slots_, id));
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

bool Worker::tx_waiting() const {
  for (InterfaceId id = 0; id < slots_.count(); ++id)
    if (!stack->tx_queue(id).empty()) return true;
  return false;
}

size_t Worker::begin_telling(std::array<Port*, kMaxInterfaces>& ports) {
  size_t count = 0;
  for (InterfaceId id = 0; id < slots_.count(); ++id)
    if (Port* port = slots_[id].port(); port && port->begin_telling()) ports[count++] = port;
  telling_deferred = false;
  return count;
}

bool Worker::arm() {
  bool quiet = true;
  for (InterfaceId id = 0; id < slots_.count(); ++id)
    if (Port* port = slots_[id].port()) quiet &= port->arm();
  return quiet;
}

bool Worker::bursts_pay() const {
  for (InterfaceId id = 0; id < slots_.count(); ++id)
    if (const Port* port = slots_[id].port(); port && port->info().told_by_call) return true;
  return false;
}

bool Worker::is_open(const TcpConn& conn) const {
  using enum TcpState;
  const TcpState state = stack->tcp().state(conn);
  for (const TcpState passing : {kSynSent, kSynReceived, kTimeWait, kClosed})
    if (state == passing) return false;
  return true;
}

}  // namespace accel
