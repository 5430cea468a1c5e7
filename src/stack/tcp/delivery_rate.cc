// Delivery rates: draft-cheng-iccrg-delivery-rate-estimation, as net/ipv4/tcp_rate.c.
#include <algorithm>
#include <new>

#include "stack/tcp/context.h"

namespace accel::tcp {

Rates* need_rates(TcpConn& c, Instant now) {
  if (c.rates) return c.rates.get();
  c.rates.reset(new (std::nothrow) Rates);
  if (c.rates) c.rates->delivered_us = c.rates->first_sent_us = microseconds(now);
  return c.rates.get();
}

void stamp_sent(TcpConn& c, uint32_t i) {
  const Rates& r = *c.rates;
  if (SendStamp* stamp = c.sent.stamp_of(c.sent[i]))
    *stamp = {c.delivered, r.delivered_us, r.first_sent_us, true, r.app_limited != 0};
}

bool begin_sampling(TcpConn& c, Instant now) {
  Rates* r = need_rates(c, now);
  if (r == nullptr) return false;
  for (uint32_t i = 0; i < c.sent.size(); ++i) c.sent.stamp_of(c.sent[i])->valid = false;
  r->app_limited = std::max(1u, c.delivered + c.sent.size());  // until now it was
  r->first_sent_us = r->delivered_us = microseconds(now);
  c.sampled = true;
  return true;
}

void stamp_new(TcpConn& c, uint32_t segments, Instant now) {
  if (!c.sampled && !begin_sampling(c, now)) return;
  Rates& r = *c.rates;
  if (c.sent.size() == segments) r.first_sent_us = r.delivered_us = microseconds(now);
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

}  // namespace accel::tcp
