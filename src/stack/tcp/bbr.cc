// BBR version 1: draft-cardwell-iccrg-bbr-congestion-control-00, whose sections stand beside the code. In
// recovery, with aggregated ACKs and policers, and in numbers that the draft leaves open it does as Linux.
// There is no randomness here: the flow's hash chooses where the cycle of gains begins.
#include <algorithm>
#include <cmath>
#include <new>

#include "stack/tcp/context.h"
#include "stack/tcp/tcp.h"

namespace accel::tcp {

namespace {

constexpr float kHighGain = 2885.0f / 1000 + 1.0f / 1000;  // section 4.1.1, 2/ln(2)
constexpr float kDrainGain = 1000.0f / 2885;
constexpr std::array<float, 8> kCycle{1.25f, 0.75f, 1, 1, 1, 1, 1, 1};  // section 4.3.4
constexpr float kFullGrowth = 1.25f;                                    // section 4.3.2
constexpr uint8_t kFullRounds = 3;
constexpr Duration kMinRttLife = 10s, kProbeRttTime = 200ms;  // section 4.3.5
constexpr uint32_t kLeastWindow = 4;                          // section 4.2.3.3
constexpr float kPacingMargin = 0.99f;                        // bbr_pacing_margin_percent
constexpr float kSlowRate = 150'000;                          // bytes/s: bbr_min_tso_rate
// Linux' bbr_extra_acked_win_rtts, bbr_extra_acked_max_us, bbr_ack_epoch_acked_reset_thresh.
constexpr uint8_t kExtraRounds = 5;
constexpr float kMostExtraTime = 0.1f;
constexpr uint64_t kMostEpochSegments = 1u << 20;
// Linux' bbr_lt_*: rounds of an interval and of the use of what it told, the least loss, and how near each
// other two intervals are.
constexpr uint8_t kLeastPoliceRounds = 4, kMostPoliceRounds = 16, kPolicedRounds = 48;
constexpr float kPoliceLoss = 50.0f / 256, kPoliceLikeness = 0.125f, kPoliceNoise = 500;

Bbr& bbr_of(TcpConn& c) { return *c.rates->bbr; }

float seconds(Duration d) { return std::chrono::duration<float>(d).count(); }

/// Section 4.2.3.2, without what is for bursts.
uint32_t product(const TcpConn& c, const Bbr& b, float bandwidth, float gain) {
  if (b.min_rtt_us == Bbr::kNoRtt) return initial_window(c.snd_mss);
  const float bytes = bandwidth * static_cast<float>(b.min_rtt_us) * 1e-6f * gain;
  return static_cast<uint32_t>(std::min(bytes, 1e9f)) + c.snd_mss;
}

/// Room for three bursts; in the phase that probes for more for two segments besides
/// (bbr_quantization_budget()).
uint32_t with_bursts(const TcpConn& c, const Bbr& b, uint32_t window) {
  const auto rate = static_cast<float>(c.rates->pacing_rate == kNoPacing ? 0 : c.rates->pacing_rate);
  const uint32_t least = rate < kSlowRate ? 1 : 2;
  const uint32_t burst = std::clamp(static_cast<uint32_t>(rate * 1e-3f) / c.snd_mss, least, 0x7fu);
  window += 3 * burst * c.snd_mss;
  if (b.mode == Bbr::Mode::kProbeBandwidth && b.cycle_index == 0) window += 2u * c.snd_mss;
  return window;
}

uint32_t inflight_at(const TcpConn& c, const Bbr& b, float gain) {
  return with_bursts(c, b, product(c, b, b.bandwidth(), gain));
}

uint32_t least_window(const TcpConn& c) { return kLeastWindow * c.snd_mss; }

/// Section 4.2.1. While the bandwidth is not known the rate only grows.
void set_pacing_rate(TcpConn& c, float gain) {
  Bbr& b = bbr_of(c);
  float rate = b.rate() * gain * kPacingMargin;
  if (!b.rtt_seen && c.srtt.count() > 0) {
    b.rtt_seen = true;
    const float srtt = seconds(std::max<Duration>(c.srtt, 1us));
    c.rates->pacing_rate =
        static_cast<uint64_t>(static_cast<float>(c.cwnd) / srtt * kHighGain * kPacingMargin);
  }
  const auto known = static_cast<float>(c.rates->pacing_rate);
  rate = std::min(rate, 1e18f);
  if (b.full || rate > known) c.rates->pacing_rate = static_cast<uint64_t>(rate);
  c.rates->pacing_rate =
      std::clamp<uint64_t>(c.rates->pacing_rate, 1, std::max<uint64_t>(c.settings.max_pacing_rate, 1));
}

void begin_police_interval(const TcpConn& c, Bbr& b, Instant now) {
  b.police_at = now;
  b.police_delivered = c.delivered;
  b.police_lost_bytes = c.rates->lost_bytes;
  b.police_rounds = 0;
}

void forget_policer(const TcpConn& c, Bbr& b, Instant now) {
  b.policed_bandwidth = 0;
  b.policed = b.police_sampling = false;
  begin_police_interval(c, b, now);
}

/// An interval has ended in which much was lost: twice the same rate is a policer's.
void judge_police_interval(const TcpConn& c, Bbr& b, float bandwidth, Instant now) {
  const float before = b.policed_bandwidth, apart = std::abs(bandwidth - before);
  const bool alike = before > 0 && (apart <= before * kPoliceLikeness || apart <= kPoliceNoise);
  b.policed_bandwidth = alike ? (bandwidth + before) / 2 : bandwidth;
  b.policed = alike;
  begin_police_interval(c, b, now);
}

void enter_probe_bandwidth(const TcpConn& c, Bbr& b, Instant now);

/// bbr_lt_bw_sampling(): a policer drops what exceeds its rate, whatever the queue. The rates of two
/// intervals of at least four rounds, from a loss to a loss, tell of it; that rate is used for 48 rounds.
void look_for_policer(const TcpConn& c, Bbr& b, bool lost, Instant now) {
  if (b.policed) {
    if (b.mode != Bbr::Mode::kProbeBandwidth || !b.round_start || ++b.police_rounds < kPolicedRounds) return;
    forget_policer(c, b, now);
    return enter_probe_bandwidth(c, b, now);
  }
  if (!b.police_sampling) {
    if (!lost) return;
    begin_police_interval(c, b, now);
    b.police_sampling = true;
  }
  if (c.rates->sample.app_limited) return forget_policer(c, b, now);
  if (b.round_start) ++b.police_rounds;
  if (b.police_rounds > kMostPoliceRounds) return forget_policer(c, b, now);
  if (b.police_rounds < kLeastPoliceRounds || !lost) return;
  const auto delivered = static_cast<float>(c.delivered - b.police_delivered) * static_cast<float>(c.snd_mss);
  const auto gone = static_cast<float>(c.rates->lost_bytes - b.police_lost_bytes);
  if (delivered == 0 || gone < delivered * kPoliceLoss || now - b.police_at < 1ms) return;
  judge_police_interval(c, b, delivered / seconds(now - b.police_at), now);
}

/// Section 4.1.1.3 and 4.1.1.5: rounds, and the most that was delivered in each of the last ten.
void update_bandwidth(TcpConn& c, Bbr& b, Instant now) {
  const RateSample& s = c.rates->sample;
  b.round_start = false;
  if (s.interval_us == 0) return;
  if (seq_ge(s.prior_delivered, b.round_end)) {
    b.round_end = c.delivered;
    ++b.rounds;
    b.bandwidths[b.rounds % Bbr::kBandwidthRounds] = 0;
    b.round_start = true;
    b.conserves = false;
  }
  look_for_policer(c, b, s.lost_bytes > 0, now);
  const float bandwidth = static_cast<float>(s.delivered) * static_cast<float>(c.snd_mss) * 1e6f /
                          static_cast<float>(s.interval_us);
  if (s.app_limited && bandwidth < b.bandwidth()) return;
  float& of_round = b.bandwidths[b.rounds % Bbr::kBandwidthRounds];
  of_round = std::max(of_round, bandwidth);
}

/// bbr_update_ack_aggregation(): how much more ACKs tell of at once than the bandwidth explains. The window
/// has to hold that besides.
void update_aggregation(TcpConn& c, Bbr& b, Instant now) {
  const RateSample& s = c.rates->sample;
  if (s.acked_bytes == 0 || s.interval_us == 0) return;
  if (b.round_start && ++b.extra_rounds >= kExtraRounds) {
    b.extra_rounds = 0;
    b.extra_index ^= 1;
    b.extra_acked[b.extra_index] = 0;
  }
  auto expected = static_cast<uint64_t>(b.rate() * seconds(std::min<Duration>(now - b.epoch_at, 60s)));
  if (b.epoch_acked <= expected || b.epoch_acked >= kMostEpochSegments * c.snd_mss) {
    b.epoch_acked = 0;
    b.epoch_at = now;
    expected = 0;
  }
  b.epoch_acked += s.acked_bytes;
  const auto extra = static_cast<uint32_t>(std::min<uint64_t>(b.epoch_acked - expected, c.cwnd));
  b.extra_acked[b.extra_index] = std::max(b.extra_acked[b.extra_index], extra);
}

void advance_cycle(Bbr& b, Instant now) {
  b.cycle_index = static_cast<uint8_t>((b.cycle_index + 1) % kCycle.size());
  b.cycle_at = now;
}

/// Section 4.3.4.2: any phase but the one that drains.
void enter_probe_bandwidth(const TcpConn& c, Bbr& b, Instant now) {
  b.mode = Bbr::Mode::kProbeBandwidth;
  b.cycle_index = static_cast<uint8_t>(kCycle.size() - 1 - (c.flow_hash ^ b.rounds) % 7);
  advance_cycle(b, now);
}

/// Section 4.3.4.3.
bool cycle_is_over(const TcpConn& c, const Bbr& b, Instant now) {
  const RateSample& s = c.rates->sample;
  const bool lasted = now - b.cycle_at > Duration{1us} * b.min_rtt_us;
  const float gain = b.policed ? 1 : kCycle[b.cycle_index];
  if (gain > 1) return lasted && (s.lost_bytes > 0 || s.prior_in_flight >= inflight_at(c, b, gain));
  if (gain < 1) return lasted || s.prior_in_flight <= inflight_at(c, b, 1);
  return lasted;
}

/// Section 4.3.2.2.
void look_for_full_pipe(const TcpConn& c, Bbr& b) {
  if (b.full || !b.round_start || c.rates->sample.app_limited) return;
  if (b.bandwidth() >= b.full_bandwidth * kFullGrowth) {
    b.full_bandwidth = b.bandwidth();
    b.full_count = 0;
    return;
  }
  b.full = ++b.full_count >= kFullRounds;
}

/// Section 4.3.3.
void look_for_drained_queue(TcpConn& c, Bbr& b, Instant now) {
  if (b.mode == Bbr::Mode::kStartup && b.full) {
    b.mode = Bbr::Mode::kDrain;
    c.ssthresh = inflight_at(c, b, 1);
  }
  if (b.mode == Bbr::Mode::kDrain && c.pipe() <= inflight_at(c, b, 1)) enter_probe_bandwidth(c, b, now);
}

void save_window(TcpConn& c, Bbr& b) {
  const bool disturbed = !b.recovered || b.mode == Bbr::Mode::kProbeRtt;
  b.prior_cwnd = disturbed ? std::max(b.prior_cwnd, c.cwnd) : c.cwnd;
}

void leave_probe_rtt_once_done(TcpConn& c, Bbr& b, Instant now) {
  if (b.probe_done == kNever || now <= b.probe_done) return;
  b.min_rtt_at = now;
  c.cwnd = std::max(c.cwnd, b.prior_cwnd);
  if (b.full)
    enter_probe_bandwidth(c, b, now);
  else
    b.mode = Bbr::Mode::kStartup;
}

void probe_rtt(TcpConn& c, Bbr& b, Instant now) {
  // What is delivered meanwhile says nothing of the bandwidth.
  c.rates->app_limited = std::max(1u, c.delivered + (c.pipe() + c.snd_mss - 1) / c.snd_mss);
  if (b.probe_done == kNever) {
    if (c.pipe() > least_window(c)) return;
    b.probe_done = now + kProbeRttTime;
    b.probe_round_done = false;
    b.round_end = c.delivered;
    return;
  }
  b.probe_round_done = b.probe_round_done || b.round_start;
  if (b.probe_round_done) leave_probe_rtt_once_done(c, b, now);
}

/// Section 4.1.2 and 4.3.5.
void update_min_rtt(TcpConn& c, Bbr& b, Instant now) {
  const RateSample& s = c.rates->sample;
  const bool expired = now > b.min_rtt_at + kMinRttLife;
  const bool may_be_delayed = c.sent.empty() && s.acked_bytes <= c.snd_mss;
  if (s.rtt_us != 0 && (s.rtt_us < b.min_rtt_us || (expired && !may_be_delayed))) {
    b.min_rtt_us = s.rtt_us;
    b.min_rtt_at = now;
  }
  if (expired && !b.restarts && b.mode != Bbr::Mode::kProbeRtt) {
    b.mode = Bbr::Mode::kProbeRtt;
    save_window(c, b);
    b.probe_done = kNever;
  }
  if (b.mode == Bbr::Mode::kProbeRtt) probe_rtt(c, b, now);
  if (s.taken && s.delivered > 0) b.restarts = false;
}

void update_gains(Bbr& b) {
  switch (b.mode) {
    case Bbr::Mode::kStartup:
      b.pacing_gain = b.window_gain = kHighGain;
      break;
    case Bbr::Mode::kDrain:
      b.pacing_gain = kDrainGain;
      b.window_gain = kHighGain;
      break;
    case Bbr::Mode::kProbeBandwidth:
      b.pacing_gain = b.policed ? 1 : kCycle[b.cycle_index];
      b.window_gain = 2;
      break;
    case Bbr::Mode::kProbeRtt:
      b.pacing_gain = b.window_gain = 1;
      break;
  }
}

/// Section 4.2.3.4, bbr_set_cwnd_to_recover_or_restore(). True: the window is settled by that.
bool recover_or_restore(TcpConn& c, Bbr& b) {
  const RateSample& s = c.rates->sample;
  if (s.lost_bytes > 0)
    c.cwnd = std::max<uint32_t>(c.cwnd > s.lost_bytes ? c.cwnd - s.lost_bytes : 0, c.snd_mss);
  const bool lossy = c.recovery == Recovery::kFast;
  if (lossy && !b.lossy) {
    b.conserves = true;
    b.round_end = c.delivered;
    c.cwnd = c.pipe() + s.acked_bytes;
  } else if (!b.recovered && !recovers(c)) {
    c.cwnd = std::max(c.cwnd, b.prior_cwnd);
    b.conserves = false;
  }
  b.lossy = lossy;
  b.recovered = !recovers(c);
  if (b.conserves) c.cwnd = std::max(c.cwnd, c.pipe() + s.acked_bytes);
  return b.conserves;
}

uint32_t aggregation_window(const Bbr& b) {
  if (!b.full) return 0;
  const uint32_t extra = std::max(b.extra_acked[0], b.extra_acked[1]);
  return std::min(extra, static_cast<uint32_t>(std::min(b.rate() * kMostExtraTime, 1e9f)));
}

/// Section 4.2.3.
void set_window(TcpConn& c, Bbr& b) {
  const RateSample& s = c.rates->sample;
  if (s.acked_bytes > 0 && !recover_or_restore(c, b)) {
    const uint32_t target = with_bursts(c, b, product(c, b, b.rate(), b.window_gain) + aggregation_window(b));
    if (b.full)
      c.cwnd = std::min(c.cwnd + s.acked_bytes, target);
    else if (c.cwnd < target || c.delivered < 10)
      c.cwnd += s.acked_bytes;
    c.cwnd = std::max(c.cwnd, least_window(c));
  }
  if (b.mode == Bbr::Mode::kProbeRtt) c.cwnd = std::min(c.cwnd, least_window(c));
  c.cwnd = std::min(c.cwnd, kMostWindow);
}

}  // namespace

static void begin_bbr(TcpConn& c, Instant now) {
  if (!c.sent.reserve_stamps() || !begin_sampling(c, now)) return;
  Rates* r = c.rates.get();
  r->bbr.reset(new (std::nothrow) Bbr);
  if (!r->bbr) return;
  Bbr& b = *r->bbr;
  b.round_end = c.delivered;
  b.min_rtt_us = c.min_rtt_us;
  b.min_rtt_at = b.epoch_at = b.cycle_at = now;
  update_gains(b);
  b.rtt_seen = c.srtt.count() > 0;
  const float rtt = b.rtt_seen ? seconds(std::max<Duration>(c.srtt, 1us)) : 1e-3f;
  const float rate = static_cast<float>(c.cwnd) / rtt * kHighGain * kPacingMargin;
  r->pacing_rate = std::min(static_cast<uint64_t>(std::min(rate, 1e18f)), c.settings.max_pacing_rate);
  c.paced = true;
}

/// tcp_reinit_congestion_control(). What was paced stays so, as Linux'.
void choose_congestion(TcpConn& c, Instant now) {
  const bool wanted = c.settings.congestion == Congestion::kBbr;
  if (wanted == runs_bbr(c)) return;
  if (wanted) return begin_bbr(c, now);
  c.rates->bbr.reset();
  if (c.ssthresh >= kNoThreshold)
    c.growth.hystart = {};
  else
    c.growth.cubic = {};
}

void bbr_on_ack(TcpConn& c, Instant now) {
  Bbr& b = bbr_of(c);
  update_bandwidth(c, b, now);
  update_aggregation(c, b, now);
  if (b.mode == Bbr::Mode::kProbeBandwidth && cycle_is_over(c, b, now)) advance_cycle(b, now);
  look_for_full_pipe(c, b);
  look_for_drained_queue(c, b, now);
  update_min_rtt(c, b, now);
  update_gains(b);
  set_pacing_rate(c, b.pacing_gain);
  set_window(c, b);
}

BbrInfo bbr_info(const TcpConn& c) {
  const Bbr& b = *c.rates->bbr;
  // Linux' gains are whole: bbr_high_gain is rounded up, bbr_drain_gain down.
  auto shown = [](float gain) {
    return static_cast<uint32_t>(gain > 1 ? std::ceil(gain * 256) : gain * 256);
  };
  return {static_cast<uint64_t>(b.rate()), b.min_rtt_us, shown(b.pacing_gain), shown(b.window_gain)};
}

void bbr_reduction(TcpConn& c) { save_window(c, bbr_of(c)); }

void bbr_timeout(TcpConn& c, Instant now) {
  Bbr& b = bbr_of(c);
  b.recovered = b.lossy = false;
  b.full_bandwidth = 0;
  b.round_start = true;
  look_for_policer(c, b, true, now);
}

void bbr_undo(TcpConn& c, Instant now) {
  Bbr& b = bbr_of(c);
  b.full_bandwidth = 0;
  b.full_count = 0;
  forget_policer(c, b, now);
}

void bbr_restart(TcpConn& c, Instant now) {
  if (c.rates->app_limited == 0) return;
  Bbr& b = bbr_of(c);
  b.restarts = true;
  b.epoch_at = now;
  b.epoch_acked = 0;
  if (b.mode == Bbr::Mode::kProbeBandwidth)
    set_pacing_rate(c, 1);
  else if (b.mode == Bbr::Mode::kProbeRtt)
    leave_probe_rtt_once_done(c, b, now);
}

}  // namespace accel::tcp
