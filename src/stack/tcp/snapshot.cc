// A connection's state out of the stack and back: the fields of TCP_REPAIR.
#include <algorithm>

#include "stack/tcp/context.h"
#include "stack/tcp/tcp.h"

namespace accel {

using namespace tcp;

Result<TcpSnapshot> TcpLayer::snapshot(const TcpConn& c, Instant now) const {
  if (!c.synchronized()) return err(ENOTCONN);
  TcpSnapshot s;
  s.local = c.local;
  s.remote = c.remote;
  s.state = c.tcp_state;
  s.snd_una = c.snd_una;
  s.snd_nxt = c.snd_nxt;
  s.rcv_nxt = c.rcv_nxt;
  s.snd_wnd = c.snd_wnd;
  s.snd_wl1 = c.snd_wl1;
  s.max_window = c.max_window;
  s.rcv_wnd = seq_gt(c.rcv_edge, c.rcv_wup) ? c.rcv_edge - c.rcv_wup : 0;  // Linux counts it from rcv_wup
  s.rcv_wup = c.rcv_wup;
  s.snd_wscale = c.snd_wscale;
  s.rcv_wscale = c.rcv_wscale;
  s.wscale_ok = c.wscale_ok;
  s.sack_ok = c.sack_ok;
  s.timestamps_ok = c.timestamps_ok;
  s.mss = c.peer_mss;
  s.timestamp_now = timestamp_clock(now) + c.ts_offset;
  s.timestamp_recent = c.ts_recent;
  s.fin_queued = c.fin_queued;
  s.fin_received = c.fin_received;
  s.fin_acked = c.fin_acked;
  s.receive_queue.reserve(c.unread());
  for (const Packet* p = c.receive_queue.front(); p; p = p->next)
    s.receive_queue.insert(s.receive_queue.end(), p->data(), p->data() + p->length);
  s.send_queue.resize(c.send_queue.size());
  // A copy moves the queue's cursor, nothing else.
  if (!s.send_queue.empty())
    const_cast<SendQueue&>(c.send_queue).copy(s.send_queue.data(), c.send_queue.begin(), c.send_queue.size());
  return s;
}

void TcpLayer::forget(TcpConn* c) {
  TcpContext& t = *context_;
  if (c->hashed) forget_tuple(t, c->hash, t.core.now);
  destroy(t, *c);
}

void TcpLayer::end_with(TcpConn& c, int error) {
  Working working(*context_, c);
  if (c.tcp_state != TcpState::kClosed) fail(*context_, c, error);
}

static bool restore_queues(TcpContext& t, TcpConn& c, const TcpSnapshot& s) {
  auto received = static_cast<uint32_t>(s.receive_queue.size());
  c.copied_seq = s.rcv_nxt - (s.fin_received ? 1 : 0) - received;
  if (received > 0) {
    Packet* p = heap_packet(received);
    if (!p) return false;
    std::copy(s.receive_queue.begin(), s.receive_queue.end(), p->data());
    p->length = received;
    p->seq = c.copied_seq;
    push_received(t, c, p);
  }
  c.send_queue.start(s.snd_una - (s.fin_acked ? 1 : 0));
  auto size = static_cast<uint32_t>(s.send_queue.size());
  uint32_t put = size ? c.send_queue.append(t.chunks, s.send_queue.data(), size) : 0;
  t.core.tcp_memory.charge(c.send_queue.memory());
  return put == size;
}

/// What was in flight is on the scoreboard again, as one row of segments that may have to be sent once more.
static bool restore_scoreboard(TcpConn& c, const TcpSnapshot& s, Instant now) {
  bool fin_in_flight = c.fin_sent && !s.fin_acked;
  uint32_t data_end = s.snd_nxt - (fin_in_flight ? 1 : 0);
  for (uint32_t at = s.snd_una; seq_lt(at, s.snd_nxt);) {
    if (!c.sent.reserve(1)) return false;
    SentSegment g;
    g.begin = at;
    uint32_t left = seq_lt(at, data_end) ? data_end - at : 0;
    g.end = at + std::min<uint32_t>(left, c.snd_mss);
    if (g.end == data_end && fin_in_flight) {
      g.fin = 1;
      ++g.end;
    }
    g.ever_resent = 1;
    g.sent_us = microseconds(now);
    c.sent.push_back(g);
    at = g.end;
  }
  return true;
}

Result<TcpConn*> TcpLayer::adopt(const TcpSnapshot& s, const Route& route, const TcpSettings& settings,
                                 void* owner, Instant now) {
  TcpContext& t = *context_;
  if (find(t, hash_of(t, s.local, s.remote), s.local, s.remote)) return err(EADDRINUSE);
  TcpConn* conn = create(t);
  if (!conn) return err(ENOBUFS);
  TcpConn& c = *conn;
  c.local = s.local;
  c.remote = s.remote;
  c.settings = settings;
  c.held = true;
  c.active = true;
  c.tcp_state = s.state;
  c.snd_una = s.snd_una;
  c.snd_nxt = s.snd_nxt;
  c.snd_pushed = s.snd_una + static_cast<uint32_t>(s.send_queue.size());
  c.snd_wnd = s.snd_wnd;
  c.snd_wl1 = s.snd_wl1;
  c.max_window = s.max_window;
  c.snd_small = c.high_delivered = s.snd_una;
  c.snd_wscale = s.snd_wscale;
  c.rcv_wscale = s.rcv_wscale;
  c.wscale_ok = s.wscale_ok;
  c.sack_ok = s.sack_ok;
  c.timestamps_ok = s.timestamps_ok;
  c.peer_mss = s.mss ? s.mss : 536;
  c.rcv_nxt = s.rcv_nxt;
  c.rcv_wup = s.rcv_wup;
  c.rcv_edge = seq_max(s.rcv_wup + s.rcv_wnd, s.rcv_nxt);
  c.ts_offset = s.timestamp_now - timestamp_clock(now);
  c.ts_recent = s.timestamp_recent;
  c.ts_recent_ms = timestamp_clock(now);
  c.ts_recent_valid = s.timestamps_ok;
  c.fin_queued = s.fin_queued;
  c.fin_received = c.read_shut = s.fin_received;
  c.fin_acked = s.fin_acked;
  uint32_t data_end = s.snd_una - (s.fin_acked ? 1 : 0) + static_cast<uint32_t>(s.send_queue.size());
  c.fin_sent = s.fin_acked || (s.fin_queued && seq_gt(s.snd_nxt, data_end));
  c.rto = std::max<Duration>(kInitialRto, t.core.config.min_rto);
  c.quick_acks = kQuickAcks;
  c.last_sent = c.last_received = c.last_ack_received = c.stuck_since = now;
  set_way(t, c, t.core.way(route));
  c.cwnd = initial_window(t, c);
  if (!restore_queues(t, c, s) || !restore_scoreboard(c, s, now)) {
    destroy(t, c);
    return err(ENOMEM);
  }
  begin_receive_tuning(t, c, now);
  begin_send_tuning(t, c);
  choose_congestion(c, now);
  begin_pacing(c, now);
  c.owner = owner;
  insert(t, c);
  restart_retransmit(t, c, now);
  restart_keepalive(t, c, now);
  c.ack_now = true;  // tells the peer that somebody is here; also asks for what it may have to say
  want_output(t, c);
  return conn;
}

}  // namespace accel
