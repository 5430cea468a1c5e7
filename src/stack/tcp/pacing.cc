// When a paced connection's segments leave: SO_MAX_PACING_RATE, BBR.
#include <algorithm>

#include "stack/tcp/context.h"

namespace accel::tcp {

constexpr Duration kBurstTime = 1ms;       ///< the most that leaves at once
constexpr Duration kMostCredit = 1500us;   ///< what was not used is made good, so much of it
constexpr Duration kPause = 500us;         ///< between bursts, where timers make them
constexpr uint32_t kUnpacedSegments = 10;  ///< tcp_update_skb_after_send(): the first ones

/// tcp_update_pacing_rate(): twice the window a round trip in slow start, a fifth more than it behind that.
uint64_t window_rate(const TcpConn& c) {
  if (c.srtt.count() == 0) return kNoPacing;
  const uint64_t percent = c.cwnd < c.ssthresh / 2 ? 200 : 120;
  const uint64_t window = std::max<uint64_t>(c.cwnd, c.flight());
  return window * percent * 10'000'000 / static_cast<uint64_t>(c.srtt.count());
}

void begin_pacing(TcpConn& c, Instant now) {
  const bool wanted = c.settings.max_pacing_rate != kNoPacing;
  if (!wanted && !c.paced) return;
  Rates* r = need_rates(c, now);
  if (r == nullptr) return;
  c.paced = true;
  const uint64_t rate = r->bbr ? r->pacing_rate : window_rate(c);
  r->pacing_rate = std::min(rate, c.settings.max_pacing_rate);
}

static Duration time_of(uint64_t bytes, uint64_t rate) {
  const double seconds = static_cast<double>(bytes) / static_cast<double>(std::max<uint64_t>(rate, 1));
  return Duration{static_cast<int64_t>(std::min(seconds, 60.0) * 1e9)};
}

static bool unlimited(const TcpConn& c) {
  const uint64_t rate = c.rates->pacing_rate;
  return rate == kNoPacing || rate == 0 || c.data_segments_out < kUnpacedSegments;
}

/// How long `bytes` take; what takes longer than a burst may leave as one.
static Duration burst_time(const TcpConn& c, uint32_t bytes) {
  return std::min(kBurstTime, time_of(bytes, c.rates->pacing_rate));
}

bool may_leave(TcpConn& c, uint32_t bytes, Instant now) {
  if (unlimited(c)) return true;
  Rates& r = *c.rates;
  r.paid_until = std::max(r.paid_until, now - kMostCredit);
  if (now != r.burst_at) {
    r.burst_at = now;
    r.burst_end = r.paid_until + kBurstTime;
  }
  return r.paid_until + burst_time(c, bytes) <= std::min(now, r.burst_end);
}

uint32_t paced_bytes(const TcpConn& c, Instant now) {
  if (unlimited(c)) return 0xffffffff;
  const Rates& r = *c.rates;
  const double left = std::chrono::duration<double>(std::min(now, r.burst_end) - r.paid_until).count();
  return static_cast<uint32_t>(std::clamp(left * static_cast<double>(r.pacing_rate), 0.0, 1e9));
}

void note_paced(TcpConn& c, uint32_t bytes, Instant now) {
  if (unlimited(c)) return;
  Rates& r = *c.rates;
  r.paid_until = std::max(r.paid_until, now - kMostCredit) + time_of(bytes, r.pacing_rate);
}

Instant pacing_deadline(const TcpConn& c) {
  return c.rates->paid_until + std::max(kPause, burst_time(c, c.snd_mss));
}

}  // namespace accel::tcp
