// How much the application may give before it is acknowledged, and when it is told of room.
#include <algorithm>
#include <bit>

#include "stack/tcp/context.h"

namespace accel::tcp {

/// tcp_sndbuf_expand(): twice the congestion window, thrice that of BBR, in buffers as the kernel would
/// allocate them.
static uint32_t wanted_send_buffer(const TcpContext& t, const TcpConn& c) {
  constexpr uint32_t kHeaders = 640;  ///< MAX_TCP_HEADER and sizeof(skb_shared_info)
  constexpr uint32_t kBuffer = 256;   ///< sizeof(sk_buff)
  constexpr uint64_t kInitialWindowSegments = 10;
  const uint32_t mss = std::max<uint32_t>(c.snd_mss, 1);
  const uint64_t each = std::bit_ceil(std::max<uint32_t>(mss, c.peer_mss) + kHeaders) + kBuffer;
  const uint64_t segments = std::max<uint64_t>(kInitialWindowSegments, c.cwnd / mss);
  return static_cast<uint32_t>(
      std::min<uint64_t>((runs_bbr(c) ? 3 : 2) * segments * each, t.core.config.tcp_send_most));
}

uint32_t send_limit(const TcpContext& t, const TcpConn& c) {
  if (c.settings.send_buffer) return c.settings.send_buffer;
  return t.core.config.send_buffer ? t.core.config.send_buffer : c.send_limit;
}

void begin_send_tuning(const TcpContext& t, TcpConn& c) {
  c.send_limit = std::max(t.core.config.tcp_send_first, wanted_send_buffer(t, c));
}

/// tcp_should_expand_sndbuf(): a connection that congestion control holds back needs no more.
static void expand_send_buffer(const TcpContext& t, TcpConn& c) {
  if (c.pipe() >= c.cwnd || !t.core.tcp_memory.below_low()) return;
  c.send_limit = std::max(c.send_limit, wanted_send_buffer(t, c));
}

bool send_space_wakes(const TcpContext& t, const TcpConn& c) {
  const uint32_t limit = send_limit(t, c), used = c.send_queue.size();
  return used < limit && limit - used >= used / 2;
}

void free_send_space(TcpContext& t, TcpConn& c) {
  if (!c.no_space || !c.owner) return;
  expand_send_buffer(t, c);
  if (!send_space_wakes(t, c)) return;
  if (seq_lt(c.snd_nxt, c.send_queue.end()) && !wakes_writer(t, c)) return;
  c.no_space = false;
  if (c.busy == Busy::kBuffer) note_busy(c, Busy::kSending, t.core.now);
  t.core.mark_ready(c, kWritable);
}

}  // namespace accel::tcp
