// When what came is acknowledged: RFC 9293 section 3.8.6.3, RFC 5681 section 4.2, and how Linux adapts to who
// sends.
#include <algorithm>

#include "stack/tcp/context.h"

namespace accel::tcp {

/// Text in order of one pass that one ACK may tell of: Linux merges as much into one buffer (GRO).
constexpr uint32_t kMostTold = 65535;
/// Segments behind a gap that one ACK may tell of (net.ipv4.tcp_comp_sack_nr).
constexpr uint8_t kMostCompressed = 44;
constexpr Duration kMostDelay = 200ms;      ///< TCP_DELACK_MAX
constexpr Duration kMostBulkDelay = 500ms;  ///< HZ / 2 in tcp_send_delayed_ack()

/// Beyond it a longer wait changes nothing.
static uint32_t ato_of(Duration wait) {
  return static_cast<uint32_t>(std::clamp<Duration>(wait, Duration{1}, 4s).count());
}

/// An ACK that does not wait for the pass to end, so that the peer sees each of them.
static void ack_at_once(TcpContext& t, TcpConn& c, Instant now) {
  send_ack(t, c, now);
  if (c.ack_now) want_output(t, c);  // no frame
}

/// tcp_incr_quickack(): as many ACKs as half a window of segments takes.
static void begin_quick_acks(TcpConn& c, uint8_t most = kQuickAcks) {
  const uint32_t n = c.window_left() / (2 * std::max<uint32_t>(c.rcv_mss, 1));
  c.quick_acks = std::max(c.quick_acks, static_cast<uint8_t>(std::clamp<uint32_t>(n, 2, most)));
}

void enter_quick_acks(const TcpContext& t, TcpConn& c, uint8_t most) {
  begin_quick_acks(c, most);
  c.pingpong = false;
  c.ato_ns = ato_of(t.core.config.delayed_ack);
}

void adapt_ack_delay(const TcpContext& t, TcpConn& c, Duration gap) {
  const Duration least = t.core.config.delayed_ack, ato{c.ato_ns};
  if (c.ato_ns == 0) {  // the first text
    begin_quick_acks(c);
    c.ato_ns = ato_of(least);
  } else if (gap <= least / 2) {
    c.ato_ns = ato_of(ato / 2 + least / 2);
  } else if (gap < ato) {
    c.ato_ns = ato_of(std::min(ato / 2 + gap, c.rto));
  } else if (gap > c.rto) {  // the sender starts anew, and has to grow by our ACKs
    begin_quick_acks(c);
  }
}

/// tcp_send_delayed_ack().
static void delay_ack(TcpContext& t, TcpConn& c, Instant now) {
  const Duration least = t.core.config.delayed_ack;
  Duration ato{c.ato_ns};
  if (ato > least) {
    Duration most = c.pingpong || c.pushed ? kMostDelay : kMostBulkDelay;
    if (c.srtt.count() > 0) most = std::min(most, std::max(c.srtt, least));
    ato = std::min(ato, most);
  }
  const Instant running = c.deadlines[kTimerAck];
  if (ato.count() == 0 || running <= now + ato / 4) {
    c.ack_now = true;
    want_output(t, c);
  } else if (running > now + ato) {
    set_timer(t, c, kTimerAck, now + ato);
  }
}

void owe_ack(TcpContext& t, TcpConn& c, bool now_please, Instant now) {
  // tcp_in_quickack_mode()
  const bool quick = ((c.quick_acks > 0 || c.settings.quickack) && !c.pingpong) ||
                     (c.metrics != 0 && metrics_of(t, c).quickack);
  if (!now_please && !quick && c.rcv_nxt - c.rcv_wup <= c.rcv_mss && !c.out_of_order)
    return delay_ack(t, c, now);
  c.ack_now = true;
  want_output(t, c);
}

void ack_in_order(TcpContext& t, TcpConn& c, bool filled_gap, Instant now) {
  c.duplicates_told = c.compressed = 0;
  if (c.fin_early && c.fin_early_seq == c.rcv_nxt)
    return owe_ack(t, c, true, now);  // it tells of the FIN, too
  if (filled_gap || c.dsack_due || c.rcv_nxt - c.rcv_wup >= kMostTold) return ack_at_once(t, c, now);
  owe_ack(t, c, false, now);
}

void ack_out_of_order(TcpContext& t, TcpConn& c, bool extends, Instant now) {
  const bool compressible = c.sack_ok && extends && !c.dsack_due && c.duplicates_told >= kDupThreshold &&
                            c.compressed < kMostCompressed;
  if (!compressible) {
    if (c.duplicates_told < kDupThreshold) ++c.duplicates_told;
    c.compressed = 0;
    return ack_at_once(t, c, now);
  }
  ++c.compressed;
  c.ack_now = true;
  want_output(t, c);
}

void on_ack_timer(TcpContext& t, TcpConn& c) {
  if (c.pingpong)  // the reply that the ACK waited for did not come
    c.ato_ns = ato_of(t.core.config.delayed_ack);
  else
    c.ato_ns = ato_of(std::min<Duration>(2 * Duration{c.ato_ns}, c.rto));
  c.pingpong = false;
  c.ack_now = true;
  want_output(t, c);
}

}  // namespace accel::tcp
