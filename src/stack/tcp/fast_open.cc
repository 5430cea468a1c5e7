// TCP Fast Open (RFC 7413), as Linux' tcp_fastopen.c.
#include <algorithm>

#include "stack/tcp/context.h"
#include "stack/tcp/fast_open_state.h"
#include "stack/tcp/siphash.h"
#include "stack/tcp/tcp.h"

namespace accel::tcp {
namespace {

/// Bits of net.ipv4.tcp_fastopen.
enum : uint32_t { kClient = 1, kServer = 2, kClientNoCookie = 4, kServerNoCookie = 0x200 };

constexpr size_t kMostPeers = 4096;          ///< that a client remembers
constexpr Duration kResetCounts = 60s;       ///< reqsk_fastopen_remove()
constexpr uint32_t kMostOptions = 40;        ///< MAX_TCP_OPTION_SPACE
constexpr uint32_t kMostDoublings = 6;       ///< of the time for which a black hole disables it
constexpr uint16_t kDisabledByTimeouts = 2;  ///< with the third one in a row

// ---------------------------------------------------------------- server

/// __tcp_fastopen_cookie_gen_cipher(): who asks, and whom.
FastOpenCookie cookie_of(const FastOpenKey& key, const IpAddress& client, const IpAddress& server) {
  std::array<uint8_t, 32> in;
  const size_t size = client.is_v4() ? 4 : 16;
  std::copy_n(client.is_v4() ? client.v4_bytes() : client.bytes.data(), size, &in[0]);
  std::copy_n(server.is_v4() ? server.v4_bytes() : server.bytes.data(), size, &in[size]);
  const uint64_t hash = siphash(key, std::span(in).first(2 * size));
  FastOpenCookie out;
  out.length = sizeof hash;
  for (size_t i = 0; i < sizeof hash; ++i) out.bytes[i] = static_cast<uint8_t>(hash >> (8 * i));
  return out;
}

/// tcp_fastopen_queue_check(). One that was reset long enough ago makes room.
bool queue_has_room(TcpContext& t, FastOpenQueue& q, Instant now) {
  if (q.server.limit == 0) return false;
  if (q.length < q.server.limit) return true;
  if (q.resets.empty() || q.resets.front() > now) {
    t.count(Counter::tcp_fast_open_overflows);
    return false;
  }
  q.resets.pop_front();
  --q.length;
  return true;
}

enum class Verdict : uint8_t { kUsual, kUsualWithCookie, kChild, kChildWithCookie };

/// tcp_try_fastopen().
Verdict judge_syn(TcpContext& t, TcpListener& l, const TcpSegmentInfo& s, const FastOpenCookie& offered,
                  Instant now) {
  const uint32_t mode = t.core.config.fast_open;
  const bool concerned = s.payload_length > 0 || offered.length >= 0;
  if ((mode & kServer) == 0 || !concerned || !queue_has_room(t, l.fast_open, now)) return Verdict::kUsual;
  const FastOpenServer& server = l.fast_open.server;
  if ((mode & kServerNoCookie) != 0 || server.no_cookie) return Verdict::kChild;
  if (offered.length < 0) return Verdict::kUsual;
  if (offered.length == 0) return Verdict::kUsualWithCookie;
  for (uint8_t i = 0; i < server.key_count; ++i) {
    const FastOpenCookie good = cookie_of(server.keys[i], s.remote.address, s.local.address);
    if (std::ranges::equal(good.value(), offered.value()))
      return i == 0 ? Verdict::kChild : Verdict::kChildWithCookie;
  }
  t.count(Counter::tcp_fast_open_failures);
  return Verdict::kUsualWithCookie;
}

/// The text of a SYN in memory of its own.
Packet* copy_text(const Packet* frame, const TcpSegmentInfo& s) {
  Packet* text = heap_packet(s.payload_length);
  if (text == nullptr) return nullptr;
  uint32_t skip = s.payload_offset;
  for (const Packet* p = frame; p != nullptr && text->length < s.payload_length; p = p->more) {
    if (skip >= p->length) {
      skip -= p->length;
      continue;
    }
    const uint32_t n = std::min(p->length - skip, s.payload_length - text->length);
    std::copy_n(p->data() + skip, n, text->data() + text->length);
    text->length += n;
    skip = 0;
  }
  return text;
}

/// tcp_fastopen_create_child(): the embryo is a connection at once, with the text of its SYN to be read.
void make_child(TcpContext& t, TcpListener& l, TcpConn& c, const TcpSegmentInfo& s, Packet* text,
                Instant now) {
  inherit_settings(t, c);
  c.segments_in = 1;
  c.tcp_state = TcpState::kEstablished;
  c.fast_open |= kFastOpenChild | kFastOpenHalf;
  t.fast_open.halves[&c] = {&l, now};
  ++l.fast_open.length;
  c.snd_una = c.iss + 1;
  c.snd_wnd = c.max_window = s.window;
  c.cwnd = initial_window(t, c);
  begin_transfer(t, c, now);
  if (text != nullptr) {
    text->seq = c.rcv_nxt;
    push_received(t, c, text);
    c.rcv_nxt += s.payload_length;
    c.rcv_wup = c.rcv_nxt;
    c.rx_bytes += s.payload_length;
    c.data_segments_in = 1;
    c.fast_open |= kFastOpenTaken;
  }
  t.count(Counter::tcp_passive_opens);
  t.count(Counter::tcp_fast_opens);
  queue_accepted(t, c);
  c.fin_queued |= c.write_shut;
  if (c.fin_queued) c.tcp_state = TcpState::kFinWait1;
}

// ---------------------------------------------------------------- client

FastOpenPeer* find_peer(TcpContext& t, const TcpConn& c) {
  const auto found = t.fast_open.peers.find({c.local.address, c.remote.address});
  return found == t.fast_open.peers.end() ? nullptr : &found->second;
}

/// tcp_fastopen_active_should_disable()
bool disabled_by_black_hole(const TcpContext& t, Instant now) {
  const FastOpenContext& f = t.fast_open;
  const Duration first = t.core.config.fast_open_black_hole;
  if (first == Duration{0} || f.times_disabled == 0) return false;
  return now < f.disabled_at + first * (1 << std::min(f.times_disabled - 1, kMostDoublings));
}

void disable(TcpContext& t, Instant now) {
  if (t.core.config.fast_open_black_hole == Duration{0}) return;
  ++t.fast_open.times_disabled;
  t.fast_open.disabled_at = now;
  t.count(Counter::tcp_fast_open_black_holes);
}

bool goes_without_cookie(const TcpContext& t, const TcpConn& c) {
  return (t.core.config.fast_open & kClientNoCookie) != 0 || (c.settings.fast_open & kFastOpenNoCookie) != 0;
}

/// tcp_fastopen_cookie_check(): whether the SYN may have text, and the option that it gets.
bool may_have_text(TcpContext& t, const TcpConn& c, FastOpenCookie& cookie, Instant now) {
  cookie = {};
  if (disabled_by_black_hole(t, now) || goes_without_cookie(t, c)) return !disabled_by_black_hole(t, now);
  const FastOpenPeer* peer = find_peer(t, c);
  if (peer != nullptr && peer->cookie.length > 0) {
    cookie = peer->cookie;
    return true;
  }
  cookie.length = 0;
  cookie.experimental = peer != nullptr && peer->try_experiment == 1;
  return false;
}

/// What the SYN-ACK says of cookies (tcp_rcv_fastopen_synack()).
void remember_peer(TcpContext& t, const TcpConn& c, const TcpSegmentInfo& s, const TcpOptions& o) {
  FastOpenCookie cookie;
  const bool asked = (c.fast_open & kFastOpenAsked) != 0;
  if (asked) cookie = find_fast_open(s.options);
  uint8_t try_experiment = 0;
  if (asked && c.retransmits == 0 && cookie.length < 0 && (c.fast_open & kFastOpenText) == 0)
    try_experiment = (c.fast_open & kFastOpenExperimental) != 0 ? 2 : 1;
  auto& peers = t.fast_open.peers;
  const FastOpenPair pair{c.local.address, c.remote.address};
  if (!peers.contains(pair) && peers.size() >= kMostPeers) peers.erase(peers.begin());
  FastOpenPeer& peer = peers[pair];
  if (o.mss != 0) peer.mss = o.mss;
  if (cookie.length > 0)
    peer.cookie = cookie;
  else if (try_experiment > peer.try_experiment && peer.cookie.length <= 0 && !peer.cookie.experimental)
    peer.try_experiment = try_experiment;
}

/// tcp_send_syn_data(): how much text the SYN has room for.
uint32_t room_of_syn(TcpContext& t, const TcpConn& c) {
  const FastOpenPeer* peer = find_peer(t, c);
  uint32_t mss = c.own_mss;
  if (peer != nullptr && peer->mss != 0) mss = std::min<uint32_t>(mss, peer->mss);
  constexpr uint32_t kHeaders = 58 + 20 + kMostOptions;  // HeaderTemplate's, and TCP's
  return std::min(mss > kMostOptions ? mss - kMostOptions : 0, t.core.pool.buffer_size() - kHeaders);
}

}  // namespace

bool open_at_once(TcpContext& t, TcpListener& l, TcpConn& c, const TcpSegmentInfo& s, const Packet* frame,
                  Instant now) {
  if (l.fast_open.server.limit == 0) return false;
  const FastOpenCookie offered = find_fast_open(s.options);
  const Verdict verdict = judge_syn(t, l, s, offered, now);
  if (verdict == Verdict::kUsual) return false;
  if (verdict != Verdict::kChild) c.fast_open |= kFastOpenGives;
  if (offered.experimental) c.fast_open |= kFastOpenExperimental;
  if (verdict == Verdict::kUsualWithCookie) return false;
  Packet* text = s.payload_length > 0 ? copy_text(frame, s) : nullptr;
  if (text == nullptr && s.payload_length > 0) return false;
  make_child(t, l, c, s, text, now);
  return true;
}

FastOpenCookie cookie_of_syn(TcpContext& t, TcpConn& c, Instant now) {
  FastOpenCookie out;
  if (c.tcp_state == TcpState::kSynSent) {
    if (c.retransmits > 0 || (c.fast_open & kFastOpenAsked) == 0) return out;
    (void)may_have_text(t, c, out, now);
    return out;
  }
  if ((c.fast_open & kFastOpenGives) == 0) return out;
  c.fast_open &= static_cast<uint8_t>(~kFastOpenGives);  // what comes again has none (inet_rtx_syn_ack())
  const auto half = t.fast_open.halves.find(&c);
  const TcpListener* l = half != t.fast_open.halves.end() ? half->second.listener : c.listener;
  if (l == nullptr) return out;
  out = cookie_of(l->fast_open.server.keys[0], c.remote.address, c.local.address);
  out.experimental = (c.fast_open & kFastOpenExperimental) != 0;
  return out;
}

void leave_half(TcpContext& t, const TcpConn& c, bool reset, Instant now) {
  const auto half = t.fast_open.halves.find(&c);
  if (half == t.fast_open.halves.end()) return;
  if (TcpListener* l = half->second.listener) {
    // RFC 7413 section 5.1: resets of who was not asked tell of spoofed SYNs.
    if (reset && !c.queued)
      l->fast_open.resets.push_back(now + kResetCounts);
    else
      --l->fast_open.length;
  }
  t.fast_open.halves.erase(half);
}

void leave_listener(TcpContext& t, const TcpListener& l) {
  for (auto& [conn, half] : t.fast_open.halves)
    if (half.listener == &l) half.listener = nullptr;
}

bool confirm_child(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s, Instant now) {
  if (seq_lt(s.ack, c.snd_una) || seq_gt(s.ack, c.snd_nxt)) {
    t.count(Counter::drop_tcp_bad_ack);
    answer_reset(t, s);
    return false;
  }
  const auto half = t.fast_open.halves.find(&c);
  const Instant began = half != t.fast_open.halves.end() ? half->second.began : now;
  leave_half(t, c, false, now);
  c.fast_open &= static_cast<uint8_t>(~kFastOpenHalf);
  c.snd_wl1 = s.seq;
  c.snd_wnd = uint32_t{s.window} << c.snd_wscale;
  c.max_window = std::max(c.max_window, c.snd_wnd);
  ++c.delivered;  // the SYN-ACK
  if (c.retransmits == 0)
    sample_rtt(t, c, now - began);
  else
    c.rto = 3s;  // RFC 6298 section 5.7
  c.backoff = 0;
  c.retransmits = 0;
  c.retransmit_mode = RetransmitMode::kTimeout;
  clear_timer(c, kTimerRetransmit);
  if (!c.sent.empty()) restart_retransmit(t, c, now);
  t.core.mark_ready(c, kWritable);  // sk_state_change()
  return true;
}

void time_out_child(TcpContext& t, TcpConn& c, Instant now) {
  // One more than of others: it has been accepted, perhaps.
  if (c.retransmits >= t.core.config.synack_retries + 1) {
    fail(t, c, c.soft_error ? c.soft_error : ETIMEDOUT);
    return;
  }
  if (c.retransmits == 1) enter_loss(t, c, now);
  ++c.retransmits;
  ++c.backoff;
  c.rehashes += c.settings.rehash;
  rehash(t, c);
  t.count(Counter::tcp_retransmits);
  ++c.total_retransmits;
  send_handshake(t, c, now);
}

void repeat_syn_ack(TcpContext& t, TcpConn& c) {
  c.handshake_due = true;
  want_output(t, c);
}

bool begin_fast_open(TcpContext& t, TcpConn& c, Instant now) {
  const uint8_t how = c.settings.fast_open;
  if ((how & (kFastOpenConnect | kFastOpenMessage)) == 0) return false;
  FastOpenCookie cookie;
  const bool text = may_have_text(t, c, cookie, now);
  if (text || (how & kFastOpenMessage) != 0) {
    c.fast_open = kFastOpenWaits;
    return true;
  }
  if (cookie.length >= 0) c.fast_open = kFastOpenAsked;
  c.fast_open_failure = kNoFastOpenCookie;
  return false;
}

size_t send_first_text(TcpContext& t, TcpConn& c, std::span<const iovec> data, Instant now) {
  FastOpenCookie cookie;
  const bool may = may_have_text(t, c, cookie, now);
  c.fast_open = static_cast<uint8_t>(cookie.length >= 0 ? kFastOpenAsked : 0) |
                static_cast<uint8_t>(cookie.experimental ? kFastOpenExperimental : 0);
  if (!may && cookie.length >= 0) c.fast_open_failure = kNoFastOpenCookie;
  uint32_t room = may && c.sent.reserve(1) ? room_of_syn(t, c) : 0, done = 0;
  const uint32_t before = c.send_queue.memory();
  for (const iovec& v : data) {
    const auto n = static_cast<uint32_t>(std::min<size_t>(v.iov_len, room));
    const uint32_t copied = c.send_queue.append(t.chunks, static_cast<const uint8_t*>(v.iov_base), n);
    done += copied;
    room = copied < n ? 0 : room - copied;
    if (room == 0) break;
  }
  t.core.tcp_memory.charge(c.send_queue.memory() - before);
  if (done > 0) {
    c.fast_open |= kFastOpenText;
    note_busy(c, Busy::kSending, now);
    SentSegment& s = c.sent.add(c.snd_nxt, c.snd_nxt + done, microseconds(now));
    s.push = true;
    c.snd_nxt = c.snd_pushed = s.end;
    c.tx_bytes += done;
    c.bytes_sent += done;
    ++c.data_segments_out;
  }
  send_handshake(t, c, now);
  return done;
}

bool take_fast_open_answer(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s, const TcpOptions& o,
                           Instant now) {
  if ((c.fast_open & (kFastOpenAsked | kFastOpenText)) == 0) return false;
  remember_peer(t, c, s, o);
  if ((c.fast_open & kFastOpenText) == 0) return true;
  c.snd_una = c.iss + 1;
  if (s.ack != c.snd_una) acknowledge_syn_text(t, c, s.ack, now);
  c.snd_small = c.high_delivered = c.snd_una;
  if (c.sent.empty()) {
    c.fast_open |= kFastOpenTaken;
    t.count(Counter::tcp_fast_opens);
    return true;
  }
  c.fast_open_failure = c.total_retransmits > 0 ? kFastOpenSynAgain : kFastOpenNotAcked;
  t.count(Counter::tcp_fast_open_failures);
  resend_without_congestion(t, c);
  return false;
}

void note_fast_open_timeout(TcpContext& t, TcpConn& c, bool over, Instant now) {
  const bool concerned = (c.fast_open & (kFastOpenAsked | kFastOpenText | kFastOpenTaken)) != 0;
  if (concerned && (c.retransmits == kDisabledByTimeouts || (over && c.retransmits < kDisabledByTimeouts)))
    disable(t, now);
}

void end_fast_open(TcpContext& t, TcpConn& c, Instant now) {
  if ((c.fast_open & kFastOpenHalf) != 0) leave_half(t, c, false, now);
  if ((c.fast_open & kFastOpenAsked) == 0 || t.core.config.fast_open_black_hole == Duration{0}) return;
  // tcp_fastopen_active_disable_ofo_check(): nothing has come but a FIN behind a gap; or text has.
  if (c.data_segments_in == 0 && c.fin_early)
    disable(t, now);
  else if (c.data_segments_in > 0)
    t.fast_open.times_disabled = 0;
}

}  // namespace accel::tcp

namespace accel {

void TcpLayer::set_fast_open(TcpListener& l, const FastOpenServer& server) { l.fast_open.server = server; }

bool TcpLayer::waits_for_text(const TcpConn& c) const { return (c.fast_open & kFastOpenWaits) != 0; }

std::vector<uint8_t> TcpLayer::text_of_syn(const TcpConn& c) const {
  std::vector<uint8_t> out(c.tcp_state == TcpState::kSynSent ? c.send_queue.size() : 0);
  // A copy moves the queue's cursor, nothing else.
  if (!out.empty())
    const_cast<SendQueue&>(c.send_queue).copy(out.data(), c.send_queue.begin(), c.send_queue.size());
  return out;
}

}  // namespace accel
