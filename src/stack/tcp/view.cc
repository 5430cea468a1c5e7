// What the layers above see of a connection or listener.
#include <utility>

#include "stack/tcp/conn.h"
#include "stack/tcp/tcp.h"

namespace accel {

uint32_t TcpLayer::unread(const TcpConn& c) const { return c.unread(); }
bool TcpLayer::has_text_for(const TcpConn& c, uint32_t wanted) const {
  return c.fin_received || c.has_for_reader(wanted);
}
bool TcpLayer::urgent_at(const TcpConn& c, uint32_t offset) const {
  return c.urgent_in && c.urgent_seq == c.copied_seq + offset;
}
bool TcpLayer::fin_received(const TcpConn& c) const { return c.fin_received; }
bool TcpLayer::has_received(const TcpConn& c) const { return c.segments_in > 0; }
bool TcpLayer::is_active(const TcpConn& c) const { return c.active; }
uint16_t TcpLayer::segment_size(const TcpConn& c) const { return c.snd_mss; }
uint32_t TcpLayer::next_sequence(const TcpConn& c) const { return c.snd_nxt; }
void TcpLayer::keep_error(TcpConn& c, int error) { c.error = static_cast<int16_t>(error); }
int TcpLayer::take_soft_error(TcpConn& c) { return std::exchange(c.soft_error, int16_t{0}); }
void* TcpLayer::owner(const TcpConn& c) const { return c.owner; }
void TcpLayer::set_owner(TcpConn& c, void* owner) { c.owner = owner; }
bool TcpLayer::is_queued(const TcpConn& c) const { return c.queued; }
uint32_t TcpLayer::options_generation(const TcpConn& c) const { return c.options_generation; }

uint32_t TcpLayer::handshakes_under_way(const TcpListener& l) const { return l.embryo_size; }
TcpConn* TcpLayer::first_unaccepted(const TcpListener& l) const { return l.accept_head; }
bool TcpLayer::any_unaccepted(const TcpListener& l, bool (*visit)(const TcpConn& conn, const void* context),
                              const void* context) const {
  for (const TcpConn* c = l.accept_head; c; c = c->accept_next)
    if (visit(*c, context)) return true;
  return false;
}
Endpoint TcpLayer::local(const TcpListener& l) const { return l.local; }
void TcpLayer::set_stopped(TcpListener& l, bool stopped) { l.stopped = stopped; }
uint32_t TcpLayer::end_options_generation(TcpListener& l) { return l.options_generation++; }

}  // namespace accel
