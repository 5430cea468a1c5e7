// Loss: SACK scoreboard (RFC 2018, 2883), RACK (RFC 8985), NewReno without SACK (RFC 6582), recovery with PRR
// (RFC 9937), undo of what proves spurious (RFC 3522, 3708, 5682).
#include <algorithm>

#include "stack/tcp/context.h"

namespace accel::tcp {

void clear_marks(TcpConn& c, const SentSegment& s) {
  if (s.sacked) {
    c.sacked_bytes -= s.length();
    --c.sacked_segments;
  }
  if (s.lost) c.lost_bytes -= s.length();
  if (s.resent) c.resent_bytes -= s.length();
}

/// tcp_check_sack_reordering(): text from `low` on came behind what ends at `high`.
static void note_reordering(TcpConn& c, uint32_t low, uint32_t high) {
  constexpr uint32_t kMostReordering = 300;  // net.ipv4.tcp_max_reordering
  c.reordering_seen = true;
  ++c.reorderings;
  const uint32_t distance = (high - low + c.snd_mss - 1) / c.snd_mss;
  c.reordering = static_cast<uint16_t>(std::max<uint32_t>(c.reordering, std::min(distance, kMostReordering)));
}

/// RFC 8985 section 6.2, step 2. What one ACK tells of came together, in whatever order it tells of it.
void rack_delivered(TcpConn& c, const SentSegment& s, const AckEvent& e, Instant now) {
  if (!s.ever_resent && seq_lt(s.end, e.delivered_before))  // step 3
    note_reordering(c, s.begin, e.delivered_before);
  c.high_delivered = seq_max(c.high_delivered, s.end);
  uint32_t rtt = microseconds(now) - s.sent_us;
  if (s.ever_resent && rtt < c.min_rtt_us) return;  // an ACK of the first transmission, most likely
  if (c.rack_valid &&
      (seq_lt(s.sent_us, c.rack_sent_us) || (s.sent_us == c.rack_sent_us && seq_le(s.end, c.rack_end))))
    return;
  c.rack_valid = true;
  c.rack_sent_us = s.sent_us;
  c.rack_end = s.end;
  c.rack_rtt_us = rtt;
}

static void mark_sacked(TcpConn& c, SentSegment& s, AckEvent& e, Instant now) {
  rack_delivered(c, s, e, now);
  note_original(c, s, e);
  if (c.sampled) sample_delivered(c, s, now);
  if (s.lost) c.lost_bytes -= s.length();
  if (s.resent) c.resent_bytes -= s.length();
  s.lost = s.resent = 0;
  s.sacked = 1;
  s.sent_us = 1;  // a run of one
  ++c.delivered;
  c.sacked_bytes += s.length();
  ++c.sacked_segments;
  e.sacked += s.length();
}

/// RFC 2883 section 4: the first block reports a duplicate when it lies below the ACK or inside the second
/// block.
static bool is_dsack(const TcpOptions& o, uint32_t ack) {
  const SackBlock& first = o.sack[0];
  if (seq_le(first.end, ack)) return true;
  return o.sack_count > 1 && seq_ge(first.begin, o.sack[1].begin) && seq_le(first.end, o.sack[1].end);
}

static void take_dsack(TcpContext& t, TcpConn& c, const SackBlock& b, AckEvent& e) {
  t.count(Counter::tcp_dsack);
  e.dsack = true;
  if (seq_gt(b.end, c.snd_nxt) || !seq_lt(b.begin, b.end)) return;
  const uint32_t segments = std::max(1u, (b.end - b.begin) / c.snd_mss);
  c.duplicates_reported += segments;
  if (c.undo_retransmits > 0 && seq_gt(b.end, c.undo_marker))
    c.undo_retransmits = std::max(0, c.undo_retransmits - static_cast<int32_t>(segments));
  if (c.reorder_windows < 255) ++c.reorder_windows;  // RFC 8985 section 6.2, step 4
  c.reorder_persist = 16;
}

void take_sack(TcpContext& t, TcpConn& c, uint32_t ack, const TcpOptions& o, AckEvent& e, Instant now) {
  t.count(Counter::tcp_sack_segments);
  uint8_t first = 0;
  if (is_dsack(o, ack)) {
    take_dsack(t, c, o.sack[0], e);
    first = 1;
  }
  for (uint8_t k = first; k < o.sack_count; ++k) {
    const SackBlock& b = o.sack[k];
    if (!seq_lt(b.begin, b.end) || seq_gt(b.end, c.snd_nxt) || seq_lt(b.begin, c.snd_una)) continue;
    if (c.sacked_bytes == 0) c.rack_from = c.snd_una;
    SentRing& sent = c.sent;
    for (uint32_t i = sent.skip_sacked(sent.find(b.begin)); i < sent.size(); i = sent.skip_sacked(i + 1)) {
      if (seq_gt(sent[i].end, b.end)) break;
      if (seq_ge(sent[i].begin, b.begin)) mark_sacked(c, sent[i], e, now);
    }
  }
}

void mark_lost(TcpConn& c, SentSegment& s) {
  // Where all that is lost has been sent again, the mark stands anywhere.
  const bool first = c.lost_bytes == c.resent_bytes;
  if (s.resent) {
    c.resent_bytes -= s.length();
    s.resent = 0;
    if (c.sampled && s.lost) c.rates->lost_bytes += s.length();
  } else if (s.lost) {
    return;
  }
  if (first || seq_lt(s.begin, c.sent.lost_from)) c.sent.lost_from = s.begin;
  if (s.lost) return;
  s.lost = 1;
  c.lost_bytes += s.length();
  if (c.sampled) c.rates->lost_bytes += s.length();
}

void mark_all_lost(TcpConn& c) {
  for (uint32_t i = 0; i < c.sent.size(); ++i)
    if (!c.sent[i].sacked) mark_lost(c, c.sent[i]);
}

/// RFC 8985 section 6.2, step 4.
static uint64_t reordering_window_us(const TcpConn& c) {
  if (!c.reordering_seen && (recovers(c) || c.sacked_segments >= kDupThreshold)) return 0;
  const auto srtt = static_cast<uint64_t>(c.srtt / 1us);
  const uint64_t least = c.min_rtt_us == 0xffffffff ? srtt : c.min_rtt_us;
  return std::min(least / 4 * c.reorder_windows, srtt);
}

/// RACK_sent_after() the other way round.
static bool sent_before_rack(const TcpConn& c, const SentSegment& s) {
  return seq_lt(s.sent_us, c.rack_sent_us) || (s.sent_us == c.rack_sent_us && seq_lt(s.end, c.rack_end));
}

/// Of what was sent once, in the order of its numbers and so of its times; goes on where it ended the last
/// time. True: some is not old enough yet.
static bool judge_sent_once(TcpConn& c, uint32_t now_us, uint64_t limit) {
  bool wait = false;
  const uint32_t from = c.rack_from - c.snd_una < c.flight() ? c.rack_from : c.snd_una;
  uint32_t i = c.sent.find(from);
  for (i = c.sent.skip_sacked(i); i < c.sent.size(); i = c.sent.skip_sacked(i + 1)) {
    SentSegment& s = c.sent[i];
    if (s.lost || s.ever_resent) continue;
    if (!sent_before_rack(c, s)) break;  // nor is what was sent later
    wait = now_us - s.sent_us < limit;
    if (wait) break;
    mark_lost(c, s);
  }
  c.rack_from = i < c.sent.size() ? c.sent[i].begin : c.snd_nxt;
  return wait;
}

static bool judge_resent(TcpConn& c, uint32_t now_us, uint64_t limit) {
  while (ResentQueue* resent = c.sent.resent()) {
    const Resent r = resent->front();
    const uint32_t i = c.sent.find(r.seq);
    SentSegment* s = i < c.sent.size() ? &c.sent[i] : nullptr;
    const bool flies = s && seq_le(s->begin, r.seq) && !s->sacked && s->sent_us == r.sent_us &&
                       s->ever_resent && (s->resent || !s->lost);
    if (flies && !sent_before_rack(c, *s)) return false;
    if (flies && now_us - s->sent_us < limit) return true;
    resent->pop();
    if (flies) mark_lost(c, *s);
  }
  return false;
}

/// RFC 8985 section 6.2, step 5.
void detect_lost(TcpContext& t, TcpConn& c, Instant now) {
  if (!c.rack_valid) return;
  const uint64_t limit = c.rack_rtt_us + reordering_window_us(c);
  bool wait = judge_sent_once(c, microseconds(now), limit);
  wait |= judge_resent(c, microseconds(now), limit);
  if (wait) {
    // Until then all that was sent before what has arrived is old enough.
    const uint64_t age = microseconds(now) - c.rack_sent_us;
    c.loss_timer = LossTimer::kReorder;
    set_timer(t, c, kTimerLoss, now + Duration{1us} * (limit > age ? limit - age : 1));
  } else if (c.loss_timer == LossTimer::kReorder) {
    c.loss_timer = LossTimer::kTailProbe;
    clear_timer(c, kTimerLoss);
  }
  if (!recovers(c) && c.lost_bytes > 0) {
    AckEvent none;
    react(t, c, none, now);
  }
}

/// Without SACK: three duplicate ACKs, and partial ACKs in recovery (RFC 6582).
static void count_duplicates(TcpConn& c, const AckEvent& e) {
  if (e.acked > 0) {
    uint32_t segments = (e.acked + c.snd_mss - 1) / c.snd_mss;
    bool partial = c.recovery == Recovery::kFast && seq_lt(c.snd_una, c.recovery_point);
    c.dupacks = partial && c.dupacks > segments ? static_cast<uint8_t>(c.dupacks - segments) : 0;
    if (partial && !c.sent.empty() && !c.sent.front().lost) mark_lost(c, c.sent.front());
    return;
  }
  if (!e.duplicate) return;
  if (c.dupacks < 255) ++c.dupacks;
  if (c.dupacks == kDupThreshold && !recovers(c) && !c.sent.empty()) mark_lost(c, c.sent.front());
}

/// tcp_init_undo(). Retransmissions of an earlier episode may still be in flight: their ACKs echo their own
/// timestamps, so the mark stays at the first of them all (tcp_retrans_stamp_cleanup()), and D-SACKs of
/// theirs count.
static void remember_for_undo(TcpConn& c) {
  c.prior_cwnd = c.cwnd;
  c.prior_ssthresh = c.ssthresh;
  c.undo_marker = c.snd_una;
  const bool in_flight = c.resent_bytes > 0 || (!c.sent.empty() && c.sent.front().ever_resent);
  if (!in_flight) c.undo_stamped = false;
  c.undo_retransmits = static_cast<int32_t>((c.resent_bytes + c.snd_mss - 1) / c.snd_mss);
  if (c.tail_probe_end != 0) ++c.undo_retransmits;
}

/// tcp_init_cwnd_reduction().
static void begin_reduction(TcpConn& c) {
  c.recovery_point = c.snd_nxt;
  c.prr_flight = std::max(c.flight(), uint32_t{c.snd_mss});
  c.prr_delivered = c.prr_out = 0;
  c.ssthresh = reduced_window(c);
  tell_of_reduction(c);
}

/// tcp_enter_recovery(). What an echo of a CE mark has reduced already is not reduced again, nor is it
/// undone.
static void enter_fast_recovery(TcpContext& t, TcpConn& c, bool echo) {
  t.count(Counter::tcp_fast_recoveries);
  remember_for_undo(c);
  if (echo || c.recovery == Recovery::kReduced) c.prior_cwnd = c.prior_ssthresh = 0;
  if (c.recovery != Recovery::kReduced) begin_reduction(c);
  c.recovery = Recovery::kFast;
}

/// RFC 3168 section 6.1.2, tcp_enter_cwr(): once for a window of text.
static void reduce_for_echo(TcpContext& t, TcpConn& c) {
  t.count(Counter::tcp_ecn_reductions);
  c.undo_retransmits = -1;
  c.tail_probe_end = 0;
  begin_reduction(c);
  c.recovery = Recovery::kReduced;
}

/// RFC 9937, the slow start reduction bound included. `safe`: an ACK of new text that tells of no
/// further loss.
static void proportional_rate(TcpConn& c, const AckEvent& e, bool safe) {
  c.prr_delivered += e.delivered;
  uint32_t pipe = c.pipe();
  int64_t allowed;
  if (pipe > c.ssthresh) {
    allowed = (int64_t{c.prr_delivered} * c.ssthresh + c.prr_flight - 1) / c.prr_flight - c.prr_out;
  } else {
    int64_t limit = std::max<int64_t>(int64_t{c.prr_delivered} - c.prr_out, e.delivered);
    if (safe) limit += c.snd_mss;
    allowed = std::min<int64_t>(int64_t{c.ssthresh} - pipe, limit);
  }
  if (c.prr_out == 0) allowed = std::max<int64_t>(allowed, c.snd_mss);  // the fast retransmit itself
  c.cwnd = pipe + static_cast<uint32_t>(std::max<int64_t>(allowed, 0));
}

static void end_recovery(TcpConn& c) {
  const bool repaired = recovers(c);
  if (reduces_in_proportion(c) && !runs_bbr(c)) c.cwnd = std::max(c.ssthresh, 2u * c.snd_mss);
  c.recovery = Recovery::kOpen;
  if (!repaired) return;
  c.dupacks = 0;
  if (c.reorder_persist > 0 && --c.reorder_persist == 0) c.reorder_windows = 1;
}

/// The echoed timestamp is older than the first retransmission's (RFC 3522): the ACK is of a first
/// transmission (tcp_packet_delayed()).
static bool was_delayed(const TcpConn& c, const AckEvent& e) {
  return c.recovery != Recovery::kOpen && c.undo_retransmits >= 0 && c.undo_stamped && e.acked > 0 &&
         e.tsecr != 0 && seq_lt(e.tsecr, c.undo_timestamp);
}

/// All that was sent again had arrived the first time: D-SACKs say so, or the echoed timestamp does. In fast
/// recovery a hole may be filled so while others are losses: what is in flight has to tell first
/// (tcp_try_undo_partial()).
static bool spurious(const TcpConn& c, const AckEvent& e) {
  if (c.recovery == Recovery::kOpen || c.undo_retransmits < 0 || !c.undo_stamped) return false;
  if (e.dsack && c.undo_retransmits == 0) return true;
  if (!was_delayed(c, e)) return false;
  return c.recovery == Recovery::kTimeout || c.resent_bytes == 0 || seq_ge(c.snd_una, c.recovery_point);
}

/// tcp_try_undo_partial(): a hole that a delayed segment fills, and not its retransmission, is reordering.
/// rack_delivered() cannot see it, since the segment was sent again.
static void judge_filled_hole(TcpConn& c, const AckEvent& e) {
  if (c.sack_ok && c.recovery == Recovery::kFast && seq_lt(c.snd_una, c.recovery_point) && was_delayed(c, e))
    note_reordering(c, c.snd_una - e.acked, seq_max(c.high_delivered, c.snd_una));
}

static void undo(TcpConn& c, Instant now) {
  if (runs_bbr(c))
    bbr_undo(c, now);  // the window comes back with recovery's end
  else
    c.cwnd = std::max(c.cwnd, c.prior_cwnd);
  c.ssthresh = std::max(c.ssthresh, c.prior_ssthresh);
  if (c.ssthresh >= kNoThreshold) c.growth.hystart = {};
  c.undo_retransmits = -1;
  c.ecn &= static_cast<uint8_t>(~kEcnCwrDue);  // tcp_ecn_withdraw_cwr()
  c.rack_from = c.snd_una;
  for (uint32_t i = 0; i < c.sent.size(); ++i) {
    SentSegment& s = c.sent[i];
    if (!s.lost) continue;
    c.lost_bytes -= s.length();
    if (s.resent) c.resent_bytes -= s.length();
    s.lost = s.resent = 0;
  }
  c.recovery = Recovery::kOpen;
  c.dupacks = 0;
}

/// RFC 8985 section 7.4: a tail probe that repaired a loss is a congestion signal.
static void judge_tail_probe(TcpConn& c, const AckEvent& e) {
  if (c.tail_probe_end == 0) return;
  if (e.dsack) {
    c.tail_probe_end = 0;
  } else if (e.acked == 0 && e.duplicate && e.ack == c.tail_probe_end) {
    c.tail_probe_end = 0;
  } else if (e.acked > 0 && seq_gt(e.ack, c.tail_probe_end)) {
    c.tail_probe_end = 0;
    if (c.recovery == Recovery::kOpen) {
      c.ssthresh = reduced_window(c);
      if (!runs_bbr(c)) c.cwnd = c.ssthresh;
      tell_of_reduction(c);
    }
  }
}

/// RFC 5682 section 3.1, the version with SACK, as tcp_process_loss() has it for all. True: the timeout was
/// spurious.
static bool judge_timeout(TcpConn& c, const AckEvent& e) {
  c.frto_probe = false;
  if (c.recovery != Recovery::kTimeout || !c.frto) return false;
  // Step 3b: what was not sent again has arrived. Without SACK that is told of only where nothing of the
  // acknowledged text was sent again.
  if (e.original && (c.sack_ok || !e.resent)) return true;
  if (seq_gt(c.snd_nxt, c.recovery_point)) {
    if (e.sacked > 0 || e.duplicate) c.frto = false;  // step 3a
  } else if (e.acked > 0 && seq_lt(c.snd_una, c.recovery_point)) {
    c.frto_probe = true;  // step 2b
  }
  return false;
}

void react(TcpContext& t, TcpConn& c, AckEvent& e, Instant now) {
  const uint32_t due = c.lost_bytes - c.resent_bytes;
  judge_tail_probe(c, e);
  judge_filled_hole(c, e);
  if (spurious(c, e)) undo(c, now);
  if (judge_timeout(c, e)) {
    t.count(Counter::tcp_spurious_timeouts);
    undo(c, now);
    c.retransmits = 0;
  }
  if (c.recovery != Recovery::kOpen && seq_ge(c.snd_una, c.recovery_point)) {
    // CWR has to arrive before another mark is heeded: the reduction lasts beyond that point.
    if (recovers(c) || c.snd_una != c.recovery_point) end_recovery(c);
  }
  if (!c.sack_ok)
    count_duplicates(c, e);
  else if ((c.sacked_bytes > 0 || recovers(c) || e.sacked > 0) && (e.acked > 0 || e.sacked > 0))
    detect_lost(t, c, now);
  if (c.sampled && e.came) finish_sample(c, e.delivered, now);
  const bool safe = e.acked > 0 && c.lost_bytes - c.resent_bytes <= due;
  if (!recovers(c) && c.lost_bytes > 0)
    enter_fast_recovery(t, c, e.echo);
  else if (e.echo && c.recovery == Recovery::kOpen)
    reduce_for_echo(t, c);
  if (runs_bbr(c)) {
    if (e.came) bbr_on_ack(c, now);
    return;
  }
  switch (c.recovery) {
    case Recovery::kOpen:
      if (e.acked > 0 || (e.sacked > 0 && c.cwnd < c.ssthresh)) {  // HyStart watches SACKs, too
        grow_window(c, e, now);
      }
      break;
    case Recovery::kReduced:
    case Recovery::kFast:
      proportional_rate(c, e, safe);
      break;
    case Recovery::kTimeout:
      if (e.acked > 0) grow_window(c, e, now);
      break;
  }
  if (c.paced) begin_pacing(c, now);
}

/// RFC 4821 section 7.7, as Linux' tcp_mtu_probing: full segments that vanish again and again may be too big
/// for a path that does not say so.
static void suspect_black_hole(const TcpContext& t, TcpConn& c, Instant now) {
  uint32_t base = c.local.address.is_v4() ? 1064 : 1280, least = c.local.address.is_v4() ? 552 : 1280;
  if (c.retransmits < 3 || c.mtu <= least || c.sent.front().length() + 100 <= least) return;
  c.mtu = c.mtu > base ? base : least;
  c.mtu_lowered = now;
  refresh_mss(t, c);
}

void enter_loss(TcpContext& t, TcpConn& c, Instant now) {
  // RFC 2018 section 8: after a timeout trust SACKs only where the peer has not taken them back.
  if (!c.sent.empty() && c.sent.front().sacked)
    for (uint32_t i = 0; i < c.sent.size(); ++i) {
      SentSegment& s = c.sent[i];
      if (!s.sacked) continue;
      s.sacked = 0;
      s.sent_us = microseconds(now);
      c.sacked_bytes -= s.length();
      --c.sacked_segments;
    }
  suspect_black_hole(t, c, now);
  // A timeout among SACKs says that the degree was overestimated.
  if (!recovers(c) && c.sacked_segments >= kDupThreshold)
    c.reordering = std::min(c.reordering, kDefaultReordering);
  // tcp_enter_loss(): a timeout of what fast recovery sent reduces nothing again, one after progress does.
  const bool passed = c.recovery == Recovery::kReduced && seq_ge(c.snd_una, c.recovery_point);
  if (c.recovery == Recovery::kOpen || passed || (c.recovery == Recovery::kTimeout && c.retransmits == 1)) {
    remember_for_undo(c);
    c.ssthresh = reduced_window(c);
  }
  tell_of_reduction(c);
  // RFC 9438 section 4.8: the window before a timeout says nothing of the path any more (bictcp_state()).
  if (!is_reno(c)) c.growth.cubic = {};
  // RFC 5682 section 3.1, step 1, and 3.2.
  c.frto = t.core.config.frto && (!recovers(c) || c.retransmits > 1);
  c.frto_probe = false;
  c.recovery = Recovery::kTimeout;
  c.recovery_point = c.snd_nxt;
  c.cwnd = c.snd_mss;
  if (runs_bbr(c)) bbr_timeout(c, now);
  c.cwnd_limited = true;
  c.dupacks = 0;
  c.tail_probe_end = 0;
  c.rack_valid = false;
  c.loss_timer = LossTimer::kTailProbe;
  clear_timer(c, kTimerLoss);
  c.rack_from = c.snd_una;
  c.sent.forget_resent();
  mark_all_lost(c);
}

void on_retransmit_timeout(TcpContext& t, TcpConn& c, Instant now) {
  t.count(Counter::tcp_timeouts);
  enter_loss(t, c, now);
  if (c.backoff < 16) ++c.backoff;
  restart_retransmit(t, c, now);
  want_output(t, c);
}

void resend_without_congestion(TcpContext& t, TcpConn& c) {
  c.recovery = Recovery::kTimeout;
  c.recovery_point = c.snd_nxt;
  c.undo_retransmits = -1;
  c.frto = c.frto_probe = false;
  mark_all_lost(c);
  want_output(t, c);
}

}  // namespace accel::tcp
