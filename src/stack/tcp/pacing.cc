// When a paced connection's segments leave: SO_MAX_PACING_RATE, BBR.
#include <algorithm>

#include "stack/tcp/context.h"

namespace accel::tcp {

constexpr Duration kPacedTime = 1ms;       ///< of one burst
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

uint32_t paced_bytes(TcpConn& c, Instant now) {
  Rates& r = *c.rates;
  if (unlimited(c)) return 0xffffffff;
  if (now != r.burst_at) {
    if (now < r.next_burst) return 0;
    r.burst_at = now;
    r.paid_until = std::max(r.paid_until, now - kPacedTime);  // what was late is made good
    r.burst_end = r.paid_until + kPacedTime;
  }
  const double left = std::chrono::duration<double>(r.burst_end - r.paid_until).count();
  const auto bytes = static_cast<int64_t>(std::min(left * static_cast<double>(r.pacing_rate), 1e9));
  const bool first = r.burst_end - r.paid_until >= kPacedTime;
  if (bytes < c.snd_mss) return first ? c.snd_mss : 0;
  return static_cast<uint32_t>(bytes);
}

void note_paced(TcpConn& c, uint32_t bytes, Instant now) {
  Rates& r = *c.rates;
  if (unlimited(c)) return;
  const Duration took = time_of(bytes, r.pacing_rate);
  if (now != r.burst_at) {  // a probe or another segment that nothing holds back
    r.burst_at = now;
    r.burst_end = r.paid_until = std::max(r.paid_until, now);
  }
  r.paid_until += took;
  // Bursts that make good what was late have half of their time between them.
  r.next_burst = std::max(r.paid_until, now + kPacedTime / 2);
}

}  // namespace accel::tcp
