// Delivery rates (draft-cheng-iccrg-delivery-rate-estimation, as net/ipv4/tcp_rate.c), and pacing.
#include <algorithm>
#include <new>

#include "stack/tcp/context.h"

namespace accel::tcp {

constexpr Duration kPacedTime = 1ms;       ///< of one burst
constexpr uint32_t kUnpacedSegments = 10;  ///< tcp_update_skb_after_send(): the first ones

Rates* need_rates(TcpConn& c, Instant now) {
  if (c.rates) return c.rates.get();
  c.rates.reset(new (std::nothrow) Rates);
  if (c.rates) c.rates->delivered_us = c.rates->first_sent_us = microseconds(now);
  return c.rates.get();
}

// ---------------------------------------------------------------- delivery rates

void stamp_sent(TcpConn& c, uint32_t i) {
  const Rates& r = *c.rates;
  if (SendStamp* stamp = c.sent.stamp_of(c.sent[i]))
    *stamp = {c.delivered, r.delivered_us, r.first_sent_us, true, r.app_limited != 0};
}

void stamp_new(TcpConn& c, uint32_t segments, Instant now) {
  Rates* r = need_rates(c, now);
  if (r == nullptr) return;
  if (!c.sampled) r->app_limited = std::max(1u, c.delivered + c.sent.size());  // until now it was
  if (!c.sampled || c.sent.size() == segments) r->first_sent_us = r->delivered_us = microseconds(now);
  c.sampled = true;
  for (uint32_t i = c.sent.size() - segments; i < c.sent.size(); ++i) stamp_sent(c, i);
}

/// tcp_rate_skb_delivered().
void sample_delivered(TcpConn& c, const SentSegment& s, Instant now) {
  SendStamp* stamp = c.sent.stamp_of(s);
  if (stamp == nullptr || !stamp->valid) return;
  stamp->valid = false;
  RateSample& r = c.rates->sample;
  const bool newer =
      !r.taken || seq_gt(s.sent_us, r.sent_us) || (s.sent_us == r.sent_us && seq_gt(s.end, r.end));
  if (!newer) return;
  r.taken = true;
  r.prior_delivered = stamp->delivered;
  r.prior_us = stamp->delivered_us;
  r.sent_us = s.sent_us;
  r.end = s.end;
  r.send_us = s.sent_us - stamp->first_sent_us;
  r.rtt_us = s.ever_resent ? 0 : std::max(1u, microseconds(now) - s.sent_us);
  r.app_limited = stamp->app_limited;
  c.rates->first_sent_us = s.sent_us;
}

void begin_sample(TcpConn& c) {
  c.rates->sample = {};
  c.rates->sample.prior_in_flight = c.pipe();
  c.rates->sample.prior_lost = c.rates->lost_bytes;
  c.rates->sample.had_delivered = c.delivered;
}

/// tcp_rate_gen().
void finish_sample(TcpConn& c, uint32_t delivered_bytes, Instant now) {
  Rates& r = *c.rates;
  RateSample& s = r.sample;
  if (r.app_limited != 0 && seq_gt(c.delivered, r.app_limited)) r.app_limited = 0;
  if (c.delivered != s.had_delivered) r.delivered_us = microseconds(now);
  s.acked_bytes = delivered_bytes;
  s.lost_bytes = r.lost_bytes - s.prior_lost;
  if (!s.taken) return;
  s.delivered = c.delivered - s.prior_delivered;
  const uint32_t interval = std::max(s.send_us, microseconds(now) - s.prior_us);
  if (interval == 0 || interval < c.min_rtt_us) return;  // it was measured over less than a round trip
  s.interval_us = interval;
  const bool more = uint64_t{s.delivered} * r.best_interval_us >= uint64_t{r.best_delivered} * interval;
  if (s.app_limited && !more) return;
  r.best_delivered = s.delivered;
  r.best_interval_us = interval;
  r.best_app_limited = s.app_limited;
}

void note_app_limited(TcpConn& c) {
  if (unsent(c) >= c.snd_mss || c.pipe() >= c.cwnd || c.lost_bytes > c.resent_bytes) return;
  c.rates->app_limited = std::max(1u, c.delivered + (c.pipe() + c.snd_mss - 1) / c.snd_mss);
}

uint64_t delivery_rate(const TcpConn& c) {
  if (!c.rates || c.rates->best_interval_us == 0) return 0;
  return uint64_t{c.rates->best_delivered} * c.snd_mss * 1'000'000 / c.rates->best_interval_us;
}

// ---------------------------------------------------------------- pacing

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
  r->pacing_rate = std::min(window_rate(c), c.settings.max_pacing_rate);
}

static Duration time_of(uint64_t bytes, uint64_t rate) {
  const double seconds = static_cast<double>(bytes) / static_cast<double>(std::max<uint64_t>(rate, 1));
  return Duration{static_cast<int64_t>(std::min(seconds, 60.0) * 1e9)};
}

static bool unlimited(const TcpConn& c) {
  return c.rates->pacing_rate == kNoPacing || c.data_segments_out < kUnpacedSegments;
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
