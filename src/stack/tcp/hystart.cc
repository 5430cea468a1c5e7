// Slow start ends before it overflows the path's queue: where the round trips grow, HyStart++ (RFC 9406), and
// where a round's ACKs come one behind the other for so long that the path is full, as Linux'
// hystart_update() has it.
#include <algorithm>

#include "stack/tcp/context.h"

namespace accel::tcp {

// RFC 9406 section 4.3. Its limit L of what one ACK may add is infinite, as in Linux: peers acknowledge many
// segments at once.
constexpr uint32_t kLeastThresholdUs = 4000, kMostThresholdUs = 16000, kThresholdDivisor = 8;
constexpr uint8_t kSamples = 8, kFewSamples = 3, kSlowRounds = 5;
constexpr uint32_t kSlowDivisor = 4;
// Linux: hystart_low_window, hystart_ack_delta_us, and the bursts of hystart_ack_delay().
constexpr uint32_t kLeastSegments = 16;
constexpr Duration kTrainGap = 2ms;
constexpr uint64_t kBurst = 4 * 65536;

/// RFC 9406 section 4.2. A process that looks seldom brings many ACKs at once: those of three looks tell as
/// much once half of the round is over.
static bool enough_samples(const TcpConn& c, Instant now) {
  const HyStart& h = c.growth.hystart;
  if (h.samples >= kSamples) return true;
  return h.samples >= kFewSamples && microseconds(now) - h.round_began_us >= c.min_rtt_us / 2;
}

/// RFC 9406 section 4.2: whether the round's shortest trip is so much longer than `before`.
static bool trips_grow(const TcpConn& c, uint32_t before, Instant now) {
  const HyStart& h = c.growth.hystart;
  if (!enough_samples(c, now)) return false;
  const uint32_t threshold =
      std::clamp(c.min_rtt_us / kThresholdDivisor, kLeastThresholdUs, kMostThresholdUs);
  return h.round_min_us >= before + threshold;
}

/// The ACKs of a round come at the rate of the narrowest link. Once they have for half a round trip what is
/// in flight, twice as much, fills the path. Linux looks no further in a round whose ACKs pause; where a
/// process that waits for a CPU takes them in, or sends them, they often do. So a pause does not count;
/// `in_doubt`: as much of it does as an ACK train may have, since ACKs may have come meanwhile.
static bool train_fills_path(const TcpConn& c, Instant now, bool in_doubt) {
  const HyStart& h = c.growth.hystart;
  // What the kernel's own bursts add: the time of four of them at twice the window a round trip.
  const uint64_t srtt = static_cast<uint64_t>(c.srtt / 1us);
  const uint64_t bursts = std::min<uint64_t>(1000, kBurst * srtt / (2 * uint64_t{c.cwnd}));
  const uint64_t counted = in_doubt ? h.pauses * static_cast<uint64_t>(kTrainGap / 1us) : 0;
  return microseconds(now) - h.round_began_us + counted > (c.min_rtt_us + bursts) / 2 + h.paused_us;
}

static void begin_round(TcpConn& c, Instant now) {
  HyStart& h = c.growth.hystart;
  h.begun = true;
  h.round_end = c.snd_nxt;
  h.round_began_us = microseconds(now);
  h.round_min_us = HyStart::kNone;
  h.samples = 0;
  h.paused_us = 0;
  h.pauses = 0;
}

static uint32_t end_slow_start(TcpConn& c) {
  c.ssthresh = c.cwnd;
  c.growth.cubic = {};
  return 0;
}

uint32_t hystart_step(TcpConn& c, uint32_t acked, const AckEvent& e, Instant now) {
  HyStart& h = c.growth.hystart;
  // As Linux' hystart_update() a round begins with the first ACK behind the last one's end: the pause between
  // two flights is no gap of either's train.
  if (!h.begun || seq_gt(c.snd_una, h.round_end)) {
    if (h.begun && h.baseline_us != HyStart::kNone && ++h.slow_rounds >= kSlowRounds)
      return end_slow_start(c);
    begin_round(c, now);
  } else if (e.gap > kTrainGap) {
    h.paused_us += static_cast<uint32_t>(std::min<Duration>(e.gap, 1s) / 1us);
    if (h.pauses < 255) ++h.pauses;
  }
  if (e.rtt.count() >= 0) {
    h.round_min_us = std::min(h.round_min_us, static_cast<uint32_t>(e.rtt / 1us));
    // ACKs that one look brings have one delay: that of the look.
    if (h.samples < kSamples && e.gap.count() > 0) ++h.samples;
  }
  const bool large = c.cwnd >= kLeastSegments * c.snd_mss;
  if (large && train_fills_path(c, now, false)) return end_slow_start(c);
  bool slow = h.baseline_us != HyStart::kNone;
  // The shortest trip of all is what Linux compares with, where the RFC has the round's before.
  if (!slow && large && trips_grow(c, c.min_rtt_us, now)) {
    h.baseline_us = h.round_min_us;
    h.slow_rounds = 0;
    slow = true;
  } else if (!slow && large && train_fills_path(c, now, true)) {
    h.baseline_us = c.min_rtt_us;  // no trip is shorter: it lasts its rounds, or until a queue is seen
    h.slow_rounds = 0;
    slow = true;
  } else if (slow && enough_samples(c, now) && h.round_min_us < h.baseline_us) {
    h.baseline_us = HyStart::kNone;  // it was jitter
    slow = false;
  } else if (slow && trips_grow(c, h.baseline_us, now)) {
    return end_slow_start(c);  // it is a queue, which Linux leaves slow start for at once
  }
  return slow ? acked / kSlowDivisor : acked;
}

}  // namespace accel::tcp
