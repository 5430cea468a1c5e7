// Fifth check: the ACK field. Acknowledged bytes leave the send queue, the window and the round-trip time are
// taken.
#include <algorithm>

#include "stack/tcp/context.h"

namespace accel::tcp {

/// RFC 6298 section 2. As Linux' rttvar_us the variation is never less than the least timeout: a peer may
/// delay its ACK by that much on top of the round trip.
void sample_rtt(TcpContext& t, TcpConn& c, Duration rtt) {
  if (rtt.count() < 0) return;
  rtt = std::max<Duration>(rtt, 1us);
  c.min_rtt_us = std::min(c.min_rtt_us, static_cast<uint32_t>(rtt / 1us));
  if (c.srtt.count() == 0) {
    c.srtt = rtt;
    c.rttvar = rtt / 2;
  } else {
    Duration error = c.srtt > rtt ? c.srtt - rtt : rtt - c.srtt;
    c.rttvar += (error - c.rttvar) / 4;
    c.srtt += (rtt - c.srtt) / 8;
  }
  c.rto = std::min<Duration>(c.srtt + std::max(4 * c.rttvar, min_rto(t, c)), kMaxRto);
}

/// Takes acknowledged segments off the scoreboard.
static void clean_scoreboard(TcpConn& c, uint32_t ack, AckEvent& e, Instant now) {
  const SentSegment* newest = nullptr;
  while (!c.sent.empty()) {
    SentSegment& s = c.sent.front();
    if (seq_gt(s.end, ack)) {
      if (seq_lt(s.begin, ack)) {  // a part of it
        uint32_t part = ack - s.begin;
        if (s.sacked) c.sacked_bytes -= part;
        if (s.lost) c.lost_bytes -= part;
        if (s.resent) c.resent_bytes -= part;
        s.begin = ack;
      }
      break;
    }
    if (s.ever_resent) e.resent = true;
    if (!s.sacked) {
      rack_delivered(c, s, e, now);
      note_original(c, s, e);
      if (newest == nullptr || seq_ge(s.sent_us, newest->sent_us)) newest = &s;
      ++c.delivered;
    }
    if (!s.ever_resent && !s.sacked && e.rtt.count() < 0)
      e.rtt = Duration{1000 * int64_t{microseconds(now) - s.sent_us}};
    clear_marks(c, s);
    c.sent.pop_front();
  }
  if (c.sampled && newest != nullptr) sample_delivered(c, *newest, now);  // what is taken off is there yet
}

static void advance_una(TcpContext& t, TcpConn& c, uint32_t ack, const TcpOptions& o, AckEvent& e,
                        Instant now) {
  e.acked = ack - c.snd_una;
  uint32_t sacked_before = c.sacked_bytes;
  clean_scoreboard(c, ack, e, now);
  // What the ACK covers and had been SACKed was delivered with its SACK.
  e.delivered = e.sacked + e.acked - (sacked_before - c.sacked_bytes);
  c.snd_una = ack;
  uint32_t data_end = seq_min(ack, c.send_queue.end());
  uint32_t bytes = data_end - c.send_queue.begin();
  if (bytes > 0) {
    const uint32_t before = c.send_queue.memory();
    c.send_queue.acknowledge(t.chunks, data_end);
    t.core.tcp_memory.release(before - c.send_queue.memory());
    c.bytes_acked += bytes;
    free_send_space(t, c);
  }
  if (c.sent.empty() && c.send_queue.size() == 0) note_busy(c, Busy::kIdle, now);
  c.backoff = 0;
  c.retransmits = 0;
  c.stuck_since = now;
  c.tail_probed = false;
  if (c.urgent_out && seq_ge(ack, c.snd_up)) c.urgent_out = false;
  // RFC 7323 section 4: where every segment was sent twice, the echoed timestamp tells which one it was.
  if (e.rtt.count() < 0 && c.timestamps_ok && o.has_timestamps && o.tsecr) {
    uint32_t ms = timestamp_clock(now) + c.ts_offset - o.tsecr;
    if (ms < 120'000) e.rtt = std::max<Duration>(1ms * int64_t{ms}, 1ms);
  }
  if (e.rtt.count() >= 0) sample_rtt(t, c, e.rtt);
}

void acknowledge_syn_text(TcpContext& t, TcpConn& c, uint32_t ack, Instant now) {
  AckEvent e;
  e.ack = ack;
  e.delivered_before = c.high_delivered;
  advance_una(t, c, ack, {}, e, now);
  if (c.delivered > 1) --c.delivered;  // it is one with its SYN
}

/// SND.WND <- SEG.WND by SND.WL1 (RFC 9293), and when the ACK is new, as Linux' tcp_may_update_window(): of
/// segments with the same numbers the widest window holds, but for one that is shut.
static void take_window(TcpConn& c, const TcpSegmentInfo& s, AckEvent& e) {
  uint32_t window = (s.flags & kSyn) ? s.window : uint32_t{s.window} << c.snd_wscale;
  const bool replaces = window > c.snd_wnd || window == 0;
  bool may = seq_gt(s.ack, c.snd_una) || seq_gt(s.seq, c.snd_wl1) || (s.seq == c.snd_wl1 && replaces);
  if (!may) return;
  c.snd_wl1 = s.seq;
  if (window == c.snd_wnd) return;
  e.window_changed = true;
  c.snd_wnd = window;
  c.max_window = std::max(c.max_window, window);
}

/// What Linux' tcp_rcv_established() predicts and finds no news in: it looks for nothing to send then.
static bool brings_only_data(const TcpConn& c, const TcpSegmentInfo& s, const AckEvent& e) {
  return s.payload_length > 0 && s.seq == c.rcv_nxt && s.ack == c.snd_una && !e.window_changed &&
         (s.flags & (kUrg | kFin)) == 0 && !c.out_of_order && !c.urgent_in;
}

bool take_ack(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s, const TcpOptions& o, Instant now) {
  if (seq_lt(s.ack, c.snd_una)) {
    // RFC 5961 section 5.2: what was never ours within the last window.
    if (seq_lt(s.ack, c.snd_una - c.max_window)) {
      t.count(Counter::drop_tcp_bad_ack);
      challenge_ack(t, c, now);
      return false;
    }
    AckEvent e;
    e.delivered_before = c.high_delivered;
    if (o.sack_count && c.sack_ok) {
      if (c.sampled) begin_sample(c);
      take_sack(t, c, s.ack, o, e, now);
      e.delivered = e.sacked;
      e.came = true;
      react(t, c, e, now);
      want_output(t, c);
    }
    return true;
  }
  if (seq_gt(s.ack, c.snd_nxt)) {
    t.count(Counter::drop_tcp_bad_ack);
    challenge_ack(t, c, now);
    return false;
  }
  take_timestamp(c, s, o, now);
  AckEvent e;
  e.echo = (c.ecn & kEcnOk) != 0 && (s.flags & (kEce | kSyn)) == kEce;
  e.gap = now - c.last_ack_received;
  c.last_ack_received = now;
  e.ack = s.ack;
  e.delivered_before = c.high_delivered;
  if (c.timestamps_ok && o.has_timestamps) e.tsecr = o.tsecr;
  bool had_flight = !c.sent.empty();
  take_window(c, s, e);
  // tcp_data_snd_check() knows no MSG_MORE.
  if (c.more) c.more = brings_only_data(c, s, e);
  if (c.probes_out && (s.ack == c.snd_nxt || e.window_changed)) {  // the peer lives
    c.probes_out = 0;
    c.retransmits = 0;
    if (c.snd_wnd > 0) {
      c.backoff = 0;
      c.shut_out_since = kNever;
    }
  }
  const uint32_t delivered = c.delivered;
  e.came = true;
  if (c.sampled) begin_sample(c);
  if (o.sack_count && c.sack_ok) take_sack(t, c, s.ack, o, e, now);
  e.delivered = e.sacked;
  if (s.ack != c.snd_una) {
    advance_una(t, c, s.ack, o, e, now);
    if (e.echo) c.delivered_ce += c.delivered - delivered;  // tcp_newly_delivered()
  } else {
    if (e.echo) c.delivered_ce += c.delivered - delivered;
    // RFC 5681 section 2: a duplicate ACK.
    e.duplicate = had_flight && s.payload_length == 0 && !(s.flags & (kSyn | kFin)) && !e.window_changed;
  }
  if (!had_flight) {
    if (c.send_queue.end() != c.snd_nxt || (c.fin_queued && !c.fin_sent)) want_output(t, c);
    return true;
  }
  react(t, c, e, now);
  if (c.sent.empty() && !runs_bbr(c)) c.sampled = false;
  // RFC 6298 section 5.3: only the ACK of new data.
  if (e.acked > 0) restart_retransmit(t, c, now);
  // More may go out now: data by window or congestion, retransmissions, a probe's schedule.
  if (c.lost_bytes != c.resent_bytes || c.send_queue.end() != c.snd_nxt - (c.fin_sent ? 1 : 0) ||
      (c.fin_queued && !c.fin_sent))
    want_output(t, c);
  // Whether it is writable depends on what leaves.
  if (c.pending && notsent_low_water(t, c) != kNoLowWater) {
    output(t, c, now);
    free_send_space(t, c);
  }
  return true;
}

}  // namespace accel::tcp
