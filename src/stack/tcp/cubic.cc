// CUBIC (RFC 9438). Windows in bytes, time in seconds.
#include <algorithm>
#include <cmath>

#include "stack/tcp/context.h"

namespace accel::tcp {

constexpr float kC = 0.4f;                               // section 4.1, segments / s^3
constexpr float kBeta = 0.7f;                            // section 4.6
constexpr float kAlpha = 3 * (1 - kBeta) / (1 + kBeta);  // section 4.3

static void begin_epoch(TcpConn& c, Instant now) {
  const float w_max = c.growth.cubic.w_max;
  CubicState& q = c.growth.cubic;
  auto mss = static_cast<float>(c.snd_mss), cwnd = static_cast<float>(c.cwnd);
  q.epoch = now;
  q.w_est = cwnd;
  if (cwnd < w_max) {
    q.k = std::cbrt((w_max - cwnd) / mss / kC);
    q.origin = w_max;
  } else {
    q.k = 0;
    q.origin = cwnd;
  }
}

void cubic_avoidance(TcpConn& c, uint32_t acked, Instant now) {
  CubicState& q = c.growth.cubic;
  if (q.epoch == Instant{}) begin_epoch(c, now);
  auto mss = static_cast<float>(c.snd_mss), cwnd = static_cast<float>(c.cwnd),
       bytes = static_cast<float>(acked);
  float t = std::chrono::duration<float>(now - q.epoch + c.srtt).count() - q.k;
  float target = q.origin + kC * t * t * t * mss;
  // bictcp_update(): a twentieth a round trip at least while no loss has said how much the path holds.
  if (q.w_max == 0) target = std::max(target, 1.05f * cwnd);
  target = std::clamp(target, cwnd, 1.5f * cwnd);
  // Section 4.3: never slower than Reno would be. Above the former window RFC 9438 has 1 for alpha; Linux,
  // whose flows are beside ours, goes on as before (bictcp_update()).
  q.w_est += kAlpha * bytes / cwnd * mss;
  float next = cwnd + (target - cwnd) / cwnd * bytes;
  next = std::max(next, q.w_est);
  c.cwnd = static_cast<uint32_t>(std::min(next, 1.5f * cwnd));
}

void cubic_loss(TcpConn& c) {
  const auto cwnd = static_cast<float>(c.cwnd);
  const float before = c.ssthresh >= kNoThreshold ? 0 : c.growth.cubic.w_max;
  c.growth.cubic = {};
  c.growth.cubic.w_max = cwnd < before ? cwnd * (1 + kBeta) / 2 : cwnd;  // section 4.7, fast convergence
}

}  // namespace accel::tcp
