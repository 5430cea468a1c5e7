// The table of tuples, and how connections begin and end.
#include <algorithm>

#include "stack/tcp/context.h"

namespace accel::tcp {

static void grow(TcpContext& t) {
  std::vector<TcpEntry*> bigger(t.buckets.size() * 2);
  for (TcpEntry* e : t.buckets)
    while (e) {
      TcpEntry* next = e->hash_next;
      TcpEntry*& head = bigger[e->hash & (bigger.size() - 1)];
      e->hash_next = head;
      head = e;
      e = next;
    }
  t.buckets = std::move(bigger);
}

void insert(TcpContext& t, TcpEntry& e) {
  if (t.entries >= t.buckets.size()) grow(t);
  e.hash = hash_of(t, e.local, e.remote);
  TcpEntry*& head = t.buckets[e.hash & (t.buckets.size() - 1)];
  e.hash_next = head;
  head = &e;
  e.hashed = true;
  ++t.entries;
  ++t.ports[e.local.port];
}

void remove(TcpContext& t, TcpEntry& e) {
  if (!e.hashed) return;
  TcpEntry** at = &t.buckets[e.hash & (t.buckets.size() - 1)];
  while (*at != &e) at = &(*at)->hash_next;
  *at = e.hash_next;
  e.hash_next = nullptr;
  e.hashed = false;
  --t.entries;
  auto port = t.ports.find(e.local.port);
  if (port != t.ports.end() && --port->second == 0) t.ports.erase(port);
}

TcpConn* create(TcpContext& t) {
  if (t.connections >= t.core.config.max_connections) return nullptr;
  auto* c = new (std::nothrow) TcpConn;
  if (!c) return nullptr;
  ++t.connections;
  c->receive_limit = first_receive_buffer(t);
  c->all_next = t.all_head;
  if (t.all_head) t.all_head->all_prev = c;
  t.all_head = c;
  return c;
}

void announce_closed(TcpContext& t, const TcpEntry& e, InterfaceId interface) {
  t.core.flow_changes.push_back({{Protocol::kTcp, e.local, e.remote}, interface, FlowEvent::kClosed});
}

static void detach(TcpContext& t, TcpConn& c) {
  if (c.fast_open != 0) {
    end_fast_open(t, c, t.core.now);
    c.fast_open &= kFastOpenTaken | kFastOpenChild;
  }
  clear_timers(t, c);
  unlist_pending(t, c);
  unlink_embryo(c);
  remove(t, c);
  c.handshake_due = c.ack_now = false;
}

void destroy(TcpContext& t, TcpConn& c) {
  if (c.hashed) announce_closed(t, c, c.interface);
  detach(t, c);
  t.core.unlist(c);
  c.owner = nullptr;
  if (&c == t.current) {
    c.tcp_state = TcpState::kClosed;
    c.deferred_free = true;
    return;
  }
  purge_send(t, c);
  purge_receive(t, c);
  if (c.orphan) --t.orphans;
  if (c.all_prev)
    c.all_prev->all_next = c.all_next;
  else
    t.all_head = c.all_next;
  if (c.all_next) c.all_next->all_prev = c.all_prev;
  --t.connections;
  delete &c;
}

void finish(TcpContext& t, TcpConn& c) {
  if (c.hashed) announce_closed(t, c, c.interface);
  detach(t, c);
  if (c.tcp_state == TcpState::kSynSent) {
    c.left_unacked = 1;
  } else if (c.tcp_state != TcpState::kClosed) {
    c.left_unacked = c.write_seq() - c.snd_una;
    c.left_unsent = c.write_seq() - c.snd_nxt;
  }
  purge_send(t, c);
  c.tcp_state = TcpState::kClosed;
  c.read_shut = true;
  c.fin_queued = true;
  if (!c.held && !c.queued) {
    destroy(t, c);
    return;
  }
  t.core.mark_ready(c, kReadable | kWritable | kReadClosed | kHangUp | (c.error ? kError : 0u));
}

void fail(TcpContext& t, TcpConn& c, int error) {
  c.error = static_cast<int16_t>(error);
  finish(t, c);
}

void enter_time_wait(TcpContext& t, TcpConn& c, Instant now) {
  // Like Linux' tcp_time_wait(): too many of them, or no memory, and the tuple is simply free.
  TcpTimeWait* w = t.time_waits < t.core.config.max_time_waits ? new (std::nothrow) TcpTimeWait : nullptr;
  if (w) {
    w->kind = TcpEntry::Kind::kTimeWait;
    w->local = c.local;
    w->remote = c.remote;
    w->hop = c.hop;
    w->interface = c.interface;
    w->timestamps = c.timestamps_ok;
    w->reuse_address = c.settings.reuse_address;
    const HeaderFields fields = header_fields(t, c);
    w->tos = fields.tos;
    w->ttl = fields.ttl;
    w->flow_label = fields.flow_label;
    w->snd_nxt = c.snd_nxt;
    w->rcv_nxt = c.rcv_nxt;
    uint32_t window = std::min<uint32_t>((c.rcv_edge - c.rcv_nxt) >> c.rcv_wscale, 65535);
    w->window = static_cast<uint16_t>(window);
    w->ts_recent = c.ts_recent;
    w->ts_offset = c.ts_offset;
    w->entered = now;
    w->deadline = now + t.core.config.time_wait;
    // Linux' answers are a control socket's, which has no IPV6_AUTOFLOWLABEL of its own: but for the first
    // where the connection was not an orphan in FIN-WAIT-2, which it keeps as a TIME-WAIT already.
    const bool first_is_own = c.held || c.tcp_state != TcpState::kFinWait2;
    if (c.ack_now && first_is_own) answer_time_wait(t, *w, now);
    if (c.settings.flow_label == kNoFlowLabel)
      w->flow_label = t.core.flow_label(t.core.default_flow_label(), c.flow_hash);
    if (c.ack_now && !first_is_own) answer_time_wait(t, *w, now);
    remove(t, c);
    insert(t, *w);
    ++t.time_waits;
    t.wheel.arm(w->timer, w->deadline);
    t.core.flow_changes.push_back({{Protocol::kTcp, w->local, w->remote}, w->interface, FlowEvent::kResting});
  } else if (c.ack_now) {
    send_ack(t, c, now);
  }
  c.ack_now = false;
  finish(t, c);
}

void destroy_time_wait(TcpContext& t, TcpTimeWait& w, bool announce) {
  t.wheel.cancel(w.timer);
  if (announce) announce_closed(t, w, w.interface);
  remove(t, w);
  --t.time_waits;
  delete &w;
}

Packet* heap_packet(uint32_t capacity) {
  void* memory = ::operator new(sizeof(Packet) + capacity, std::nothrow);
  if (!memory) return nullptr;
  auto* p = new (memory) Packet;
  p->buffer = reinterpret_cast<uint8_t*>(p + 1);
  p->capacity = capacity;
  return p;
}

void release_packet(Packet* p) {
  if (p->pool)
    FramePool::release(p);
  else
    ::operator delete(p);
}

void purge_receive(TcpContext& t, TcpConn& c) {
  while (!c.receive_queue.empty()) pop_received(t, c);
  forget_out_of_order(c);
  c.copied_seq = c.rcv_nxt - (c.fin_received ? 1 : 0);
}

void purge_send(TcpContext& t, TcpConn& c) {
  note_busy(c, Busy::kIdle, t.core.now);
  t.core.tcp_memory.release(c.send_queue.memory());
  c.send_queue.clear(t.chunks);
  c.sent.reset();
  c.sampled = false;
  c.sacked_bytes = c.sacked_segments = c.lost_bytes = c.resent_bytes = 0;
}

}  // namespace accel::tcp
