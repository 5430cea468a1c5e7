#include "xdp/socket_port.h"

#include <arpa/inet.h>
#include <linux/if_xdp.h>
#include <net/ethernet.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/bare_syscall.h"
#include "base/counters.h"
#include "xdp/netdev.h"

namespace accel::xdp {
namespace {

/// Refilling in batches keeps the ring's producer line from bouncing.
constexpr uint32_t kRefillBatch = 64;
/// Copy mode: the kernel writes into the buffers in turn, so those that no burst needs only push others out
/// of the caches. A queue has what the largest burst of its last so many frames took twice over, but
/// fill_least_ at least.
constexpr uint32_t kFillEpoch = 16384;

/// Buffers of the longest frame that is received: with fewer left for it one may have been dropped.
constexpr uint32_t kLargestFrame = 5;

/// More frames that its program passes show that a device's frames come by its hook.
constexpr uint64_t kOwnFrames = 16;

uint32_t consumed(const xsk_ring_prod& ring) { return __atomic_load_n(ring.consumer, __ATOMIC_ACQUIRE); }

bool is_drained(const xsk_ring_prod& ring) {
  return consumed(ring) == __atomic_load_n(ring.producer, __ATOMIC_ACQUIRE);
}

/// sendto() without data: has the kernel take what is in the transmit ring. Returns errno, 0 for none.
int look_at_ring(int fd) { return static_cast<int>(-bare_syscall(SYS_sendto, fd, 0, 0, MSG_DONTWAIT)); }

/// Of the sum of the two ports, so alike in both directions; 0 for frames without. Mixed (Knuth, TAOCP 6.4):
/// Linux gives connect() ephemeral ports of one parity, which would leave half of the queues without a flow.
uint32_t ports_hash(const Packet& frame) {
  const uint8_t* p = frame.data();
  uint32_t at = 12;
  auto type = [&] { return uint32_t{p[at]} << 8 | p[at + 1]; };
  if (frame.length < 14 + 4 + 20) return 0;
  if (type() == ETHERTYPE_VLAN) at += 4;
  const uint32_t ethertype = type();
  at += 2;
  if (ethertype == ETHERTYPE_IP)
    at += (p[at] & 0x0fu) * 4;
  else if (ethertype == ETHERTYPE_IPV6)
    at += 40;
  else
    return 0;
  if (at + 4 > frame.length) return 0;
  const uint32_t sum = (uint32_t{p[at]} << 8 | p[at + 1]) + (uint32_t{p[at + 2]} << 8 | p[at + 3]);
  return sum * 2654435769u >> 16;
}

}  // namespace

Packet* SocketPort::from_address(uint64_t address) {
  const auto index = frames_.first + static_cast<uint32_t>(address / umem_.buffer_size);
  lent_[index] = false;
  return pool_.at(index);
}

uint64_t SocketPort::address_of(const Packet& p) const {
  return uint64_t{p.index - frames_.first} * umem_.buffer_size;
}

// --- receiving ---

size_t SocketPort::rx_burst(std::span<Packet*> out) {
  size_t n = 0;
  if (queues_.empty()) return 0;
  take_back_untold();
  for (size_t i = 0; i < queues_.size() && n < out.size(); ++i) {
    Queue& queue = *queues_[(next_queue_ + i) % queues_.size()];
    n += receive(queue, out.subspan(n));
  }
  next_queue_ = (next_queue_ + 1) % queues_.size();
  if (n != 0) pool_.favour(frames_);
  received_ |= n != 0;
  for (auto& queue : queues_) {
    if (queue->filled + std::min(kRefillBatch, queue->fill_level) <= queue->fill_level) refill(*queue);
    if (queue->sent != 0) reclaim(*queue);
    if (queue->kick && !deferred_) tell_kernel(*queue);
  }
  return n;
}

size_t SocketPort::receive(Queue& queue, std::span<Packet*> out) {
  uint32_t at = 0;
  const uint32_t available = xsk_ring_cons__peek(&queue.rx, umem_.rings.rx, &at);
  queue.may_have_lost |= available == umem_.rings.rx || queue.filled - available < kLargestFrame;
  if (available == 0) {
    // Zero copy only: the driver ran out of buffers and waits to be told of new ones.
    if (xsk_ring_prod__needs_wakeup(&queue.fill) && info_.zero_copy)
      recvfrom(queue.fd, nullptr, 0, MSG_DONTWAIT, nullptr, nullptr);
    return 0;
  }
  size_t n = 0;
  uint32_t used = 0;
  while (used < available && n < out.size()) {
    const xdp_desc& descriptor = *xsk_ring_cons__rx_desc(&queue.rx, at + used++);
    Packet* p = from_address(descriptor.addr);
    p->offset = static_cast<uint32_t>(descriptor.addr % umem_.buffer_size);
    p->length = descriptor.len;
    if (pool_.available(frames_) < move_below_) p = move_out(p);
    (queue.chain ? queue.chain_end->more : queue.chain) = p;
    queue.chain_end = p;
    if (descriptor.options & XDP_PKT_CONTD) continue;
    out[n++] = queue.chain;
    queue.chain = nullptr;
  }
  if (used < available) xsk_ring_cons__cancel(&queue.rx, available - used);
  xsk_ring_cons__release(&queue.rx, used);
  queue.filled -= used;
  if (!info_.zero_copy) fit_fill_level(queue, available, used);
  return n;
}

/// Of a received frame that the stack may keep: the rings are to have the UMEM's buffers.
Packet* SocketPort::move_out(Packet* buffer) {
  Packet* copy = pool_.take_ordinary();
  if (!copy) return buffer;
  copy->offset = buffer->offset;
  copy->length = buffer->length;
  std::memcpy(copy->data(), buffer->data(), buffer->length);
  FramePool::release(buffer);
  return copy;
}

/// `waiting`: frames found in the ring, of which `used` were taken.
void SocketPort::fit_fill_level(Queue& queue, uint32_t waiting, uint32_t used) {
  queue.largest_burst = std::max(queue.largest_burst, waiting);
  if (waiting > queue.fill_level / 2) queue.fill_level = fill_target_;
  queue.epoch_frames += used;
  if (queue.epoch_frames < kFillEpoch) return;
  queue.fill_level = std::min(std::max(std::bit_ceil(2 * queue.largest_burst), fill_least_), fill_target_);
  queue.largest_burst = queue.epoch_frames = 0;
}

void SocketPort::refill(Queue& queue) {
  const uint32_t free = pool_.available(frames_);
  const uint32_t spare = free > reserve_ ? free - reserve_ : 0;
  if (queue.filled >= queue.fill_level) return;
  uint32_t n = std::min(queue.fill_level - queue.filled, spare);
  uint32_t at = 0;
  n = std::min(n, xsk_prod_nb_free(&queue.fill, n));
  if (n == 0) return;
  at = queue.fill.cached_prod;
  n = pool_.take_of(frames_, n, [&](const Packet* p) {
    lent_[p->index] = true;
    *xsk_ring_prod__fill_addr(&queue.fill, at++) = address_of(*p);
  });
  queue.fill.cached_prod += n;
  xsk_ring_prod__submit(&queue.fill, n);
  queue.filled += n;
}

bool SocketPort::arm() {
  take_back_untold();
  for (auto& queue : queues_) {
    refill(*queue);
    if (queue->kick && !deferred_) tell_kernel(*queue);
    if (xsk_cons_nb_avail(&queue->rx, 1) != 0 || (queue->kick && !deferred_)) return false;
  }
  // A device that is gone ends a sleep, and brings nothing.
  if (!std::exchange(received_, false)) check_device();
  return true;
}

// --- sending ---

Queue& SocketPort::tx_queue(const Packet& frame) {
  if (queues_.size() == 1) return *queues_.front();
  return *queues_[ports_hash(frame) % queues_.size()];
}

size_t SocketPort::tx_burst(std::span<Packet* const> frames) {
  if (!alive()) {
    // A dead device drops, as a pulled cable does; the engine moves the sockets to the kernel.
    tx_dropped_ += frames.size();
    for (Packet* p : frames) FramePool::release(p);
    return frames.size();
  }
  for (auto& queue : queues_)
    if (queue->sent != 0) reclaim(*queue);
  size_t taken = 0;
  while (taken < frames.size()) {
    Packet* frame = frames[taken];
    if (!(frame->tso_size ? put_for_cutting(frame) : put(tx_queue(*frame), frame))) break;
    ++taken;
  }
  deferred_ = deferring_;
  for (auto& queue : queues_)
    if (queue->kick && !deferred_) tell_kernel(*queue);
  return taken;
}

bool SocketPort::begin_telling() {
  if (!std::exchange(deferred_, false)) return false;
  bool any = false;
  for (auto& queue : queues_) any |= std::exchange(queue->kick, false);
  if (any) tellers_.fetch_add(1, std::memory_order_relaxed);
  return any;
}

bool SocketPort::tell() {
  bool all = true;
  // The kernel has a mutex there: who would sleep on it leaves it to its holder.
  if (telling_.exchange(kAgain, std::memory_order_acq_rel) == kNobody) {
    uint32_t expected;
    do {
      // Not a store, which could come behind the look at the ring: a mark made in between would be lost.
      telling_.exchange(kTelling, std::memory_order_acq_rel);
      all = true;
      for (auto& queue : queues_) all &= tell_kernel_unlocked(*queue);
      expected = kTelling;
    } while (!telling_.compare_exchange_strong(expected, kNobody, std::memory_order_acq_rel));
  }
  if (!all) untold_.store(true, std::memory_order_relaxed);
  tellers_.fetch_sub(1, std::memory_order_release);
  return all;
}

bool SocketPort::tell_kernel_unlocked(const Queue& queue) {
  for (uint32_t before = consumed(queue.tx); !is_drained(queue.tx);) {
    (void)look_at_ring(queue.fd);
    const uint32_t after = consumed(queue.tx);
    if (after == before) return false;
    before = after;
  }
  return true;
}

void SocketPort::take_back_untold() {
  if (!untold_.load(std::memory_order_relaxed) || !untold_.exchange(false, std::memory_order_relaxed)) return;
  for (auto& queue : queues_) queue->kick = !is_drained(queue->tx);
}

bool SocketPort::put(Queue& queue, Packet* frame) {
  uint32_t buffers = 0, outside = 0;
  for (const Packet* p = frame; p; p = p->more, ++buffers) outside += !frames_.has(*p);
  uint32_t at = 0;
  if (queue.sent + buffers > tx_limit_ || outside > pool_.available(frames_)) return false;
  if (xsk_prod_nb_free(&queue.tx, buffers) < buffers) return false;
  if (outside != 0 && !(frame = move_in(frame))) return false;
  (void)xsk_ring_prod__reserve(&queue.tx, buffers, &at);
  for (Packet* p = frame; p; ++at) {
    xdp_desc& descriptor = *xsk_ring_prod__tx_desc(&queue.tx, at);
    descriptor.addr = address_of(*p) + p->offset;
    descriptor.len = p->length;
    descriptor.options = p->more ? XDP_PKT_CONTD : 0;
    lent_[p->index] = true;
    // Buffers complete one by one.
    Packet* more = p->more;
    p->more = nullptr;
    p = more;
  }
  xsk_ring_prod__submit(&queue.tx, buffers);
  queue.sent += buffers;
  queue.kick = true;
  return true;
}

/// The frame with all its buffers in the UMEM; nullptr: not now.
Packet* SocketPort::move_in(Packet* frame) {
  Packet* copies = nullptr;
  uint32_t missing = 0;
  for (const Packet* p = frame; p; p = p->more) missing += !frames_.has(*p);
  missing -= pool_.take_of(frames_, missing, [&](Packet* copy) {
    copy->next = copies;
    copies = copy;
  });
  if (missing != 0) {
    while (copies) FramePool::release(std::exchange(copies, copies->next));
    return nullptr;
  }
  for (Packet** at = &frame; *at; at = &(*at)->more) {
    Packet* p = *at;
    if (frames_.has(*p)) continue;
    Packet* copy = std::exchange(copies, copies->next);
    copy->offset = p->offset;
    copy->length = p->length;
    std::memcpy(copy->data(), p->data(), p->length);
    *at = copy;
    copy->more = std::exchange(p->more, nullptr);
    FramePool::release(p);
  }
  return frame;
}

/// By the packet socket, behind the frames before it. False: not now.
bool SocketPort::put_for_cutting(Packet* frame) {
  for (auto& queue : queues_) {
    if (!is_drained(queue->tx)) tell_kernel(*queue);  // also when another thread is at it
    queue->kick = !is_drained(queue->tx);
    if (queue->kick) return false;
  }
  switch (segments_.send(*frame)) {
    case SegmentSocket::Outcome::kFull:
      return false;
    case SegmentSocket::Outcome::kRefused:
      info_.tso = false;
      [[fallthrough]];
    case SegmentSocket::Outcome::kDropped:
      ++tx_dropped_;
      break;
    case SegmentSocket::Outcome::kNoDevice:
      ++tx_dropped_;
      check_device();
      break;
    case SegmentSocket::Outcome::kSent:
      break;
  }
  FramePool::release(frame);
  return true;
}

void SocketPort::reclaim(Queue& queue) {
  uint32_t at = 0;
  const uint32_t n = xsk_ring_cons__peek(&queue.completion, umem_.rings.completion, &at);
  if (n == 0) return;
  for (uint32_t i = 0; i < n; ++i)
    FramePool::release(from_address(*xsk_ring_cons__comp_addr(&queue.completion, at + i)));
  xsk_ring_cons__release(&queue.completion, n);
  queue.sent -= n;
}

void SocketPort::tell_kernel(Queue& queue) {
  if (!xsk_ring_prod__needs_wakeup(&queue.tx)) {
    queue.kick = false;
    return;
  }
  // Copy mode sends at most 32 frames a call (xsk.c, __xsk_generic_xmit) and says EAGAIN for more, as it does
  // when it cannot go on: progress tells the two apart.
  for (;;) {
    const uint32_t before = consumed(queue.tx);
    const int error = look_at_ring(queue.fd);
    if (info_.zero_copy ? error == 0 : is_drained(queue.tx)) {
      queue.kick = false;
      return;
    }
    if (error == ENXIO || error == ENETDOWN) {
      // ENETDOWN: administratively down, the frames wait as in a driver's queue. ENXIO: unregistered.
      queue.kick = false;
      return check_device();
    }
    if (error != 0 && error != EAGAIN && error != EBUSY && error != ENOBUFS && error != EINTR)
      return check_device();
    if (consumed(queue.tx) == before) return;
  }
}

void SocketPort::check_device() {
  if (!failure_.empty()) return;
  for (const auto& queue : queues_) {
    int error = 0;
    socklen_t length = sizeof(error);
    // The kernel leaves ENETDOWN in the socket when the netdev is unregistered (xsk.c, xsk_notifier).
    if (getsockopt(queue->fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error != 0)
      failure_ = error == ENETDOWN ? "the netdev " + info_.name + " is gone"
                                   : "AF_XDP socket: " + std::string(std::strerror(error));
  }
}

// --- steering, statistics ---

Result<void> SocketPort::steer(const FlowKey& key) {
  if (!flows_) return err(EIO);
  return flows_->add(key, queue_ids_);
}

void SocketPort::unsteer(const FlowKey& key) {
  if (flows_) flows_->remove(key, queue_ids_);
}

void SocketPort::pause(const FlowKey& key) {
  if (flows_) flows_->remove(key, queue_ids_, ACCEL_REMOVE_ENTRY);
}

void SocketPort::take_acks(const FlowKey& key, bool on) {
  if (flows_) flows_->take_acks(key, queue_ids_, on);
}

void SocketPort::enter_time_wait(const FlowKey& key) {
  if (flows_) flows_->enter_time_wait(key, queue_ids_);
}

bool SocketPort::has_misdirected() {
  if (!flows_) return false;
  const uint64_t now = flows_->counter(ACCEL_XDP_DROPPED_OTHER_QUEUE);
  return std::exchange(misdirected_seen_, now) != now;
}

bool SocketPort::is_passed_by() {
  if (!may_be_passed_by_) return false;
  // In this order: a frame that comes in between counts as seen.
  const uint64_t received = frames_received(device_table_, info_.name).value_or(0) - received_before_;
  const uint64_t steered =
      flows_->counter(ACCEL_XDP_REDIRECTED) + flows_->counter(ACCEL_XDP_DROPPED_OTHER_QUEUE);
  const uint64_t passed = flows_->counter(ACCEL_XDP_PASSED) - passed_before_;
  if (steered != 0 || passed > kOwnFrames) {
    may_be_passed_by_ = false;
    device_table_ = {};
  }
  // The device at the other end sends a few itself, which no redirect brings (MLD, router solicitations).
  return may_be_passed_by_ && received > passed * (kOwnFrames + 1);
}

std::optional<MisdirectedSegment> SocketPort::misdirected(const FlowKey& key) const {
  return flows_ ? flows_->misdirected(key) : std::nullopt;
}

XdpStats SocketPort::stats() const {
  XdpStats stats = ring_stats();
  if (!flows_) return stats;
  stats.redirected = flows_->counter(ACCEL_XDP_REDIRECTED);
  stats.dropped_other_queue = flows_->counter(ACCEL_XDP_DROPPED_OTHER_QUEUE);
  return stats;
}

XdpStats SocketPort::ring_stats() const {
  XdpStats stats;
  for (const auto& queue : queues_) {
    xdp_statistics s{};
    socklen_t length = sizeof(s);
    if (getsockopt(queue->fd, SOL_XDP, XDP_STATISTICS, &s, &length) != 0) continue;
    stats.rx_dropped += s.rx_dropped;
    stats.rx_ring_full += s.rx_ring_full;
    stats.fill_ring_empty += s.rx_fill_ring_empty_descs;
    stats.tx_invalid += s.tx_invalid_descs;
  }
  return stats;
}

void SocketPort::count(Counters& to) {
  to.add(Counter::tx_dropped, std::exchange(tx_dropped_, 0));
  bool may_have_lost = false;
  for (auto& queue : queues_) may_have_lost |= std::exchange(queue->may_have_lost, false);
  if (!may_have_lost) return;
  const XdpStats now = ring_stats();
  const XdpStats before = std::exchange(counted_, now);
  to.add(Counter::xdp_rx_no_buffer, now.rx_dropped - before.rx_dropped);
  to.add(Counter::xdp_rx_ring_full, now.rx_ring_full - before.rx_ring_full);
}

}  // namespace accel::xdp
