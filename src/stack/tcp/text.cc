// Seventh and eighth: payload into the receive queue, out-of-order data, urgent data, FIN.
#include <algorithm>

#include "stack/tcp/context.h"

namespace accel::tcp {

constexpr uint32_t kHeapChunk = 16384;
constexpr uint32_t kKeptFrames = 8;  ///< a queue this short keeps frames whatever they hold
constexpr uint32_t kHeapMinimum = 512;

static uint32_t receive_buffer(const TcpContext& t, const TcpConn& c) {
  if (c.settings.receive_buffer) return c.settings.receive_buffer;
  // tcp_set_rcvlowat(); the window that is left there is a last segment's.
  return std::max(t.core.config.receive_buffer, c.settings.receive_low_water + 2u * c.own_mss);
}

uint32_t receive_step(const TcpContext& t, const TcpConn& c) {
  return std::min<uint32_t>(c.own_mss, receive_buffer(t, c) / 2);
}

uint32_t most_window(const TcpContext& t, const TcpConn& c) {
  const uint32_t buffer = receive_buffer(t, c);
  return c.settings.window_clamp ? std::min(buffer, c.settings.window_clamp) : buffer;
}

uint32_t receive_space(const TcpContext& t, const TcpConn& c) {
  uint32_t buffer = receive_buffer(t, c);
  uint32_t used = c.tcp_state == TcpState::kSynSent || c.tcp_state == TcpState::kSynReceived ? 0 : c.unread();
  uint32_t space = buffer > used ? buffer - used : 0;
  if (c.settings.window_clamp) space = std::min(space, c.settings.window_clamp);
  if (t.core.buffered >= t.core.config.max_buffered) space = std::min(space, used ? 0u : 4096u);
  return space;
}

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

/// The pool is short, or the frame would waste most of itself in a queue that grows, or there is a begun
/// chunk to fill: copy.
static bool should_copy(const TcpConn& c, const Packet& p, const Packet* tail) {
  const FramePool& pool = *p.pool;
  if (pool.available() < pool.size() / 4) return true;
  if (tail && !tail->pool && tail->tailroom() >= p.length) return true;
  return c.receive_held >= kKeptFrames && (p.length < p.capacity / 4 || c.receive_held > pool.size() / 8);
}

static void copy_tail(Packet& tail, const uint8_t* from, uint32_t n) {
  std::memcpy(tail.data() + tail.length, from, n);
  tail.length += n;
}

/// Appends one buffer to the receive queue; false: no memory.
static bool append(TcpConn& c, Packet* p) {
  Packet* tail = c.receive_queue.back();
  if (!p->pool || !should_copy(c, *p, tail)) {
    if (p->pool) ++c.receive_held;
    c.receive_queue.push_back(p);
    return true;
  }
  uint32_t fits = tail && !tail->pool ? std::min(tail->tailroom(), p->length) : 0;
  uint32_t rest = p->length - fits;
  Packet* chunk = nullptr;
  if (rest > 0) {
    chunk = heap_packet(std::max(rest, tail ? kHeapChunk : kHeapMinimum));
    if (!chunk) return false;
    chunk->seq = p->seq + fits;
  }
  if (fits > 0) copy_tail(*tail, p->data(), fits);
  if (chunk) {
    copy_tail(*chunk, p->data() + fits, rest);
    c.receive_queue.push_back(chunk);
  }
  FramePool::release(p);
  return true;
}

/// Appends a chain that begins at rcv_nxt.
static void append_in_order(TcpContext& t, TcpConn& c, Packet* chain) {
  while (chain) {
    Packet* more = chain->more;
    chain->more = nullptr;
    uint32_t length = chain->length;
    chain->seq = c.rcv_nxt;
    if (length == 0) {
      release_packet(chain);
    } else if (!append(c, chain)) {  // out of memory: as if the segment had been lost from here on
      t.count(Counter::drop_tcp_memory);
      release_packet(chain);
      if (more) FramePool::release(more);
      return;
    } else {
      c.rcv_nxt += length;
      c.rx_bytes += length;
      t.core.buffered += length;
      if (c.urgent_in && !c.urgent_valid && c.urgent_seq - (c.rcv_nxt - length) < length) {
        const Packet* tail = c.receive_queue.back();  // the byte lies in the queue now
        uint32_t at = c.urgent_seq;
        for (const Packet* q = c.receive_queue.front(); q; q = q->next)
          if (at - q->seq < q->length) tail = q;
        c.urgent_byte = tail->data()[at - tail->seq];
        c.urgent_valid = true;
        t.core.mark_ready(c, kUrgent);
      }
    }
    chain = more;
  }
}

/// RFC 2018 section 4: the block with the newest data first.
static void note_sack(TcpConn& c, SackBlock b) {
  uint8_t kept = 0;
  std::array<SackBlock, 4> rest{};
  for (uint8_t i = 0; i < c.sack_count; ++i) {
    const SackBlock& o = c.sack_blocks[i];
    if (seq_le(o.begin, b.end) && seq_le(b.begin, o.end)) {
      b.begin = seq_min(b.begin, o.begin);
      b.end = seq_max(b.end, o.end);
    } else {
      rest[kept++] = o;
    }
  }
  c.sack_blocks[0] = b;
  c.sack_count = 1;
  for (uint8_t i = 0; i < kept && c.sack_count < 4; ++i) c.sack_blocks[c.sack_count++] = rest[i];
}

static void trim_sack(TcpConn& c) {
  uint8_t kept = 0;
  for (uint8_t i = 0; i < c.sack_count; ++i)
    if (seq_gt(c.sack_blocks[i].begin, c.rcv_nxt)) c.sack_blocks[kept++] = c.sack_blocks[i];
  c.sack_count = kept;
}

static uint32_t memory_of(const Packet& p) { return p.capacity + static_cast<uint32_t>(sizeof(Packet)); }

static void note_dsack(TcpConn& c, uint32_t begin, uint32_t end) {
  if (!c.sack_ok || !seq_lt(begin, end) || c.dsack_due) return;
  c.dsack = {begin, end};
  c.dsack_due = true;
}

/// One buffer into the out-of-order queue, less what is there already.
static void insert_out_of_order(TcpContext& t, TcpConn& c, Packet* p) {
  Packet** at = &c.out_of_order;
  Packet* before = nullptr;
  if (c.out_of_order_last && seq_ge(p->seq, c.out_of_order_last->seq)) {
    before = c.out_of_order_last;
    at = &before->next;
  } else {
    while (*at && seq_le((*at)->seq, p->seq)) {
      before = *at;
      at = &before->next;
    }
  }
  if (before && seq_gt(before->seq + before->length, p->seq)) {
    uint32_t overlap = std::min(before->seq + before->length - p->seq, p->length);
    note_dsack(c, p->seq, p->seq + overlap);
    p->trim_front(overlap);
    p->seq += overlap;
  }
  while (p->length > 0 && *at && seq_gt(p->seq + p->length, (*at)->seq)) {
    Packet* next = *at;
    uint32_t overlap = std::min(p->seq + p->length - next->seq, next->length);
    note_dsack(c, next->seq, next->seq + overlap);
    if (seq_lt(p->seq + p->length, next->seq + next->length)) {
      p->length = next->seq - p->seq;  // its tail is there
      break;
    }
    *at = next->next;  // wholly covered by the new one
    if (c.out_of_order_last == next) c.out_of_order_last = before;
    c.out_of_order_bytes -= next->length;
    c.out_of_order_memory -= memory_of(*next);
    t.core.buffered -= next->length;
    release_packet(next);
  }
  if (p->length == 0) return release_packet(p);
  p->next = *at;
  *at = p;
  if (!p->next) c.out_of_order_last = p;
  c.out_of_order_bytes += p->length;
  c.out_of_order_memory += memory_of(*p);
  t.core.buffered += p->length;
}

/// A copy on the heap, when frames of the pool are scarce or mostly empty.
static Packet* to_heap(Packet* p) {
  const FramePool& pool = *p->pool;
  if (pool.available() >= pool.size() / 4 && p->length >= p->capacity / 4) return p;
  Packet* copy = heap_packet(p->length);
  if (copy) {
    std::memcpy(copy->data(), p->data(), p->length);
    copy->length = p->length;
  }
  FramePool::release(p);
  return copy;
}

static void take_out_of_order(TcpContext& t, TcpConn& c, uint32_t seq, uint32_t length, bool fin,
                              Packet* chain) {
  t.count(Counter::tcp_out_of_order);
  ++c.out_of_order_segments;
  bool full = c.out_of_order_memory > 2 * receive_buffer(t, c) + (64u << 10) ||
              t.core.buffered >= t.core.config.max_buffered;
  if (full) {
    t.count(Counter::drop_tcp_memory);
    return FramePool::release(chain);
  }
  uint32_t at = seq;
  while (chain) {
    Packet* more = chain->more;
    chain->more = nullptr;
    uint32_t n = chain->length;
    Packet* p = n > 0 ? to_heap(chain) : chain;
    if (!p || n == 0) {
      if (n == 0) FramePool::release(chain);
      if (n > 0) {  // no memory: what comes behind would make a hole inside the block
        FramePool::release(more);
        length = at - seq;
        fin = false;
        break;
      }
    } else {
      p->seq = at;
      insert_out_of_order(t, c, p);
    }
    at += n;
    chain = more;
  }
  if (length > 0 && c.sack_ok) note_sack(c, {seq, seq + length + (fin ? 1 : 0)});
}

/// What follows rcv_nxt without a gap moves over.
static void drain_out_of_order(TcpContext& t, TcpConn& c) {
  while (Packet* p = c.out_of_order) {
    if (seq_gt(p->seq, c.rcv_nxt)) break;
    c.out_of_order = p->next;
    p->next = nullptr;
    c.out_of_order_bytes -= p->length;
    c.out_of_order_memory -= memory_of(*p);
    t.core.buffered -= p->length;
    uint32_t overlap = std::min(c.rcv_nxt - p->seq, p->length);
    note_dsack(c, p->seq, p->seq + overlap);
    p->trim_front(overlap);
    append_in_order(t, c, p);
  }
  if (!c.out_of_order) c.out_of_order_last = nullptr;
  trim_sack(c);
}

void take_text(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s, Packet* frame, Instant now) {
  uint32_t seq = s.seq, length = s.payload_length, offset = s.payload_offset;
  ++c.data_segments_in;
  c.last_received = now;
  if (seq_lt(seq, c.rcv_nxt)) {
    uint32_t old = std::min(c.rcv_nxt - seq, length);
    if (old == length && c.sack_ok) rehash_if_resent_again(t, c, seq);
    note_dsack(c, seq, seq + old);
    owe_ack(t, c, true, now);
    c.quick_acks = kQuickAcks;
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
  if (s.payload_length >= c.rcv_mss)
    c.rcv_mss = static_cast<uint16_t>(std::min<uint32_t>(s.payload_length, c.own_mss));
  if (t.core.buffered >= t.core.config.max_buffered && c.unread() > 0) {
    owe_ack(t, c, true, now);
    return t.core.drop(frame, Counter::drop_tcp_memory);
  }
  Packet* payload = keep_payload(frame, offset, length);
  if (seq != c.rcv_nxt) {
    const bool fin = (s.flags & kFin) && seq + length == s.seq + s.payload_length;
    take_out_of_order(t, c, seq, length, fin, payload);
    c.quick_acks = kQuickAcks;
    owe_ack(t, c, true, now);  // RFC 5681 section 4.2
    return;
  }
  bool filled_gap = c.out_of_order != nullptr;
  append_in_order(t, c, payload);
  if (filled_gap) drain_out_of_order(t, c);
  if (s.payload_length < c.rcv_mss || (s.flags & kPsh)) c.pushed = true;
  owe_ack(t, c, filled_gap, now);
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
    --t.core.buffered;
    if (p->length == 0) {
      c.receive_queue.pop_front();
      if (p->pool) --c.receive_held;
      release_packet(p);
    }
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
  while (Packet* p = c.out_of_order) {  // beyond the FIN: cannot be
    c.out_of_order = p->next;
    t.core.buffered -= p->length;
    release_packet(p);
  }
  c.out_of_order_last = nullptr;
  c.out_of_order_bytes = c.out_of_order_memory = 0;
  c.sack_count = 0;
  const bool answered = c.tcp_state == TcpState::kSynReceived || c.tcp_state == TcpState::kEstablished;
  c.pingpong |= answered;  // our FIN is likely to follow, and the ACK with it: tcp_fin()
  owe_ack(t, c, !answered, now);
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
