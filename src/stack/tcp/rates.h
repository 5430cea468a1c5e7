// Delivery rates and pacing: what a connection has that sends in bulk or is paced. Allocated when used.
#pragma once

#include <cstdint>

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
  Instant next_burst{};
  Instant deadline = kNever;  ///< when output goes on
};

}  // namespace accel
