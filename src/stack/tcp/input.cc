// A segment's way through RFC 9293 section 3.10.7; every exit is a counted reason.
#include <algorithm>

#include "stack/tcp/context.h"

namespace accel::tcp {

void reset_by_peer(TcpContext& t, TcpConn& c) {
  t.count(Counter::tcp_resets_received);
  if ((c.fast_open & kFastOpenHalf) != 0) leave_half(t, c, true, t.core.now);
  int error = c.tcp_state == TcpState::kCloseWait ? EPIPE : ECONNRESET;  // as Linux' tcp_reset()
  if (c.tcp_state == TcpState::kSynReceived) {
    if (!c.active) return destroy(t, c);  // back to LISTEN
    error = ECONNREFUSED;
  }
  fail(t, c, error);
}

/// __tcp_oow_rate_limited(): one answer a connection in tcp_invalid_ratelimit. A budget that all connections
/// share would tell a blind attacker about others' (CVE-2016-5696). Without any, two hosts that each find the
/// other's ACK unacceptable answer each other for ever.
static bool answer_limited(const TcpContext& t, uint32_t& last, Instant now) {
  const uint32_t clock = timestamp_clock(now);
  if (last != 0 && 1ms * int64_t{clock - last} < t.core.config.invalid_ratelimit) {
    t.core.counters.add(Counter::tcp_answers_limited);
    return true;
  }
  last = std::max(clock, 1u);
  return false;
}

/// tcp_oow_rate_limited(): segments with data are no part of a loop of ACKs.
static bool answer_limited(const TcpContext& t, uint32_t& last, const TcpSegmentInfo& s, Instant now) {
  const bool occupies = s.payload_length > 0 || (s.flags & kFin) != 0;
  if (occupies && (s.flags & kSyn) == 0) return false;
  return answer_limited(t, last, now);
}

/// RFC 5961 section 7.
void challenge_ack(TcpContext& t, TcpConn& c, Instant now) {
  if (answer_limited(t, c.answered_invalid, now)) return;
  t.count(Counter::tcp_challenge_acks);
  c.ack_now = true;
  want_output(t, c);
}

/// A duplicate or an unacceptable segment: say where we are (RFC 9293 section 3.10.7.4, "First").
static void answer_unacceptable(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s, uint32_t end,
                                Instant now) {
  if (s.flags & kRst) return;
  if ((s.flags & kSyn) != 0 && c.tcp_state != TcpState::kSynReceived) return challenge_ack(t, c, now);
  if (answer_limited(t, c.answered_invalid, s, now)) return;
  if (c.sack_ok && s.payload_length > 0 && seq_lt(s.seq, c.rcv_nxt)) {  // RFC 2883 section 4
    rehash_if_resent_again(t, c, s.seq);
    if (c.dsack_due && c.synchronized()) send_ack(t, c, now);  // each duplicate is told of
    c.dsack = {s.seq, seq_min(end, c.rcv_nxt)};
    c.dsack_due = true;
  }
  if (c.tcp_state == TcpState::kSynReceived) {
    c.handshake_due = true;
  } else {
    if (s.payload_length > 0) enter_quick_acks(t, c);
    c.ack_now = true;
  }
  want_output(t, c);
}

/// RFC 7323 section 5.5: an idle connection's TS.Recent says nothing after 24 days.
static bool timestamp_expired(const TcpConn& c, Instant now) {
  constexpr uint32_t kDays24 = 24u * 24 * 3600 * 1000;
  return timestamp_clock(now) - c.ts_recent_ms > kDays24;
}

/// RFC 7323 section 5: false when the segment is older than what we have.
static bool check_timestamp(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s, const TcpOptions& o,
                            Instant now) {
  if (!c.timestamps_ok || !o.has_timestamps || !c.ts_recent_valid) return true;
  if (!seq_lt(o.tsval, c.ts_recent) || timestamp_expired(c, now)) return true;
  if (s.flags & kRst) return true;
  t.count(Counter::drop_tcp_paws);
  answer_unacceptable(t, c, s, s.seq + s.payload_length, now);
  return false;
}

/// RFC 7323 section 4.3: TS.Recent from a segment that covers Last.ACK.sent. Only from one whose ACK field is
/// acceptable as well (tcp_ack()): a blind attacker's stamp from the future would end the connection by PAWS.
void take_timestamp(TcpConn& c, const TcpSegmentInfo& s, const TcpOptions& o, Instant now) {
  if (!c.timestamps_ok || !o.has_timestamps || seq_gt(s.seq, c.rcv_wup)) return;
  if (seq_lt(o.tsval, c.ts_recent) && !timestamp_expired(c, now)) return;
  c.ts_recent = o.tsval;
  c.ts_recent_ms = timestamp_clock(now);
  c.ts_recent_valid = true;
}

/// First check. Data before rcv_nxt that reaches our last ACK still has its ACK field looked at, as Linux'
/// tcp_sequence().
static bool check_sequence(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s, uint32_t end, Instant now) {
  if (seq_lt(end, c.rcv_wup)) {
    t.count(Counter::drop_tcp_old);
    answer_unacceptable(t, c, s, end, now);
    return false;
  }
  if (seq_gt(s.seq, seq_max(c.rcv_edge, c.rcv_nxt))) {
    t.count(Counter::drop_tcp_beyond_window);
    answer_unacceptable(t, c, s, end, now);
    return false;
  }
  return true;
}

/// Second check (RFC 5961 section 3.2). False: done with the segment.
static bool check_reset(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s, Instant now) {
  if (!(s.flags & kRst)) return true;
  bool exact = s.seq == c.rcv_nxt;
  for (uint8_t i = 0; i < c.sack_count && !exact; ++i) exact = s.seq == c.out_of_order->sack_blocks[i].end;
  if (exact) {
    reset_by_peer(t, c);
  } else {
    t.count(Counter::drop_tcp_bad_reset);
    challenge_ack(t, c, now);
  }
  return false;
}

/// Fourth check (RFC 5961 section 4.2).
static bool check_syn(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s, Instant now) {
  if (!(s.flags & kSyn)) return true;
  // The SYN-ACK of a simultaneous open: its ACK is what we wait for.
  if (c.tcp_state == TcpState::kSynReceived && c.active && (s.flags & kAck) && s.seq + 1 == c.rcv_nxt &&
      acknowledges_syn(c, s.ack))
    return true;
  if (c.tcp_state == TcpState::kSynReceived && s.seq == c.irs) {  // our SYN-ACK got lost: tcp_check_req()
    if (answer_limited(t, c.answered_invalid, s, now)) return false;
    c.handshake_due = true;
    want_output(t, c);
    return false;
  }
  t.count(Counter::drop_tcp_syn_in_window);
  challenge_ack(t, c, now);
  return false;
}

static void on_fin_acked(TcpContext& t, TcpConn& c, Instant now) {
  c.fin_acked = true;
  switch (c.tcp_state) {
    case TcpState::kFinWait1:
      c.tcp_state = TcpState::kFinWait2;
      c.numbers = nullptr;
      t.core.flow_changes.push_back({{Protocol::kTcp, c.local, c.remote}, c.interface, FlowEvent::kFinSent});
      if (!c.held)
        wait_for_fin(t, c, now);
      else
        t.core.mark_ready(c, kWritable);  // sk_state_change()
      break;
    case TcpState::kClosing:
      enter_time_wait(t, c, now);
      break;
    case TcpState::kLastAck:
      finish(t, c);
      break;
    default:
      break;
  }
}

/// True when data arrives for an application that has closed both ways (RFC 2525 section 2.17; Linux:
/// TCPABORTONDATA).
static bool text_for_nobody(const TcpConn& c, const TcpSegmentInfo& s) {
  bool closed = c.tcp_state == TcpState::kFinWait1 || c.tcp_state == TcpState::kFinWait2;
  return closed && c.read_shut && s.payload_length > 0 && seq_gt(s.seq + s.payload_length, c.rcv_nxt);
}

void take_from_ack_on(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s, const TcpOptions& o, Packet* frame,
                      Instant now) {
  // Fifth, the ACK.
  if (!(s.flags & kAck)) return t.core.drop(frame, Counter::drop_tcp_no_ack);
  if (c.tcp_state == TcpState::kSynReceived && !complete_handshake(t, c, s, now))
    return FramePool::release(frame);
  if ((c.fast_open & kFastOpenHalf) != 0 && !confirm_child(t, c, s, now)) return FramePool::release(frame);
  if (!take_ack(t, c, s, o, now)) return FramePool::release(frame);
  if (c.fin_sent && !c.fin_acked && c.snd_una == c.snd_nxt) {
    on_fin_acked(t, c, now);
    if (c.tcp_state == TcpState::kClosed) return FramePool::release(frame);
  }
  // Sixth, URG.
  if (s.flags & kUrg) take_urgent(t, c, s);
  // Seventh, the text.
  uint32_t fin_seq = s.seq + s.payload_length;
  if (s.payload_length > 0) {
    if (text_for_nobody(c, s)) {
      // tcp_urg() comes first
      if (c.urgent_in && seq_ge(c.urgent_seq, c.rcv_nxt) &&
          c.urgent_seq - s.seq < frame->length - s.payload_offset) {
        c.urgent_byte = frame->data()[s.payload_offset + (c.urgent_seq - s.seq)];
        c.urgent_valid = true;
      }
      t.core.drop(frame, Counter::drop_tcp_closed);
      refuse_text(t, c, s.ack);
      fail(t, c, ECONNRESET);  // as Linux' tcp_reset()
      return;
    }
    if (c.fin_received)
      t.core.drop(frame, Counter::drop_tcp_closed);
    else
      take_text(t, c, s, o, frame, now);
  } else {
    if (!(s.flags & kFin) && seq_lt(s.seq, c.rcv_nxt))
      owe_ack(t, c, true, now);  // a keepalive or window probe
    FramePool::release(frame);
  }
  // Eighth, FIN; one that came before its data is kept in mind, as that data is.
  if (s.flags & kFin) {
    if (seq_gt(fin_seq, c.rcv_nxt) && seq_le(fin_seq, c.rcv_edge) && !c.fin_received)
      take_fin_behind_gap(t, c, fin_seq, s.payload_length == 0);
    if ((fin_seq != c.rcv_nxt && s.payload_length == 0) || c.fin_received) owe_ack(t, c, true, now);
  }
  const bool in_order = (s.flags & kFin) && fin_seq == c.rcv_nxt;
  const bool caught_up = c.fin_early && c.fin_early_seq == c.rcv_nxt;
  if ((in_order || caught_up) && !c.fin_received) take_fin(t, c, now);
}

/// The rest of RFC 9293 section 3.10.7.4.
static void input_synchronized(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s, const TcpOptions& o,
                               Packet* frame, Instant now) {
  uint32_t end = s.seq + s.payload_length + ((s.flags & kSyn) ? 1 : 0) + ((s.flags & kFin) ? 1 : 0);
  if ((c.fast_open & kFastOpenHalf) != 0 && s.seq == c.irs && (s.flags & (kSyn | kAck | kRst)) == kSyn) {
    if (!answer_limited(t, c.answered_invalid, s, now)) repeat_syn_ack(t, c);  // tcp_check_req()
    return FramePool::release(frame);
  }
  if (!check_timestamp(t, c, s, o, now) || !check_sequence(t, c, s, end, now) || !check_reset(t, c, s, now) ||
      !check_syn(t, c, s, now))
    return FramePool::release(frame);
  take_from_ack_on(t, c, s, o, frame, now);
}

/// RFC 9293 section 3.10.7.4 for TIME-WAIT, RFC 6191 (a newer SYN ends it). An RST ends it only with the very
/// sequence number that is expected, as in Linux with tcp_rfc1337 = 0: it is how a peer that reuses its port
/// with an older-looking SYN gets out of our way, having seen our ACK. False: the newer SYN is not for a
/// listener of ours, and the tuple is the kernel's.
static bool input_time_wait(TcpContext& t, TcpTimeWait& w, const TcpSegmentInfo& s, const Packet* frame,
                            Instant now) {
  auto o = parse_options(s.options);
  if (!o) {
    t.count(Counter::drop_tcp_header);
    return true;
  }
  bool old = w.timestamps && o->has_timestamps && seq_lt(o->tsval, w.ts_recent);
  if (s.flags & kRst) {
    const bool exact = !old && s.seq == w.rcv_nxt;
    t.count(exact ? Counter::tcp_resets_received : Counter::drop_tcp_bad_reset);
    if (exact) destroy_time_wait(t, w, true);
    return true;
  }
  if ((s.flags & (kSyn | kAck)) == kSyn && !old) {
    bool newer =
        seq_gt(s.seq, w.rcv_nxt) || (w.timestamps && o->has_timestamps && seq_gt(o->tsval, w.ts_recent));
    if (newer) {
      uint32_t iss = w.snd_nxt + 65535 + 2;
      destroy_time_wait(t, w, true);
      TcpListener* l = find_listener(t, s.local, s.remote, s.interface);
      return l != nullptr && on_syn(t, *l, s, frame, iss ? iss : 1, now);
    }
  }
  t.count(old ? Counter::drop_tcp_paws : Counter::drop_tcp_old);
  if (s.flags & kFin) w.deadline = now + t.core.config.time_wait;  // lazily: the node looks when it fires
  const bool wants_answer =
      s.payload_length > 0 || (s.flags & (kSyn | kFin)) != 0 || seq_lt(s.seq, w.rcv_nxt);
  if (wants_answer && !answer_limited(t, w.answered_invalid, s, now)) answer_time_wait(t, w, now);
  return true;
}

/// Takes out tuples whose time is over, and the oldest beyond kMostForgotten. Each is looked at once.
static void forget_expired(TcpContext& t, Instant now) {
  while (!t.forgetting.empty()) {
    const auto& oldest = t.forgetting.front();
    if (oldest.until > now && t.forgetting.size() <= kMostForgotten) return;
    const auto entry = t.forgotten.find(oldest.hash);
    if (entry != t.forgotten.end() && entry->second == oldest.until) t.forgotten.erase(entry);
    t.forgetting.pop_front();
  }
}

void forget_tuple(TcpContext& t, uint64_t hash, Instant now) {
  const Instant until = now + kForgottenTime;
  const bool fresh = t.forgotten.insert_or_assign(hash, until).second;
  t.forgetting.push_back({hash, until});
  if (fresh && t.forgotten.size() <= kMostForgotten) return;
  forget_expired(t, now);
}

static bool was_forgotten(TcpContext& t, const TcpSegmentInfo& s, Instant now) {
  if (t.forgotten.empty()) return false;
  forget_expired(t, now);
  return t.forgotten.contains(hash_of(t, s.local, s.remote));
}

static void leave_to_kernel(TcpContext& t, Packet* frame, const TcpSegmentInfo& s) {
  frame->offset -= s.ip_header;
  frame->length += s.ip_header;
  frame->interface = s.interface;
  t.core.frames_for_kernel.push_back(frame);
}

/// RFC 9293 section 3.10.7.1 and .2: no connection has this tuple. Only what was steered to us gets here, so
/// the tuple is ours to speak for, unless it has just become the kernel's. So it does by a SYN that nobody
/// here listens for: the rule that brought it is of a connection that has ended or of a listener that is
/// closed, and another process may listen. Or the way back is by a device that is not accelerated.
static void input_unknown(TcpContext& t, Packet* frame, const TcpSegmentInfo& s, Instant now) {
  const uint8_t kind = s.flags & (kSyn | kAck | kRst);
  const bool opening = kind == kSyn, acknowledges = kind == kAck;
  TcpListener* l = opening || kind == 0 ? find_listener(t, s.local, s.remote, s.interface) : nullptr;
  if (l != nullptr && (kind == 0 || (s.flags & kFin) != 0)) {  // tcp_rcv_state_process()
    t.count(Counter::drop_tcp_no_ack);
  } else if (l != nullptr && on_syn(t, *l, s, frame, 0, now)) {
    // taken, or dropped
  } else if (was_forgotten(t, s, now)) {
    return leave_to_kernel(t, frame, s);
  } else if (acknowledges && takes_cookies(t, s, now)) {
    if (!input_cookie(t, frame, s, now)) leave_to_kernel(t, frame, s);
    return;
  } else if (opening) {
    forget_tuple(t, hash_of(t, s.local, s.remote), now);
    return leave_to_kernel(t, frame, s);
  } else {
    t.count(Counter::drop_no_socket);
    if (!(s.flags & kRst)) answer_reset(t, s);
  }
  FramePool::release(frame);
}

static InterfaceId interface_of(const TcpEntry& e) {
  return e.kind == TcpEntry::Kind::kConn ? static_cast<const TcpConn&>(e).interface
                                         : static_cast<const TcpTimeWait&>(e).interface;
}

void on_segment(TcpContext& t, Packet* frame, const TcpSegmentInfo& s, Instant now) {
  TcpEntry* e = find(t, hash_of(t, s.local, s.remote), s.local, s.remote);
  // The kernel trusts the route that it keeps with a socket as long as the device is the same
  // (tcp_v4_early_demux()); else the source is validated anew.
  const bool vouched = e != nullptr && interface_of(*e) == s.interface;
  if (!vouched && !t.core.admit(frame, {s.remote.address, s.local.address, s.interface}, s.ip_header)) return;
  if (!e) return input_unknown(t, frame, s, now);
  if (e->kind == TcpEntry::Kind::kTimeWait) {
    if (!input_time_wait(t, static_cast<TcpTimeWait&>(*e), s, frame, now))
      return input_unknown(t, frame, s, now);
    return FramePool::release(frame);
  }
  auto& c = static_cast<TcpConn&>(*e);
  if (!has_listener(t, c)) {
    destroy(t, c);
    return input_unknown(t, frame, s, now);
  }
  if (c.deaf) [[unlikely]]
    return t.core.drop(frame, Counter::drop_martian);
  TcpOptions options;
  if (!parse_options(s.options, options)) return t.core.drop(frame, Counter::drop_tcp_header);
  Working working(t, c);
  c.segments_in += s.segments;
  c.keep_probes = 0;
  if (c.tcp_state == TcpState::kSynSent)
    input_syn_sent(t, c, s, options, frame, now);
  else
    input_synchronized(t, c, s, options, frame, now);
}

}  // namespace accel::tcp
