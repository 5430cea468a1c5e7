// How much a connection may receive: the buffer, and the window that it makes.
#include <algorithm>

#include "stack/tcp/context.h"

namespace accel::tcp {

uint32_t receive_buffer(const TcpContext& t, const TcpConn& c) {
  if (c.settings.receive_buffer) return c.settings.receive_buffer;
  // tcp_set_rcvlowat(); the window that is left there is a last segment's.
  return std::max(t.core.config.receive_buffer, c.settings.receive_low_water + 2u * c.own_mss);
}

uint32_t receive_step(const TcpContext& t, const TcpConn& c) {
  return std::min<uint32_t>(c.own_mss, receive_buffer(t, c) / 2);
}

uint32_t most_window(const TcpContext& t, const TcpConn& c) {
  const uint32_t buffer = receive_buffer(t, c);
  return c.settings.window_clamp ? std::min(buffer, c.settings.window_clamp) : buffer;
}

uint32_t receive_space(const TcpContext& t, const TcpConn& c) {
  uint32_t buffer = receive_buffer(t, c);
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

}  // namespace accel::tcp
