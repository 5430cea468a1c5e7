// What a connection does when time passes.
#include <algorithm>

#include "stack/tcp/context.h"

namespace accel::tcp {

static void arm(TcpContext& t, TcpConn& c, Instant when) {
  if (when >= c.armed_at) return;  // the node fires earlier anyway and looks then
  c.armed_at = when;
  t.wheel.arm(c.timer, when);
}

void set_timer(TcpContext& t, TcpConn& c, TcpTimer which, Instant when) {
  c.deadlines[which] = when;
  arm(t, c, when);
}

void set_pacing_timer(TcpContext& t, TcpConn& c, Instant when) {
  c.rates->deadline = when;
  arm(t, c, when);
}

void clear_timers(TcpContext& t, TcpConn& c) {
  c.deadlines.fill(kNever);
  if (c.rates) c.rates->deadline = kNever;
  c.armed_at = kNever;
  t.wheel.cancel(c.timer);
}

Duration backed_off(const TcpConn& c) {
  Duration d = c.rto;
  for (uint8_t i = 0; i < c.backoff && d < kMaxRto; ++i) d *= 2;
  return std::min(d, kMaxRto);
}

Instant next_timeout(const TcpConn& c, Instant now) {
  const Instant when = now + backed_off(c);
  if (c.settings.user_timeout.count() <= 0 || c.retransmits == 0) return when;
  return std::min(when, std::max(c.stuck_since + c.settings.user_timeout, now + 1ms));
}

void wait_for_fin(TcpContext& t, TcpConn& c, Instant now) {
  if (c.settings.fin_wait2.count() >= 0) return set_timer(t, c, kTimerLinger, now + c.settings.fin_wait2);
  send_reset(t, c, now);
  finish(t, c);
}

/// RFC 8985 section 7.2: a probe two round trips after the last segment, where nothing tells of losses
/// otherwise. One segment in flight may have its ACK delayed; the timeout, if it comes first, is the probe's
/// time.
static void schedule_tail_probe(TcpContext& t, TcpConn& c, Instant now) {
  const bool wanted =
      c.sack_ok && !recovers(c) && c.sacked_bytes == 0 && !c.tail_probed && c.backoff == 0 && !c.sent.empty();
  if (!wanted) {
    if (c.loss_timer == LossTimer::kTailProbe) clear_timer(c, kTimerLoss);
    return;
  }
  const Duration slack = c.sent.size() == 1 ? min_rto(t, c) : Duration{2ms};
  const Duration probe = c.srtt.count() > 0 ? 2 * c.srtt + slack : kInitialRto;
  c.loss_timer = LossTimer::kTailProbe;
  set_timer(t, c, kTimerLoss, std::min(now + probe, c.deadlines[kTimerRetransmit]));
}

void restart_retransmit(TcpContext& t, TcpConn& c, Instant now) {
  if ((c.fast_open & kFastOpenHalf) != 0) return;  // only the SYN-ACK is sent again
  if (c.sent.empty()) {
    clear_timer(c, kTimerLoss);
    if (c.retransmit_mode != RetransmitMode::kProbe) clear_timer(c, kTimerRetransmit);
    return;
  }
  c.retransmit_mode = RetransmitMode::kTimeout;
  const Instant timeout = next_timeout(c, now);
  c.deadlines[kTimerRetransmit] = timeout;  // the probe, which is earlier, arms the wheel's node for both
  if (c.loss_timer == LossTimer::kTailProbe || c.deadlines[kTimerLoss] == kNever)
    schedule_tail_probe(t, c, now);
  set_timer(t, c, kTimerRetransmit, timeout);
}

void note_sent(TcpContext& t, TcpConn& c, Instant now) {
  const bool running =
      c.retransmit_mode == RetransmitMode::kTimeout && c.deadlines[kTimerRetransmit] != kNever;
  if ((c.fast_open & kFastOpenHalf) != 0) return;
  if (!running)
    restart_retransmit(t, c, now);
  else if (c.loss_timer == LossTimer::kTailProbe || c.deadlines[kTimerLoss] == kNever)
    schedule_tail_probe(t, c, now);
}

/// tcp_clamp_probe0_to_user_timeout().
static void set_probe_timer(TcpContext& t, TcpConn& c, Instant now) {
  Instant when = now + backed_off(c);
  if (c.settings.user_timeout.count() > 0 && c.shut_out_since != kNever)
    when = std::min(when, std::max(c.shut_out_since + c.settings.user_timeout, now + 1ms));
  c.retransmit_mode = RetransmitMode::kProbe;
  set_timer(t, c, kTimerRetransmit, when);
}

void start_probe(TcpContext& t, TcpConn& c, Instant now) {
  if ((c.fast_open & kFastOpenHalf) != 0) return;
  if (c.retransmit_mode == RetransmitMode::kProbe && c.deadlines[kTimerRetransmit] != kNever) return;
  set_probe_timer(t, c, now);
}

void restart_keepalive(TcpContext& t, TcpConn& c, Instant now) {
  c.keep_probes = 0;
  if (c.settings.keepalive && c.synchronized())
    set_timer(t, c, kTimerKeepalive, now + c.settings.keep_idle);
  else
    clear_timer(c, kTimerKeepalive);
}

/// True when the row of timeouts that began at stuck_since is too long: give up.
static bool exhausted(TcpContext& t, TcpConn& c, Instant now) {
  if (!c.held && c.retransmits >= t.core.config.orphan_retries) return true;
  if (c.settings.user_timeout.count() > 0) return now - c.stuck_since >= c.settings.user_timeout;
  // tcp_retries2 counts in time (Linux retransmits_timed_out()): what so many doublings from min_rto would
  // take.
  Duration limit{0}, step = t.core.config.min_rto;
  for (uint32_t i = 0; i <= t.core.config.retries; ++i, step = std::min(step * 2, kMaxRto)) limit += step;
  return now - c.stuck_since >= limit;
}

static int timeout_error(const TcpConn& c) { return c.soft_error ? c.soft_error : ETIMEDOUT; }

static void on_handshake_timer(TcpContext& t, TcpConn& c, Instant now) {
  if ((c.fast_open & kFastOpenHalf) != 0) return time_out_child(t, c, now);
  bool passive = c.tcp_state == TcpState::kSynReceived && !c.active;
  // The first timeouts of a SYN do not double, and are counted beside TCP_SYNCNT (tcp_write_timeout()).
  const uint32_t linear = c.tcp_state == TcpState::kSynSent ? t.core.config.syn_linear_timeouts : 0;
  uint32_t limit = passive ? t.core.config.synack_retries : c.settings.syn_retries + linear;
  bool user_timeout = c.settings.user_timeout.count() > 0 && now - c.stuck_since >= c.settings.user_timeout;
  const bool over = c.retransmits >= limit || user_timeout;
  if (c.fast_open != 0) note_fast_open_timeout(t, c, over, now);
  if (over || c.makes_way || !has_listener(t, c)) {
    passive ? destroy(t, c) : fail(t, c, timeout_error(c));
    return;
  }
  ++c.retransmits;
  if (c.retransmits > linear) ++c.backoff;
  c.rehashes += c.settings.rehash;
  rehash(t, c);
  // A peer whose ACK we ignored for TCP_DEFER_ACCEPT is asked again only once its time is over.
  bool deferred = c.defer_acked && c.listener && now - c.stuck_since < c.listener->defer_accept;
  const bool given_up =
      c.settings.replies_may_be_misdirected && c.tcp_state == TcpState::kSynSent && c.retransmits == 1;
  if (given_up) t.core.mark_ready(c, kUnanswered);
  if (!deferred && !given_up) {
    t.count(Counter::tcp_retransmits);
    ++c.total_retransmits;
    send_handshake(t, c, now);
  } else {
    set_timer(t, c, kTimerRetransmit, next_timeout(c, now));
  }
}

/// tcp_probe_timer(): of a connection that the application has closed. A peer that answers each probe and
/// keeps its window shut would hold it for ever.
static bool orphan_exhausted(const TcpContext& t, const TcpConn& c) {
  if (c.held) return false;
  const bool alive = backed_off(c) < kMaxRto;
  return !alive && c.backoff >= t.core.config.orphan_retries;
}

/// tcp_probe_timer(): a peer that answers may keep its window closed for ever (RFC 1122 section 4.2.2.17),
/// but for TCP_USER_TIMEOUT.
static void on_probe_timer(TcpContext& t, TcpConn& c, Instant now) {
  if (!c.sent.empty() || (c.send_queue.end() == c.snd_nxt && !(c.fin_queued && !c.fin_sent))) {
    c.shut_out_since = kNever;
    return;
  }
  if (c.probes_out == 0) c.stuck_since = now;
  if (c.shut_out_since == kNever) c.shut_out_since = now;
  c.retransmits = c.probes_out;
  const Duration limit = c.settings.user_timeout;
  const bool shut_out = limit.count() > 0 && now - c.shut_out_since >= limit;
  if (shut_out || orphan_exhausted(t, c) || (c.probes_out > 0 && exhausted(t, c, now))) {
    fail(t, c, timeout_error(c));
    return;
  }
  ++c.probes_out;
  if (c.backoff < 16) ++c.backoff;
  uint32_t data = unsent(c);
  uint32_t window = c.snd_wnd;
  if (window > 0 && data > 0) {
    // What sender's SWS avoidance held back.
    if (send_new(t, c, std::min({data, window, segment_size(c)}), now)) note_sent(t, c, now);
  } else {
    t.count(Counter::tcp_zero_window_probes);
    send_probe(t, c, now);
  }
  if (!c.sent.empty())
    c.shut_out_since = kNever;
  else
    set_probe_timer(t, c, now);
}

/// RFC 8985 section 7.3. The timeout counts anew from here, and is not doubled.
static void on_tail_probe(TcpContext& t, TcpConn& c, Instant now) {
  if (c.sent.empty()) return;
  c.tail_probed = true;
  c.tail_probe_end = 0;
  uint32_t data = unsent(c);
  uint32_t window = c.snd_una + c.snd_wnd - c.snd_nxt;  // negative where the window shrank
  uint32_t n = std::min(data, segment_size(c));
  if (data > 0 && static_cast<int32_t>(window) >= static_cast<int32_t>(n))
    send_new(t, c, n, now);
  else if (retransmit(t, c, c.sent.size() - 1, now))
    c.tail_probe_end = c.snd_nxt;
  restart_retransmit(t, c, now);
}

static void on_loss_timer(TcpContext& t, TcpConn& c, Instant now) {
  if (c.loss_timer == LossTimer::kTailProbe) return on_tail_probe(t, c, now);
  c.loss_timer = LossTimer::kTailProbe;
  detect_lost(t, c, now);
  want_output(t, c);
}

static void on_keepalive(TcpContext& t, TcpConn& c, Instant now) {
  if (!c.settings.keepalive || !c.synchronized()) return;
  if (!c.sent.empty() || c.send_queue.end() != c.snd_nxt - (c.fin_sent ? 1 : 0)) {
    set_timer(t, c, kTimerKeepalive, now + c.settings.keep_idle);  // retransmission speaks for it
    return;
  }
  Instant heard = std::max(c.last_received, c.last_ack_received);
  Duration quiet = now - heard;
  if (quiet < c.settings.keep_idle) {
    c.keep_probes = 0;
    set_timer(t, c, kTimerKeepalive, heard + c.settings.keep_idle);
    return;
  }
  bool over = c.settings.user_timeout.count() > 0 ? quiet >= c.settings.user_timeout && c.keep_probes > 0
                                                  : c.keep_probes >= c.settings.keep_count;
  if (over) {
    send_reset(t, c, now);
    fail(t, c, timeout_error(c));
    return;
  }
  ++c.keep_probes;
  t.count(Counter::tcp_keepalives);
  send_probe(t, c, now);
  set_timer(t, c, kTimerKeepalive, now + c.settings.keep_interval);
}

static void on_retransmit_timer(TcpContext& t, TcpConn& c, Instant now) {
  switch (c.retransmit_mode) {
    case RetransmitMode::kHandshake:
      on_handshake_timer(t, c, now);
      break;
    case RetransmitMode::kProbe:
      on_probe_timer(t, c, now);
      break;
    case RetransmitMode::kTimeout: {
      if (c.sent.empty()) break;
      const bool over = exhausted(t, c, now);
      if (c.fast_open != 0) note_fast_open_timeout(t, c, over, now);
      if (over) {
        fail(t, c, timeout_error(c));
        break;
      }
      ++c.retransmits;
      c.rehashes += c.settings.rehash;
      rehash(t, c);
      on_retransmit_timeout(t, c, now);
      break;
    }
  }
}

static void on_due(TcpContext& t, TcpConn& c, TcpTimer which, Instant now) {
  switch (which) {
    case kTimerLoss:
      on_loss_timer(t, c, now);
      break;
    case kTimerRetransmit:
      on_retransmit_timer(t, c, now);
      break;
    case kTimerAck:
      on_ack_timer(t, c);
      break;
    case kTimerKeepalive:
      on_keepalive(t, c, now);
      break;
    case kTimerCork:
      c.more = false;
      c.push = true;
      c.snd_pushed = c.send_queue.end();  // tcp_write_wakeup()
      want_output(t, c);
      if (!c.no_memory) break;
      c.no_memory = false;
      free_send_space(t, c);
      break;
    case kTimerLinger:
      if (c.tcp_state == TcpState::kFinWait2) finish(t, c);
      break;
    case kTimerCount:
      break;
  }
}

void on_timer(TcpContext& t, TimerNode& node, Instant now) {
  auto* entry = reinterpret_cast<TcpEntry*>(reinterpret_cast<uint8_t*>(&node) - offsetof(TcpEntry, timer));
  if (entry->kind == TcpEntry::Kind::kTimeWait) {
    auto& w = static_cast<TcpTimeWait&>(*entry);
    if (w.deadline <= now)
      destroy_time_wait(t, w, true);
    else
      t.wheel.arm(w.timer, w.deadline);
    return;
  }
  auto& c = static_cast<TcpConn&>(*entry);
  Working working(t, c);
  c.armed_at = kNever;
  for (uint8_t i = 0; i < kTimerCount; ++i) {
    if (c.deadlines[i] > now) continue;
    c.deadlines[i] = kNever;
    on_due(t, c, static_cast<TcpTimer>(i), now);
    if (c.deferred_free || c.tcp_state == TcpState::kClosed) return;
  }
  Instant earliest = *std::min_element(c.deadlines.begin(), c.deadlines.end());
  if (Rates* r = c.rates.get()) {
    if (r->deadline <= now) {
      r->deadline = kNever;
      want_output(t, c);
    }
    earliest = std::min(earliest, r->deadline);
  }
  if (earliest < c.armed_at) {
    c.armed_at = earliest;
    t.wheel.arm(c.timer, earliest);
  }
}

}  // namespace accel::tcp
