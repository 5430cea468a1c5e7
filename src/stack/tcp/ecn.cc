// Explicit congestion notification (RFC 3168), as Linux has it without AccECN.
#include "stack/tcp/context.h"

namespace accel::tcp {

bool accepts_ecn(const TcpContext& t, const TcpConn& c) {
  return t.core.config.ecn_accept || metrics_of(t, c).ecn;
}

/// tcp_ecn_create_request(). A SYN that is ECN-capable itself is no RFC 3168 one, unless reserved bits say
/// that a later version asks.
bool agrees_to_ecn(const TcpContext& t, const TcpConn& c, const TcpSegmentInfo& syn) {
  const bool asked = (syn.flags & (kEce | kCwr)) == (kEce | kCwr);
  return asked && accepts_ecn(t, c) && (syn.ecn == 0 || syn.reserved != 0);
}

/// RFC 3168 section 6.1.1. A SYN-ACK has ECE alone; the peer's SYN of a simultaneous open has both.
void take_ecn_answer(TcpConn& c, const TcpSegmentInfo& s) {
  const uint8_t agreed = (s.flags & kAck) ? kEce : kEce | kCwr;
  if ((s.flags & (kEce | kCwr)) != agreed) c.ecn = 0;
}

/// RFC 3168 section 6.1.2 to 6.1.6, as tcp_ecn_send(): new text alone is ECN-capable. Returns the field of
/// the IP header.
uint8_t mark_segment(TcpConn& c, uint32_t seq, uint32_t n, uint8_t& flags) {
  constexpr uint8_t kEct0 = 2;
  uint8_t field = 0;
  if (n > 0 && seq_ge(seq, c.snd_nxt)) {
    field = kEct0;
    if (c.ecn & kEcnCwrDue) flags |= kCwr;
    c.ecn &= static_cast<uint8_t>(~kEcnCwrDue);
  }
  if (c.ecn & kEcnEchoDue) flags |= kEce;
  return field;
}

/// RFC 3168 section 6.1.3, as tcp_ecn_accept_cwr() and tcp_ecn_check_ce(). The sender's window may be one
/// segment from now on: it does not wait for a delayed ACK.
void take_marks(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s) {
  constexpr uint8_t kCe = 3, kMostQuickAcks = 2;
  if (s.flags & kCwr) {
    c.ecn &= static_cast<uint8_t>(~kEcnEchoDue);
    c.ack_now = true;
    want_output(t, c);
  }
  if (s.ecn == 0) {  // most likely a retransmission
    if (c.ecn & kEcnSeen) enter_quick_acks(t, c, kMostQuickAcks);
    return;
  }
  c.ecn |= kEcnSeen;
  if (s.ecn != kCe) return;
  t.count(Counter::tcp_ce_marks, s.segments);
  if (c.ecn & kEcnEchoDue) return;
  enter_quick_acks(t, c, kMostQuickAcks);
  c.ecn |= kEcnEchoDue;
}

}  // namespace accel::tcp
