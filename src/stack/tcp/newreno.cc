// Congestion control: slow start for all, NewReno's congestion avoidance (RFC 5681 with appropriate byte
// counting, RFC 3465).
#include <algorithm>

#include "stack/tcp/context.h"

namespace accel::tcp {

/// tcp_cwnd_restart(): RFC 5681 section 4.1, a half for each timeout that has passed, and the window that was
/// is the threshold. A pause is no time of CUBIC's either way (RFC 9438 section 5.8, bictcp_cwnd_event()).
void restart_after_idle(const TcpContext& t, TcpConn& c, Instant now) {
  if (runs_bbr(c)) return bbr_restart(c, now);
  const Duration idle = now - c.last_sent;
  const bool hystart = c.ssthresh >= kNoThreshold;
  if (CubicState& q = c.growth.cubic; !is_reno(c) && !hystart && q.epoch != Instant{})
    q.epoch = std::min(q.epoch + idle, now);
  if (idle <= c.rto || !t.core.config.slow_start_after_idle) return;
  c.ssthresh = std::max(c.ssthresh, c.cwnd / 2 + c.cwnd / 4);
  const uint32_t least = std::min(initial_window(t, c), c.cwnd);
  for (Duration left = idle - c.rto; left.count() > 0 && c.cwnd > least; left -= c.rto) c.cwnd /= 2;
  c.cwnd = std::max(c.cwnd, least);
}

void newreno_avoidance(TcpConn& c, uint32_t acked) {
  c.cwnd_acked += acked;
  if (c.cwnd_acked >= c.cwnd) {
    c.cwnd_acked -= c.cwnd;
    c.cwnd += c.snd_mss;
  }
}

void grow_window(TcpConn& c, const AckEvent& e, Instant now) {
  uint32_t acked = std::min(e.acked, e.delivered);  // what SACKs told of has counted in recovery
  // tcp_is_cwnd_limited(): an unused window says nothing (RFC 7661). Slow start may double what was half
  // used.
  bool used = c.cwnd_limited || (c.cwnd < c.ssthresh && 2 * (c.flight() + acked) > c.cwnd);
  if (!used) return;
  if (c.cwnd < c.ssthresh) {
    uint32_t step = std::min(acked, c.ssthresh - c.cwnd);
    acked -= step;
    const bool first = c.ssthresh >= kNoThreshold && !is_reno(c);
    c.cwnd += first ? hystart_step(c, step, e, now) : step;
    if (acked == 0) return;
  }
  if (is_reno(c))
    newreno_avoidance(c, acked);
  else
    cubic_avoidance(c, acked, now);
  c.cwnd = std::min(c.cwnd, kMostWindow);
}

uint32_t reduced_window(TcpConn& c) {
  if (runs_bbr(c)) {
    bbr_reduction(c);
    return c.ssthresh;
  }
  uint32_t least = 2u * c.snd_mss;
  if (is_reno(c)) return std::max(c.cwnd / 2, least);  // tcp_reno_ssthresh()
  cubic_loss(c);
  return std::max(static_cast<uint32_t>(static_cast<float>(c.cwnd) * 0.7f), least);
}

}  // namespace accel::tcp
