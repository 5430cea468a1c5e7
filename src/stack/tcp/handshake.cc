// How connections open: sequence numbers, SYN options, SYN-SENT, the end of SYN-RECEIVED.
#include <algorithm>
#include <utility>

#include "stack/tcp/context.h"
#include "stack/tcp/siphash.h"

namespace accel::tcp {

/// RFC 6528: M + F(tuple, secret); M ticks every 64 ns, as Linux' secure_tcp_seq().
uint32_t initial_sequence(const TcpContext& t, const Endpoint& local, const Endpoint& remote, Instant now) {
  std::array<uint8_t, 36> in;
  std::memcpy(&in[0], local.address.bytes.data(), 16);
  std::memcpy(&in[16], remote.address.bytes.data(), 16);
  std::memcpy(&in[32], &local.port, 2);
  std::memcpy(&in[34], &remote.port, 2);
  return static_cast<uint32_t>(siphash(t.core.config.secret, in) +
                               static_cast<uint64_t>(now.time_since_epoch().count() >> 6));
}

/// By addresses only, so that timestamps grow from one connection to the next (RFC 7323 section 5.4, RFC
/// 6191).
uint32_t timestamp_offset(const TcpContext& t, const IpAddress& local, const IpAddress& remote) {
  std::array<uint8_t, 32> in;
  std::memcpy(&in[0], local.bytes.data(), 16);
  std::memcpy(&in[16], remote.bytes.data(), 16);
  return static_cast<uint32_t>(siphash(t.core.config.timestamp_secret, in));
}

HeaderFields header_fields(const TcpContext& t, const TcpConn& c) {
  const TcpSettings& s = c.settings;
  const uint32_t otherwise = s.auto_flow_label ? kAutoFlowLabel : kNoFlowLabel;
  const uint32_t wanted = s.flow_label != kNoFlowLabel ? s.flow_label : otherwise;
  const bool v4 = c.local.address.is_v4();
  uint8_t hops = v4 ? s.ttl : s.hop_limit;
  if (const uint8_t by_route = metrics_of(t, c).hop_limit; by_route != 0 && hops == kDefaultHopLimit)
    hops = by_route;
  return {v4 ? s.tos : s.traffic_class, hops, t.core.flow_label(wanted, c.flow_hash), s.dont_fragment};
}

void refresh_headers(const TcpContext& t, TcpConn& c) {
  t.core.make_template(*c.hop, c.local.address, c.remote.address, Protocol::kTcp, header_fields(t, c),
                       c.headers);
}

void rehash(const TcpContext& t, TcpConn& c) {
  if (!c.settings.rehash || c.local.address.is_v4()) return;
  c.flow_hash = t.core.flow_hash(c.local, c.remote, c.flow_hash);
  refresh_headers(t, c);
}

uint32_t path_mtu(const TcpConn& c, uint32_t mtu) {
  return std::max(mtu, c.local.address.is_v4() ? 552u : 1280u);
}

void set_way(TcpContext& t, TcpConn& c, const Way& way) {
  const uint32_t mtu = way.mtu, limit = t.core.of(*way.hop).mtu;
  c.hop = HopRef(way.hop);
  c.interface = way.hop->interface;
  c.metrics = way.metrics;
  c.mtu = path_mtu(c, std::min(mtu ? mtu : limit, limit ? limit : mtu));
  c.route_mtu = c.mtu;
  if (c.flow_hash == 0) {
    c.flow_hash = t.core.flow_hash(c.local, c.remote, c.snd_nxt);
    c.ip_id = static_cast<uint16_t>(c.flow_hash);
  }
  refresh_headers(t, c);
  refresh_mss(t, c);
}

static uint32_t mss_of_mtu(const TcpConn& c) {
  uint32_t headers = c.local.address.is_v4() ? 40 : 60;
  return std::min<uint32_t>(c.mtu > headers + 88 ? c.mtu - headers : 88, 65535 - headers);
}

/// RFC 9293 section 3.7.1: Eff.snd.MSS, less the options of every segment.
void refresh_mss(const TcpContext& t, TcpConn& c) {
  uint32_t mss = mss_of_mtu(c);
  const uint32_t least = std::min(t.core.config.min_snd_mss, mss);
  const uint32_t most = c.settings.max_segment ? c.settings.max_segment : UINT16_MAX;
  const uint32_t by_route = metrics_of(t, c).advertised_mss;  // dst_metric_advmss(), tcp_mss_clamp()
  mss = std::min(mss, most);
  c.own_mss = static_cast<uint16_t>(by_route ? std::min(by_route, most) : mss);
  mss = std::min<uint32_t>(mss, c.peer_mss);
  mss = std::max(mss, least);  // __tcp_mtu_to_mss(): all options of a segment, and 8 bytes of text
  c.snd_mss = static_cast<uint16_t>(mss - (c.timestamps_ok ? option::kTimestampsLength : 0));
}

void take_syn_options(const TcpContext& t, TcpConn& c, const TcpOptions& o, Instant now) {
  c.peer_mss = o.mss ? o.mss : (c.local.address.is_v4() ? 536 : 1220);  // RFC 9293 MUST-15
  c.wscale_ok = c.wscale_ok && o.has_wscale;
  c.snd_wscale = c.wscale_ok ? o.wscale : 0;
  if (!c.wscale_ok) c.rcv_wscale = 0;
  c.sack_ok = c.sack_ok && o.sack_permitted;
  c.timestamps_ok = c.timestamps_ok && o.has_timestamps;
  if (c.timestamps_ok) {
    c.ts_recent = o.tsval;
    c.ts_recent_ms = timestamp_clock(now);
    c.ts_recent_valid = true;
  }
  refresh_mss(t, c);
  c.rcv_mss = static_cast<uint16_t>(std::min<uint32_t>(536, c.own_mss));
}

void send_handshake(TcpContext& t, TcpConn& c, Instant now) {
  c.handshake_due = false;
  if (c.makes_way) return;
  send_syn(t, c, c.tcp_state != TcpState::kSynSent, now);
  c.retransmit_mode = RetransmitMode::kHandshake;
  set_timer(t, c, kTimerRetransmit, next_timeout(c, now));
}

void begin_transfer(TcpContext& t, TcpConn& c, Instant now) {
  c.copied_seq = c.rcv_nxt;
  c.snd_small = c.high_delivered = c.snd_una;
  c.quick_acks = kQuickAcks;
  c.last_received = c.last_ack_received = c.last_sent = now;
  begin_receive_tuning(t, c, now);
  begin_send_tuning(t, c);
  choose_congestion(c, now);
  begin_pacing(c, now);
  if (c.settings.keepalive) restart_keepalive(t, c, now);
}

static void establish(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s, Instant now) {
  c.tcp_state = TcpState::kEstablished;
  c.handshake_due = false;
  c.snd_una = s.ack;
  c.snd_wl1 = s.seq;
  c.snd_wnd = s.flags & kSyn ? s.window : uint32_t{s.window} << c.snd_wscale;
  c.max_window = c.snd_wnd;  // the SYN's, before scaling, says nothing
  const uint32_t resent = c.retransmits;
  c.backoff = 0;
  c.retransmits = 0;
  c.retransmit_mode = RetransmitMode::kTimeout;
  clear_timer(c, kTimerRetransmit);
  // The echoed timestamp tells which of the SYNs it was. Without one a handshake that timed out leaves 3 s
  // (RFC 6298 section 5.7). With TCP_DEFER_ACCEPT nothing was lost, and its time is no round trip's.
  TcpOptions o;
  const bool echoed =
      resent > 0 && c.timestamps_ok && parse_options(s.options, o) && o.has_timestamps && o.tsecr != 0;
  const uint32_t way_ms = timestamp_clock(now) + c.ts_offset - o.tsecr;
  // A cookie keeps no time; of text that left with the SYN the time is taken below.
  const bool with_text = (c.fast_open & kFastOpenText) != 0 && s.ack != c.iss + 1;
  const bool timed = !c.defer_acked && c.last_sent != Instant{} && !with_text;
  if (c.defer_acked || resent == 0) {
    if (timed) sample_rtt(t, c, now - c.last_sent);
  } else if (echoed && way_ms < 120'000) {
    sample_rtt(t, c, std::max<Duration>(1ms * int64_t{way_ms}, 1ms));
  } else {
    c.rto = 3s;
  }
  // tcp_init_transfer(): RFC 5681 section 3.1, but only from the second loss on, and a real one.
  const bool first_one = echoed && o.tsecr == timestamp_clock(c.last_sent) + c.ts_offset;
  const bool lost_again = resent > 1 && !c.defer_acked && !first_one;
  c.cwnd = lost_again ? c.snd_mss : initial_window(t, c);
  c.delivered = 1;  // the SYN
  begin_transfer(t, c, now);
}

constexpr Duration kDeferredAck = 200ms;   ///< Linux' TCP_DELACK_MAX
constexpr Duration kTimeoutAtLeast = 8ms;  ///< Linux' TCP_TIMEOUT_MIN: two ticks

/// Behind a SYN that asked for Fast Open (tcp_fastopen_add_skb()).
[[gnu::cold]] static void take_answer_text(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s,
                                           const TcpOptions& o, Packet* frame, Instant now) {
  TcpSegmentInfo text = s;
  text.seq = c.rcv_nxt;
  text.flags &= static_cast<uint8_t>(~(kSyn | kFin));
  take_text(t, c, text, o, frame, now);
  c.fast_open |= kFastOpenTaken;
}

void input_syn_sent(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s, const TcpOptions& o, Packet* frame,
                    Instant now) {
  // First, the ACK bit (RFC 9293 section 3.10.7.3).
  if (s.flags & kAck) {
    if (!acknowledges_syn(c, s.ack)) {
      t.core.drop(frame, Counter::drop_tcp_bad_ack);
      // The reset frees a peer that has an old connection of these ports yet: then the SYN is welcome.
      if (c.retransmits == 0 && !c.settings.replies_may_be_misdirected)
        set_timer(t, c, kTimerRetransmit, now + kTimeoutAtLeast);
      if (!(s.flags & kRst)) answer_reset(t, s);
      return;
    }
    // RFC 7323 section 3.2: an echo of what we never sent.
    if (c.timestamps_ok && o.has_timestamps && o.tsecr &&
        seq_gt(o.tsecr, timestamp_clock(now) + c.ts_offset)) {
      t.core.drop(frame, Counter::drop_tcp_paws);
      if (!(s.flags & kRst)) answer_reset(t, s);
      return;
    }
  }
  // Second, the RST bit: only with an acceptable ACK (RFC 5961 section 3 does not touch SYN-SENT).
  if (s.flags & kRst) {
    if (!(s.flags & kAck)) return t.core.drop(frame, Counter::drop_tcp_bad_reset);
    FramePool::release(frame);
    t.count(Counter::tcp_resets_received);
    fail(t, c, ECONNREFUSED);
    return;
  }
  // Fourth, the SYN bit.
  if (!(s.flags & kSyn)) return t.core.drop(frame, Counter::drop_tcp_no_ack);
  c.irs = s.seq;
  c.rcv_nxt = s.seq + 1;
  c.copied_seq = c.rcv_wup = c.rcv_nxt;
  c.rcv_edge += c.rcv_nxt;  // it held the window of the SYN until now
  take_syn_options(t, c, o, now);
  take_ecn_answer(c, s);
  if (s.flags & kAck) {
    establish(t, c, s, now);
    t.count(Counter::tcp_active_opens);
    t.core.mark_ready(c, kWritable);
    if (c.fast_open != 0) {
      if (!take_fast_open_answer(t, c, s, o, now)) return FramePool::release(frame);  // the text has the ACK
      if (s.payload_length > 0) take_answer_text(t, c, s, o, std::exchange(frame, nullptr), now);
    }
    if (c.settings.defer_ack) {
      set_timer(t, c, kTimerAck, now + kDeferredAck);
    } else {
      c.ack_now = true;
      want_output(t, c);
    }
  } else {  // simultaneous open (section 3.5, figure 8)
    c.tcp_state = TcpState::kSynReceived;
    c.snd_wnd = s.window;
    c.snd_wl1 = s.seq;
    c.max_window = c.snd_wnd;
    c.backoff = 0;
    c.handshake_due = true;
    want_output(t, c);
  }
  // Text and FIN on the SYN, without Fast Open: rare, the peer sends them again.
  FramePool::release(frame);
}

/// The connection has its listener's options as they are now (inet_csk_clone_lock()), but for what the SYN
/// was answered with.
void inherit_settings(const TcpContext& t, TcpConn& c) {
  const TcpSettings answered = std::exchange(c.settings, c.listener->settings);
  c.settings.max_segment = answered.max_segment;
  c.settings.window_clamp = answered.window_clamp;
  c.segments_in = 2;  // tcp_create_openreq_child() counts the SYN and the ACK, but no SYN-ACK
  c.segments_out = c.rehashes = 0;
  refresh_headers(t, c);
}

void enter_established(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s, Instant now) {
  if (c.listener) inherit_settings(t, c);
  establish(t, c, s, now);
  if (c.listener) {
    t.count(Counter::tcp_passive_opens);
    queue_accepted(t, c);
  } else {
    t.count(Counter::tcp_active_opens);
    t.core.mark_ready(c, kWritable);
    if ((c.fast_open & kFastOpenText) != 0) (void)take_fast_open_answer(t, c, s, {}, now);
  }
  c.fin_queued |= c.write_shut;
  if (c.fin_queued) c.tcp_state = TcpState::kFinWait1;  // tcp_rcv_state_process() ends TCP_SYN_RECV so
  if (c.fin_queued || c.send_queue.size() > 0) want_output(t, c);
}

/// So long what has come for it already is dropped, and then it is gone.
constexpr Duration kMakesWay = 50ms;

/// Where a process listens the kernel does, and other processes may. A SYN that came again may have reached
/// another than the first one did, and the peer goes on with whose SYN-ACK it had first. A reset, which RFC
/// 9293 section 3.10.7.4 asks for, would end that connection. So this one makes way, silently: what the peer
/// sends again comes to the other one, or, where there is none, is reset as nobody's.
static void make_way(TcpContext& t, TcpConn& c, Instant now) {
  if (std::exchange(c.makes_way, true)) return;
  set_timer(t, c, kTimerRetransmit, now + kMakesWay);
}

bool complete_handshake(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s, Instant now) {
  if (!acknowledges_syn(c, s.ack)) {
    t.count(Counter::drop_tcp_bad_ack);
    c.active ? answer_reset(t, s) : make_way(t, c, now);
    return false;
  }
  if (TcpListener* l = c.listener) {
    bool bare = s.payload_length == 0 && !(s.flags & kFin);
    if (l->defer_accept.count() > 0 && bare && now - c.stuck_since < l->defer_accept) {
      c.defer_acked = true;
      return false;
    }
    if (accept_queue_full(*l)) {  // as Linux: the SYN-ACK comes again, and with it another try
      t.count(Counter::drop_tcp_backlog);
      if (t.core.config.abort_on_overflow) {
        answer_reset(t, s);
        destroy(t, c);
      }
      return false;
    }
  }
  enter_established(t, c, s, now);
  return true;
}

void take_for_established(TcpContext& t, TcpConn& c, Instant now) {
  TcpSegmentInfo last;  // as if it had come; its window is the SYN's
  last.flags = kSyn | kAck;
  last.seq = c.rcv_nxt;
  last.ack = c.snd_nxt;
  last.window = static_cast<uint16_t>(c.snd_wnd);
  enter_established(t, c, last, now);
}

}  // namespace accel::tcp
