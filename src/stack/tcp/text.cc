// Seventh and eighth: payload into the receive queue, out-of-order data, urgent data, FIN.
#include <algorithm>
#include <new>
#include <utility>

#include "stack/tcp/context.h"

namespace accel::tcp {

constexpr uint32_t kHeapChunk = 16384;
constexpr uint32_t kKeptFrames = 8;  ///< a queue this short keeps frames whatever they hold
constexpr uint32_t kHeapMinimum = 512;

/// Leaves only the payload [offset, offset + length) of a frame's chain.
static Packet* keep_payload(Packet* p, uint32_t offset, uint32_t length) {
  while (offset >= p->length && p->more) {
    Packet* more = p->more;
    offset -= p->length;
    p->more = nullptr;
    FramePool::release(p);
    p = more;
  }
  p->trim_front(offset);
  uint32_t left = length;
  for (Packet* part = p; part; part = part->more) {
    if (part->length >= left) {
      part->length = left;
      FramePool::release(part->more);
      part->more = nullptr;
      break;
    }
    left -= part->length;
  }
  return p;
}

/// Whether a frame's bytes move into plain memory: frames of the pool are short, the queue's true size is
/// beyond what its window stands for, most of the frame would be waste, or there is a begun chunk to fill. So
/// a queue's true size is at most thrice its window, and what was advertised is always taken.
static bool should_copy(const TcpConn& c, const Packet& p) {
  const FramePool& pool = *p.pool;
  if (pool.available() < pool.size() / 4) return true;
  const Packet* tail = c.receive_queue.back();
  if (tail && !tail->pool && tail->tailroom() >= p.length) return true;
  const uint32_t memory = c.receive_memory + memory_of(p);
  if (memory <= kKeptFrames * memory_of(p)) return false;
  const uint64_t most =
      std::min(2 * uint64_t{receive_buffer(c)}, uint64_t{pool.size() / 8} * pool.buffer_size());
  return p.length < p.capacity / 4 || memory > most;
}

/// Appends a copy of `text` at `seq`, first into what room the last chunk has; false: no memory.
static bool append_copy(TcpContext& t, TcpConn& c, uint32_t seq, std::span<const uint8_t> text) {
  Packet* tail = c.receive_queue.back();
  const size_t fits = tail && !tail->pool ? std::min<size_t>(tail->tailroom(), text.size()) : 0;
  const auto rest = text.subspan(fits);
  Packet* chunk = nullptr;
  if (!rest.empty()) {
    const bool room = tail && !t.core.tcp_memory.under_pressure();
    chunk = heap_packet(std::max(static_cast<uint32_t>(rest.size()), room ? kHeapChunk : kHeapMinimum));
    if (!chunk) return false;
    chunk->seq = seq + static_cast<uint32_t>(fits);
    std::memcpy(chunk->data(), rest.data(), rest.size());
    chunk->length = static_cast<uint32_t>(rest.size());
  }
  if (fits > 0) {
    std::memcpy(tail->data() + tail->length, text.data(), fits);
    tail->length += static_cast<uint32_t>(fits);
  }
  if (chunk) push_received(t, c, chunk);
  return true;
}

/// `n` bytes have joined the receive queue.
static void note_received(TcpContext& t, TcpConn& c, uint32_t n) {
  c.rcv_nxt += n;
  c.rx_bytes += n;
  if (!c.urgent_in || c.urgent_valid || c.urgent_seq - (c.rcv_nxt - n) >= n) return;
  const Packet* tail = c.receive_queue.back();  // the byte lies in the queue now
  const uint32_t at = c.urgent_seq;
  for (const Packet* q = c.receive_queue.front(); q; q = q->next)
    if (at - q->seq < q->length) tail = q;
  c.urgent_byte = tail->data()[at - tail->seq];
  c.urgent_valid = true;
  t.core.mark_ready(c, kUrgent);
}

/// Appends a chain that begins at rcv_nxt.
static void append_in_order(TcpContext& t, TcpConn& c, Packet* chain) {
  while (chain) {
    Packet* more = chain->more;
    chain->more = nullptr;
    const uint32_t length = chain->length;
    chain->seq = c.rcv_nxt;
    if (length == 0) {
      FramePool::release(chain);
    } else {
      if (!should_copy(c, *chain)) {
        push_received(t, c, chain);
      } else if (append_copy(t, c, chain->seq, chain->bytes())) {
        FramePool::release(chain);
      } else {  // as if the segment had been lost from here on
        t.count(Counter::drop_tcp_memory);
        FramePool::release(chain);
        FramePool::release(more);
        return;
      }
      note_received(t, c, length);
    }
    chain = more;
  }
}

/// RFC 2018 section 4: the block with the newest data first.
static void note_sack(TcpConn& c, SackBlock b) {
  uint8_t kept = 0;
  std::array<SackBlock, 4>& blocks = c.out_of_order->sack_blocks;
  std::array<SackBlock, 4> rest{};
  for (uint8_t i = 0; i < c.sack_count; ++i) {
    const SackBlock& o = blocks[i];
    if (seq_le(o.begin, b.end) && seq_le(b.begin, o.end)) {
      b.begin = seq_min(b.begin, o.begin);
      b.end = seq_max(b.end, o.end);
    } else {
      rest[kept++] = o;
    }
  }
  blocks[0] = b;
  c.sack_count = 1;
  for (uint8_t i = 0; i < kept && c.sack_count < 4; ++i) blocks[c.sack_count++] = rest[i];
}

/// Leaves of the blocks what lies within (rcv_nxt, end).
static void trim_sack(TcpConn& c, uint32_t end) {
  uint8_t kept = 0;
  std::array<SackBlock, 4>& blocks = c.out_of_order->sack_blocks;
  for (uint8_t i = 0; i < c.sack_count; ++i) {
    SackBlock b = blocks[i];
    if (!seq_gt(b.begin, c.rcv_nxt) || !seq_lt(b.begin, end)) continue;
    b.end = seq_min(b.end, end);
    blocks[kept++] = b;
  }
  c.sack_count = kept;
}

static void note_dsack(TcpConn& c, uint32_t begin, uint32_t end) {
  if (!c.sack_ok || !seq_lt(begin, end) || c.dsack_due) return;
  c.dsack = {begin, end};
  c.dsack_due = true;
}

void forget_out_of_order(TcpConn& c) {
  delete std::exchange(c.out_of_order, nullptr);
  c.sack_count = 0;
}

/// Whether the connection may hold `more` bytes of true size. Its own out-of-order text makes way first, from
/// the top (tcp_prune_ofo_queue()), down to `keep`: the peer still has it.
static bool find_memory(TcpContext& t, TcpConn& c, uint32_t more, uint32_t keep) {
  const StackConfig& config = t.core.config;
  auto allowed = [&] {
    return t.core.tcp_memory.allows(c.receive_held(), more, config.tcp_receive_least, t.connections);
  };
  if (allowed()) return true;
  OutOfOrder* o = c.out_of_order;
  while (o && !o->empty() && seq_gt(o->top(), keep) && !allowed()) {
    t.count(Counter::tcp_out_of_order_pruned);
    o->drop_top();
  }
  if (o && o->empty())
    forget_out_of_order(c);
  else if (o)
    trim_sack(c, o->top());
  return allowed();
}

/// tcp_collapse(): the receive queue anew in chunks that are full, where frames hold little.
static void collapse_receive_queue(TcpContext& t, TcpConn& c) {
  if (c.receive_memory <= c.unread() + c.unread() / 2 + memory_of(*c.receive_queue.front())) return;
  t.count(Counter::tcp_receive_collapsed);
  const uint16_t look = c.receive_queue.front()->look;
  PacketQueue old = std::exchange(c.receive_queue, {});
  t.core.tcp_memory.release(std::exchange(c.receive_memory, 0));
  bool copied = true;
  while (Packet* p = old.pop_front()) {
    copied = copied && append_copy(t, c, p->seq, p->bytes());
    if (copied)
      release_packet(p);
    else
      push_received(t, c, p);
  }
  if (Packet* oldest = c.receive_queue.front()) oldest->look = look;
}

static void take_out_of_order(TcpContext& t, TcpConn& c, uint32_t seq, uint32_t length, bool fin,
                              Packet* chain) {
  t.count(Counter::tcp_out_of_order);
  ++c.out_of_order_segments;
  if (!c.out_of_order) c.out_of_order = new (std::nothrow) OutOfOrder(t.core.tcp_memory, c.rcv_nxt);
  OutOfOrder* o = c.out_of_order;
  const bool room = o && find_memory(t, c, o->cost(seq, seq + length), seq + length);
  o = c.out_of_order;  // it may have been pruned away
  uint32_t at = seq;
  if (room && o) {
    const SackBlock twice = o->present_in(seq, seq + length);
    note_dsack(c, twice.begin, twice.end);
    for (const Packet* p = chain; p && o->insert(at, p->bytes()); p = p->more) at += p->length;
  }
  FramePool::release(chain);
  if (at != seq + length) t.count(Counter::drop_tcp_memory);
  if (o && o->empty()) forget_out_of_order(c);
  if (at == seq) return;
  make_room_behind_gap(t, c);
  if (!c.sack_ok) return;
  fin = fin && at == seq + length;
  SackBlock run = c.out_of_order->run_of(seq, at);
  if (fin) run.end = at + 1;
  note_sack(c, run);
}

/// What follows rcv_nxt without a gap moves over. `from`: rcv_nxt before text came in order.
static void drain_out_of_order(TcpContext& t, TcpConn& c, uint32_t from) {
  OutOfOrder& o = *c.out_of_order;
  const SackBlock twice = o.present_in(from, c.rcv_nxt);
  note_dsack(c, twice.begin, twice.end);
  o.advance(c.rcv_nxt);
  for (auto text = o.front(); !text.empty(); text = o.front()) {
    const auto n = static_cast<uint32_t>(text.size());
    if (Packet* block = o.detach_front()) {
      push_received(t, c, block);
    } else if (append_copy(t, c, c.rcv_nxt, text)) {
      o.advance(c.rcv_nxt + n);
    } else {
      t.count(Counter::drop_tcp_memory);
      return forget_out_of_order(c);
    }
    note_received(t, c, n);
  }
  if (o.empty() && !c.fin_early) return forget_out_of_order(c);
  trim_sack(c, c.rcv_edge + 1);
}

void take_fin_behind_gap(TcpContext& t, TcpConn& c, uint32_t seq, bool alone) {
  const bool again = c.fin_early && c.fin_early_seq == seq;
  c.fin_early = true;
  c.fin_early_seq = seq;
  if (!alone || !c.sack_ok) return;
  if (again) note_dsack(c, seq, seq + 1);
  if (!c.out_of_order) c.out_of_order = new (std::nothrow) OutOfOrder(t.core.tcp_memory, c.rcv_nxt);
  if (c.out_of_order) note_sack(c, {seq, seq + 1});
}

/// tcp_try_rmem_schedule() for text that is next: true: it may be kept. An empty queue takes it in any case.
static bool find_memory_in_order(TcpContext& t, TcpConn& c, const Packet& frame) {
  if (!t.core.tcp_memory.under_pressure() || c.receive_queue.empty()) return true;
  const uint32_t more = memory_of(frame);
  if (find_memory(t, c, more, c.rcv_nxt)) return true;
  collapse_receive_queue(t, c);
  return find_memory(t, c, more, c.rcv_nxt);
}

/// Our FIN is likely to follow the peer's, and the ACK goes with it: tcp_fin().
static bool answers_fin(const TcpConn& c) {
  return c.tcp_state == TcpState::kSynReceived || c.tcp_state == TcpState::kEstablished;
}

void take_text(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s, const TcpOptions& o, Packet* frame,
               Instant now) {
  uint32_t seq = s.seq, length = s.payload_length, offset = s.payload_offset;
  c.data_segments_in += s.segments;
  note_text_arrived(t, c, now);
  if (c.ecn & kEcnOk) take_marks(t, c, s);
  measure_receive_rtt(c, s, o, now);
  if (seq_lt(seq, c.rcv_nxt)) {
    uint32_t old = std::min(c.rcv_nxt - seq, length);
    if (old == length && c.sack_ok) rehash_if_resent_again(t, c, seq);
    if (c.dsack_due) send_ack(t, c, now);  // each duplicate is told of (RFC 2883 section 4)
    note_dsack(c, seq, seq + old);
    owe_ack(t, c, true, now);
    enter_quick_acks(t, c);
    seq += old;
    offset += old;
    length -= old;
    if (length == 0) return t.core.drop(frame, Counter::drop_tcp_old);
  }
  uint32_t room = seq_gt(c.rcv_edge, seq) ? c.rcv_edge - seq : 0;
  if (room == 0) {
    owe_ack(t, c, true, now);
    return t.core.drop(frame, Counter::drop_tcp_beyond_window);
  }
  length = std::min(length, room);
  if (s.segment_length >= c.rcv_mss)
    c.rcv_mss = static_cast<uint16_t>(std::min<uint32_t>(s.segment_length, c.own_mss));
  if (seq == c.rcv_nxt && !find_memory_in_order(t, c, *frame)) {
    owe_ack(t, c, true, now);
    return t.core.drop(frame, Counter::drop_tcp_memory);
  }
  Packet* payload = keep_payload(frame, offset, length);
  if (seq != c.rcv_nxt) {
    const bool fin = (s.flags & kFin) && seq + length == s.seq + s.payload_length;
    const uint8_t blocks = c.sack_count;
    const bool extends = c.sack_count > 0 && c.out_of_order->sack_blocks[0].end == seq;
    take_out_of_order(t, c, seq, length, fin, payload);
    ack_out_of_order(t, c, extends && c.sack_count > 0 && c.sack_count == blocks, now);
    return;
  }
  bool filled_gap = c.out_of_order != nullptr;
  append_in_order(t, c, payload);
  if (filled_gap) drain_out_of_order(t, c, seq);
  if (s.segment_length < c.rcv_mss || (s.flags & kPsh)) c.pushed = true;
  if ((s.flags & kFin) && c.rcv_nxt == s.seq + s.payload_length && answers_fin(c)) c.pingpong = true;
  ack_in_order(t, c, filled_gap, now);
  if (has_for_reader(t, c, c.settings.receive_low_water)) t.core.mark_ready(c, kReadable);
}

/// Linux' tcp_check_urg(): the pointer is BSD's, one past the urgent byte.
void take_urgent(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s) {
  if (s.urgent == 0 || c.fin_received) return;
  uint32_t at = s.seq + s.urgent - 1;
  if (seq_gt(c.copied_seq, at) || seq_lt(at, c.rcv_nxt)) return;  // read or received already
  if (c.urgent_in && !seq_gt(at, c.urgent_seq)) return;
  // An older urgent byte at the mark, taken or not, stays in the stream only with SO_OOBINLINE (Linux drops
  // it as well).
  if (c.urgent_in && c.urgent_seq == c.copied_seq && !c.settings.oob_inline && c.unread() > 0) {
    Packet* p = c.receive_queue.front();
    p->trim_front(1);
    ++p->seq;
    ++c.copied_seq;
    if (p->length == 0) pop_received(t, c);
  }
  c.urgent_in = true;
  c.urgent_valid = false;
  c.urgent_seq = at;
  t.core.mark_ready(c, kUrgent);
}

void take_fin(TcpContext& t, TcpConn& c, Instant now) {
  c.fin_received = true;
  c.rcv_nxt += 1;
  c.rcv_edge = seq_max(c.rcv_edge, c.rcv_nxt);
  c.read_shut = true;
  forget_out_of_order(c);  // beyond the FIN: cannot be
  const bool answered = answers_fin(c);
  c.pingpong |= answered;
  owe_ack(t, c, !answered, now);  // at once where no text has come
  switch (c.tcp_state) {
    case TcpState::kSynReceived:
    case TcpState::kEstablished:
      c.tcp_state = TcpState::kCloseWait;
      break;
    case TcpState::kFinWait1:
      c.tcp_state = TcpState::kClosing;
      break;  // our FIN is not acknowledged yet
    case TcpState::kFinWait2:
      enter_time_wait(t, c, now);
      return;
    default:
      return;
  }
  t.core.mark_ready(c, kReadable | kReadClosed | (c.fin_queued ? kHangUp : 0u));
}

}  // namespace accel::tcp
