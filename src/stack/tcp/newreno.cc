// Congestion control: slow start for all, NewReno's congestion avoidance (RFC 5681 with appropriate byte
// counting, RFC 3465).
#include <algorithm>

#include "stack/tcp/context.h"

namespace accel::tcp {

/// RFC 6928.
uint32_t initial_window(uint32_t mss) { return std::min(10 * mss, std::max(2 * mss, 14600u)); }

void newreno_avoidance(TcpConn& c, uint32_t acked) {
  c.cwnd_acked += acked;
  if (c.cwnd_acked >= c.cwnd) {
    c.cwnd_acked -= c.cwnd;
    c.cwnd += c.snd_mss;
  }
}

void grow_window(TcpConn& c, uint32_t acked, Instant now) {
  // RFC 7661's concern: an unused window says nothing. Slow start may double what was half used.
  bool used = c.cwnd_limited || (c.cwnd < c.ssthresh && 2 * (c.flight() + acked) >= c.cwnd);
  if (!used) return;
  if (c.cwnd < c.ssthresh) {
    uint32_t step = std::min(acked, c.ssthresh - c.cwnd);
    c.cwnd += step;
    acked -= step;
    if (acked == 0) return;
  }
  if (c.settings.newreno)
    newreno_avoidance(c, acked);
  else
    cubic_avoidance(c, acked, now);
  c.cwnd = std::min(c.cwnd, 1u << 30);
}

uint32_t reduced_window(TcpConn& c) {
  uint32_t least = 2u * c.snd_mss;
  if (c.settings.newreno) return std::max(c.flight() / 2, least);
  cubic_loss(c);
  return std::max(static_cast<uint32_t>(static_cast<float>(c.cwnd) * 0.7f), least);
}

}  // namespace accel::tcp
