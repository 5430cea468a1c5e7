// How much a connection may receive: the buffer, the window that it makes, and how both grow with what the
// program reads in a round trip (Linux' dynamic right-sizing).
#include <algorithm>

#include "stack/tcp/context.h"

namespace accel::tcp {

/// Of a buffer's bytes, as net.ipv4.tcp_rmem counts them, those that are text: __tcp_win_from_space() begins
/// with a half. Ours come to more, since what does not fit in frames is copied together.
uint32_t first_receive_buffer(const TcpContext& t) {
  const StackConfig& config = t.core.config;
  return config.receive_buffer ? config.receive_buffer : config.tcp_receive_first / 2;
}
static uint32_t last_receive_buffer(const TcpContext& t) { return t.core.config.tcp_receive_most / 4 * 3; }

uint32_t receive_buffer(const TcpConn& c) {
  if (c.settings.receive_buffer) return c.settings.receive_buffer;
  // tcp_set_rcvlowat(); the window that is left there is a last segment's.
  return std::max(c.receive_limit, c.settings.receive_low_water + 2u * c.own_mss);
}

uint32_t receive_step(const TcpConn& c) { return std::min<uint32_t>(c.own_mss, receive_buffer(c) / 2); }

uint32_t most_window(const TcpConn& c) {
  const uint32_t buffer = receive_buffer(c);
  return c.settings.window_clamp ? std::min(buffer, c.settings.window_clamp) : buffer;
}

uint32_t receive_space(const TcpContext& t, const TcpConn& c) {
  uint32_t buffer = receive_buffer(c);
  uint32_t used = c.tcp_state == TcpState::kSynSent || c.tcp_state == TcpState::kSynReceived ? 0 : c.unread();
  uint32_t space = buffer > used ? buffer - used : 0;
  if (c.settings.window_clamp) space = std::min(space, c.settings.window_clamp);
  // __tcp_select_window(): four segments; with nothing left to give, what the reserve takes.
  if (t.core.tcp_memory.under_pressure()) {
    const bool full = t.core.tcp_memory.full();
    const uint32_t reserve = t.core.config.tcp_receive_least;
    space = std::min(space, full ? (used < reserve ? reserve - used : 0) : 4u * c.own_mss);
  }
  return space;
}

uint8_t window_scale(const TcpContext& t, const TcpConn& c) {
  const StackConfig& config = t.core.config;
  // tcp_select_initial_window(): room for what tuning or a larger SO_RCVBUF may make of it later on.
  uint32_t buffer = std::max({c.settings.receive_buffer, config.receive_buffer, config.tcp_receive_most,
                              config.most_receive_buffer});
  if (c.settings.window_clamp) buffer = std::min(buffer, c.settings.window_clamp);
  uint8_t scale = 0;
  while (scale < 14 && (buffer >> scale) > 65535) ++scale;
  return scale;
}

void begin_receive_tuning(const TcpContext& t, TcpConn& c, Instant now) {
  if (t.core.config.receive_buffer == 0)  // the window of a connection that is adopted may be larger
    c.receive_limit = std::max(c.receive_limit, std::min(c.window_left(), last_receive_buffer(t)));
  c.receive_tuning = {.space = std::min<uint32_t>(std::max(c.window_left(), 1u), 10u * advertised_mss(c)),
                      .space_seq = c.copied_seq,
                      .space_us = microseconds(now),
                      .rtt_seq = c.rcv_edge,
                      .rtt_seq_us = microseconds(now)};
}

/// tcp_rcv_rtt_update(). `least`: of a whole window's arrival, which tells only how long it is at most.
static void update_receive_rtt(TcpConn& c, uint32_t us, bool least) {
  uint32_t& rtt = c.receive_tuning.rtt_us8;
  if (rtt == 0 || us < rtt / 8)
    rtt = us * 8;
  else if (!least)
    rtt += us - rtt / 8;
}

/// tcp_rcv_rtt_measure() and tcp_rcv_rtt_measure_ts().
void take_receive_rtt(TcpConn& c, const TcpSegmentInfo& s, const TcpOptions& o, Instant now) {
  ReceiveTuning& r = c.receive_tuning;
  if (!seq_lt(c.rcv_nxt, r.rtt_seq)) {
    update_receive_rtt(c, std::clamp(microseconds(now) - r.rtt_seq_us, 1u, 100'000'000u), true);
    r.rtt_seq = c.rcv_nxt + c.window_left();
    r.rtt_seq_us = microseconds(now);
  }
  if (!c.timestamps_ok || !o.has_timestamps || o.tsecr == r.last_tsecr) return;
  r.last_tsecr = o.tsecr;
  if (s.payload_length < c.rcv_mss) return;
  const uint32_t ms = timestamp_clock(now) + c.ts_offset - o.tsecr;
  if (ms < 100'000) update_receive_rtt(c, std::max(ms, 1u) * 1000, false);
}

/// tcp_rcvbuf_grow(): twice what was read in a round trip, since it is always a round trip late, more while
/// the sender's rate grows, and what waits behind a gap.
static void grow_receive_buffer(const TcpContext& t, TcpConn& c, uint32_t read) {
  ReceiveTuning& r = c.receive_tuning;
  constexpr uint64_t kShortRtt = 1000;  ///< us, net.ipv4.tcp_rcvbuf_low_rtt
  const uint32_t before = std::exchange(r.space, read);
  if (t.core.tcp_memory.under_pressure() || t.core.config.receive_buffer) return;
  uint64_t window = 2 * uint64_t{read};
  uint64_t grow = window * (read - before) / before;
  if (r.rtt_us8 / 8 < kShortRtt) grow = grow * (r.rtt_us8 / 8) / kShortRtt;
  window += 2 * grow;
  if (c.out_of_order) window += c.out_of_order->top() - c.rcv_nxt;
  c.receive_limit =
      std::max(c.receive_limit, static_cast<uint32_t>(std::min<uint64_t>(window, last_receive_buffer(t))));
}

void make_room_behind_gap(const TcpContext& t, TcpConn& c) {
  if (c.held) grow_receive_buffer(t, c, c.receive_tuning.space);
}

void take_read_rate(const TcpContext& t, TcpConn& c, uint32_t read, Instant now) {
  ReceiveTuning& r = c.receive_tuning;
  const uint32_t us = microseconds(now), took = us - r.space_us, rtt = r.rtt_us8 / 8;
  if (r.rtt_us8 == 0 || took < rtt) return;
  if (took <= 2 * rtt) grow_receive_buffer(t, c, read);  // else so much was read in more than a round trip
  r.space_seq = c.copied_seq;
  r.space_us = us;
}

}  // namespace accel::tcp
