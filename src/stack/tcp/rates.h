// Delivery rates, pacing and BBR: what a connection has that sends in bulk or is paced. Allocated when used.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>

#include "base/instant.h"

namespace accel {

/// How fast the segments of an ACK were delivered: draft-cheng-iccrg-delivery-rate-estimation section 3,
/// Linux' rate_sample. Times in µs.
struct RateSample {
  uint32_t prior_delivered = 0;  ///< TcpConn::delivered when the newest of the segments was sent
  uint32_t prior_us = 0;         ///< when that much had been delivered
  uint32_t sent_us = 0;          ///< when that segment was sent
  uint32_t end = 0;              ///< of its sequence numbers
  uint32_t send_us = 0;          ///< how long its flight took to be sent
  uint32_t rtt_us = 0;           ///< its round trip; 0: it was sent twice
  uint32_t delivered = 0;        ///< segments over the interval
  uint32_t interval_us = 0;      ///< 0: no sample
  uint32_t acked_bytes = 0;      ///< told of by this ACK
  uint32_t lost_bytes = 0;       ///< found to be lost by it
  uint32_t prior_in_flight = 0;  ///< bytes, before it; likewise:
  uint32_t prior_lost = 0;       ///< Rates::lost_bytes
  uint32_t had_delivered = 0;    ///< TcpConn::delivered
  bool taken = false;            ///< a segment of known history has been delivered
  bool app_limited = false;
};

/// BBR, version 1: draft-cardwell-iccrg-bbr-congestion-control-00, and what Linux 4.20 to 6.18 has beside it
/// of aggregated ACKs and policers. Bandwidths in bytes/s.
struct Bbr {
  enum class Mode : uint8_t { kStartup, kDrain, kProbeBandwidth, kProbeRtt };
  static constexpr uint32_t kBandwidthRounds = 10;
  static constexpr uint32_t kNoRtt = 0xffffffff;

  Mode mode = Mode::kStartup;
  bool round_start = false;
  bool full = false;  ///< the bandwidth has been found
  uint8_t full_count = 0;
  uint8_t cycle_index = 0;
  bool conserves = false;  ///< the first round trip of a recovery: a packet leaves for each that arrives
  bool recovered = true;   ///< no recovery was under way at the last ACK
  bool lossy = false;      ///< a fast recovery was
  bool restarts = false;   ///< from idleness
  bool rtt_seen = false;
  bool probe_round_done = false;
  uint8_t extra_index = 0;
  uint8_t extra_rounds = 0;
  uint32_t rounds = 0;
  uint32_t round_end = 0;                            ///< TcpConn::delivered that ends the round
  std::array<float, kBandwidthRounds> bandwidths{};  ///< the most of each of the last rounds
  float full_bandwidth = 0;
  float pacing_gain = 1, window_gain = 1;
  uint32_t min_rtt_us = kNoRtt;
  uint32_t prior_cwnd = 0;  ///< bytes
  Instant min_rtt_at{};
  Instant cycle_at{};
  Instant probe_done = kNever;
  Instant epoch_at{};                     ///< of aggregated ACKs
  uint64_t epoch_acked = 0;               ///< bytes
  std::array<uint32_t, 2> extra_acked{};  ///< bytes beyond what the bandwidth explains, of five rounds each
  // What a policer lets through (Linux' lt_bw).
  bool police_sampling = false;
  bool policed = false;  ///< it is known: `policed_bandwidth`
  uint8_t police_rounds = 0;
  float policed_bandwidth = 0;     ///< of the last interval
  Instant police_at{};             ///< when the interval began; then:
  uint32_t police_delivered = 0;   ///< TcpConn::delivered
  uint32_t police_lost_bytes = 0;  ///< Rates::lost_bytes
  /// What the path has been seen to carry.
  float bandwidth() const { return *std::max_element(bandwidths.begin(), bandwidths.end()); }
  /// By which it is sent.
  float rate() const { return policed ? policed_bandwidth : bandwidth(); }
};

struct Rates {
  // ---- delivery rates (net/ipv4/tcp_rate.c). Low bits of µs ----
  uint32_t delivered_us = 0;   ///< when something was last delivered
  uint32_t first_sent_us = 0;  ///< when the newest segment delivered was sent
  uint32_t app_limited = 0;    ///< TcpConn::delivered until which samples are too small; 0: they are not
  uint32_t lost_bytes = 0;     ///< ever found to be lost
  uint32_t best_delivered = 0, best_interval_us = 0;  ///< the rate that TCP_INFO tells
  bool best_app_limited = false;
  RateSample sample;

  // ---- pacing, where TcpConn::paced ----
  uint64_t pacing_rate = ~0ull;  ///< bytes/s
  Instant paid_until{};          ///< when what has left would have left at the rate
  Instant burst_at{};            ///< the time of the burst that goes on
  Instant burst_end{};           ///< paid_until up to which it may go on
  Instant deadline = kNever;     ///< when output goes on

  std::unique_ptr<Bbr> bbr;
};

}  // namespace accel
