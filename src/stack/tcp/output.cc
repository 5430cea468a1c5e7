// Which segments leave, and how they are built.
#include <algorithm>

#include "stack/egress.h"
#include "stack/tcp/context.h"
#include "stack/wire/ipv4.h"

namespace accel::tcp {

constexpr uint32_t kHeader = 20;
/// Segments of a frame that the device cuts: a burst that receive rings take (veth's holds 256).
constexpr uint32_t kMaxCuts = 96;

// ---------------------------------------------------------------- building

/// Returns its sum in host order. The header is not read again for that: wide loads right behind narrower
/// stores stall.
static uint64_t put_tcp_header(uint8_t* p, uint16_t from, uint16_t to, uint32_t seq, uint32_t ack,
                               uint32_t length, uint8_t flags, uint16_t window, uint16_t urgent) {
  const std::array<uint32_t, 5> words{uint32_t{from} << 16 | to, seq, ack,
                                      length / 4 << 28 | uint32_t{flags} << 16 | window, urgent};
  uint64_t sum = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    store_be32(p + 4 * i, words[i]);
    sum += words[i];
  }
  return sum;
}

/// What the window field says, and rcv_edge after it. The right edge never goes back (RFC 9293
/// section 3.8.6).
static uint16_t select_window(const TcpContext& t, TcpConn& c) {
  uint32_t current = seq_gt(c.rcv_edge, c.rcv_nxt) ? c.rcv_edge - c.rcv_nxt : 0;
  uint32_t space = receive_space(t, c);
  uint32_t wanted = space >= current + receive_step(c) ? space : current;
  uint32_t unit = 1u << c.rcv_wscale;
  uint32_t window = wanted & ~(unit - 1);
  // Rounding would take back up to a unit: rather give it, where there is room (RFC 7323 section 2.4).
  if (window < current && window + unit <= space) window += unit;
  window = std::min(window, 65535u << c.rcv_wscale);
  c.rcv_edge = seq_max(c.rcv_edge, c.rcv_nxt + window);
  return static_cast<uint16_t>(window >> c.rcv_wscale);
}

static uint32_t sack_length(const TcpConn& c) {
  uint32_t blocks = c.sack_count + (c.dsack_due ? 1u : 0u);
  if (blocks == 0) return 0;
  return 4 + 8 * std::min(blocks, c.timestamps_ok ? 3u : 4u);
}

/// Timestamps and SACK blocks; returns their sum in host order.
static uint64_t put_options(TcpConn& c, uint8_t* p, Instant now) {
  uint64_t sum = 0;
  uint32_t n = 0;
  if (c.timestamps_ok) {
    uint32_t value = timestamp_clock(now) + c.ts_offset;
    n = put_timestamps(p, value, c.ts_recent);
    sum = uint64_t{0x0101080a} + value + c.ts_recent;
  }
  if (c.sack_count == 0 && !c.dsack_due) return sum;
  std::array<SackBlock, 4> blocks;
  uint32_t limit = c.timestamps_ok ? 3 : 4, used = 0;
  if (c.dsack_due) blocks[used++] = c.dsack;
  for (uint8_t i = 0; i < c.sack_count && used < limit; ++i) blocks[used++] = c.out_of_order->sack_blocks[i];
  c.dsack_due = false;
  put_sack(p + n, {blocks.data(), used});
  sum += uint64_t{0x0101} << 16 | option::kSack << 8 | (2 + 8 * used);
  for (uint32_t i = 0; i < used; ++i) sum += uint64_t{blocks[i].begin} + blocks[i].end;
  return sum;
}

/// Copies `n` bytes of the send queue behind the `used` bytes of headers, over as many buffers as it takes.
/// False: no frames; the caller releases `frame`.
static bool put_payload(TcpContext& t, TcpConn& c, Packet* frame, uint32_t seq, uint32_t n, bool offload,
                        PartSum& sum) {
  Packet* part = frame;
  while (n > 0) {
    uint32_t room = std::min(part->tailroom(), n);
    uint8_t* to = part->data() + part->length;
    if (offload)
      c.send_queue.copy(to, seq, room);
    else
      c.send_queue.copy(to, seq, room, sum);
    part->length += room;
    seq += room;
    n -= room;
    if (n == 0) break;
    part->more = t.core.new_frame();
    part = part->more;
    if (!part) return false;
  }
  return true;
}

/// Segments that `n` bytes make.
static uint32_t cuts(uint32_t n, uint32_t size) { return (n + size - 1) / size; }

/// What every segment with an ACK says, so that it is owed no more.
static void note_ack_sent(TcpConn& c) {
  if (c.quick_acks > 0 && (c.ack_now || c.rcv_wup != c.rcv_nxt)) --c.quick_acks;  // tcp_dec_quickack_mode()
  c.rcv_wup = c.rcv_nxt;
  c.ack_now = c.pushed = false;
  clear_timer(c, kTimerAck);
}

/// Of what routers may cut into fragments. A frame that the device cuts has one for each segment.
[[gnu::noinline]] static void put_id(TcpConn& c, uint8_t* frame, uint32_t segments) {
  if (c.headers.v6) return;
  auto& ip = wire_at<Ipv4Header>(frame + c.headers.ip_offset);
  ip.id = c.ip_id;
  ip.checksum = 0;
  store_checksum(reinterpret_cast<uint8_t*>(&ip) + offsetof(Ipv4Header, checksum),
                 finish_sum(sum_bytes(reinterpret_cast<const uint8_t*>(&ip), sizeof ip)));
  c.ip_id = static_cast<uint16_t>(c.ip_id + segments);
}

static uint16_t urgent_pointer(const TcpConn& c, uint32_t seq, uint8_t& flags) {
  if (!c.urgent_out || !seq_lt(seq, c.snd_up)) return 0;
  uint32_t ahead = c.snd_up - seq;
  flags |= kUrg;
  return static_cast<uint16_t>(std::min(ahead, 65535u));
}

/// A segment of a synchronised connection: headers, options, `n` bytes of the send queue from `seq` on. More
/// than segment_size(): the device cuts (Packet::tso_size). False: no frame.
static bool send_segment(TcpContext& t, TcpConn& c, uint32_t seq, uint32_t n, uint8_t flags, Instant now) {
  Packet* frame = t.core.new_frame();
  if (!frame) return false;
  uint8_t* base = frame->data();
  uint8_t* header = base + c.headers.length;
  uint32_t length = kHeader + (c.timestamps_ok ? option::kTimestampsLength : 0) + sack_length(c);
  const uint8_t ecn = c.ecn & kEcnOk ? mark_segment(c, seq, n, flags) : uint8_t{0};
  put_headers(base, c.headers, length + n, ecn);  // first: it writes beyond its end
  uint32_t size = segment_size(c);                // before the options: they forget a D-SACK
  if (!c.settings.dont_fragment) put_id(c, base, n > size ? cuts(n, size) : 1);
  uint64_t words = put_options(c, header + kHeader, now);
  uint16_t urgent = urgent_pointer(c, seq, flags);
  flags |= kAck;
  words += put_tcp_header(header, c.local.port, c.remote.port, seq, c.rcv_nxt, length, flags,
                          select_window(t, c), urgent);
  frame->length = c.headers.length + length;
  bool cut = n > size;
  bool offload = cut || t.core.of(*c.hop).tx_checksum;
  uint64_t start = pseudo_sum(c.headers, cut ? 0 : length + n);
  PartSum sum(offload ? start : start + swap_sum(words));
  if (n > 0 && !put_payload(t, c, frame, seq, n, offload, sum)) {
    FramePool::release(frame);
    return false;
  }
  frame->checksum_offload = offload;
  store_checksum(header + 16, offload ? fold_sum(sum.sum()) : finish_sum(sum.sum()));
  if (cut) {
    frame->tso_size = static_cast<uint16_t>(size);
    frame->header_length = static_cast<uint16_t>(c.headers.length + length);
  }
  note_ack_sent(c);
  note_numbers_sent(c);
  c.segments_out += cut ? cuts(n, size) : 1;
  t.core.transmit(frame, *c.hop);
  return true;
}

/// A segment without payload and without a connection's state.
struct Bare {
  const Endpoint& local;
  const Endpoint& remote;
  uint32_t seq, ack;
  uint8_t flags;
  uint16_t window;
  std::span<const uint8_t> options;
  std::span<const uint8_t> text{};
};

static void send_bare(TcpContext& t, Hop& hop, const HeaderFields& fields, const Bare& b) {
  Packet* frame = t.core.new_frame();
  if (!frame) return;
  HeaderTemplate headers;
  t.core.make_template(hop, b.local.address, b.remote.address, Protocol::kTcp, fields, headers);
  uint8_t* header = frame->data() + headers.length;
  uint32_t length = kHeader + static_cast<uint32_t>(b.options.size());
  put_headers(frame->data(), headers, length + static_cast<uint32_t>(b.text.size()), 0);
  std::copy(b.options.begin(), b.options.end(), header + kHeader);
  put_tcp_header(header, b.local.port, b.remote.port, b.seq, b.ack, length, b.flags, b.window, 0);
  std::copy(b.text.begin(), b.text.end(), header + length);
  length += static_cast<uint32_t>(b.text.size());
  store_checksum(header + 16, finish_sum(add_sums(pseudo_sum(headers, length), sum_bytes(header, length))));
  frame->length = headers.length + length;
  t.core.transmit(frame, hop);
}

// ---------------------------------------------------------------- segments without data

void send_ack(TcpContext& t, TcpConn& c, Instant now) {
  if (!send_segment(t, c, c.snd_nxt, 0, 0, now)) c.ack_now = true;  // no frame: again with the next flush
}

/// RFC 9293 section 3.8.4 and 3.8.6.1: a segment below the window, which the peer has to answer.
void send_probe(TcpContext& t, TcpConn& c, Instant now) {
  // Below the window a peer does not look at URG: another one, which is acceptable, announces urgent data
  // (tcp_write_wakeup()).
  if (c.urgent_out && seq_gt(c.snd_up, c.snd_una)) send_segment(t, c, c.snd_una, 0, 0, now);
  send_segment(t, c, c.snd_una - 1, 0, 0, now);
}

void send_reset(TcpContext& t, TcpConn& c, Instant now) {
  t.count(Counter::tcp_resets_sent);
  uint8_t flags = kRst;
  if (c.tcp_state == TcpState::kSynSent) return;
  send_segment(t, c, c.snd_nxt, 0, flags, now);
}

/// What came for a connection that is closed is answered as if it were gone (RFC 9293 section 3.10.7.1).
void refuse_text(TcpContext& t, const TcpConn& c, uint32_t ack) {
  t.count(Counter::tcp_resets_sent);
  send_bare(t, *c.hop, header_fields(t, c), {c.local, c.remote, ack, 0, kRst, 0, {}});
}

void answer_reset(TcpContext& t, const TcpSegmentInfo& s) {
  if (s.remote.address.is_multicast() || s.local.address.is_multicast()) return;
  Way way = t.core.way_back({s.remote.address, s.local.address, s.interface});
  if (!way.hop) return t.count(Counter::drop_no_way_back);
  t.count(Counter::tcp_resets_sent);
  const uint32_t label = t.core.flow_label(t.core.default_flow_label(), t.core.flow_hash(s.local, s.remote));
  const HeaderFields fields{0, 64, label};
  uint32_t length = s.payload_length + ((s.flags & kSyn) ? 1 : 0) + ((s.flags & kFin) ? 1 : 0);
  if (s.flags & kAck)
    send_bare(t, *way.hop, fields, {s.local, s.remote, s.ack, 0, kRst, 0, {}});
  else
    send_bare(t, *way.hop, fields, {s.local, s.remote, 0, s.seq + length, kRst | kAck, 0, {}});
}

void answer_time_wait(TcpContext& t, const TcpTimeWait& w, Instant now) {
  std::array<uint8_t, option::kTimestampsLength> options;
  uint32_t n =
      w.timestamps ? put_timestamps(options.data(), timestamp_clock(now) + w.ts_offset, w.ts_recent) : 0;
  send_bare(t, *w.hop, {w.tos, w.ttl, w.flow_label},
            {w.local, w.remote, w.snd_nxt, w.rcv_nxt, kAck, w.window, {options.data(), n}});
}

void send_syn(TcpContext& t, TcpConn& c, bool ack, Instant now) {
  SynOptions o;
  o.mss = c.own_mss;
  o.sack_permitted = c.sack_ok;
  o.timestamps = c.timestamps_ok;
  o.has_wscale = c.wscale_ok;
  o.wscale = c.rcv_wscale;
  o.tsval = timestamp_clock(now) + c.ts_offset;
  o.tsecr = ack ? c.ts_recent : 0;
  const bool with_text = !ack && c.retransmits == 0 && (c.fast_open & kFastOpenText) != 0;
  std::vector<uint8_t> text(with_text ? c.send_queue.size() : 0);
  if (with_text) c.send_queue.copy(text.data(), c.send_queue.begin(), c.send_queue.size());
  if (c.fast_open != 0) o.fast_open = cookie_of_syn(t, c, now);
  std::array<uint8_t, kMaxSegmentOptions> options;
  uint32_t n = put_syn_options(options.data(), o);
  uint32_t window = ack ? c.rcv_edge - c.rcv_nxt : c.rcv_edge;
  uint8_t flags = ack ? kSyn | kAck : uint8_t{kSyn};
  // RFC 3168 section 6.1.1.1: a path that drops such SYNs is asked for no ECN the second time.
  const bool ask = !ack && (c.retransmits == 0 || !t.core.config.ecn_fallback);
  if ((c.ecn & kEcnOk) && (ack || ask)) flags |= static_cast<uint8_t>(ack ? kEce : kEce | kCwr);
  if (c.retransmits == 0) c.last_sent = now;
  ++c.segments_out;
  send_bare(t, *c.hop, header_fields(t, c),
            {c.local,
             c.remote,
             c.iss,
             ack ? c.rcv_nxt : 0,
             flags,
             static_cast<uint16_t>(std::min(window, 65535u)),
             {options.data(), n},
             text});
  if (ack) note_ack_sent(c);
  note_numbers_sent(c);
}

// ---------------------------------------------------------------- data

/// Payload bytes of the next segment: the MSS less the SACK blocks it will carry.
uint32_t segment_size(const TcpConn& c) {
  uint32_t blocks = c.sack_count == 0 && !c.dsack_due ? 0 : sack_length(c);
  return c.snd_mss - blocks;  // snd_mss has room for all options, and 8 bytes
}

/// tcp_event_data_sent(). A FIN alone is no data: it answers nothing.
static void note_data_sent(TcpConn& c, uint32_t segments, uint32_t n, Instant now) {
  if (n == 0) return;
  c.data_segments_out += segments;
  c.bytes_sent += n;
  c.last_sent = now;
  // An answer soon after a question: from now on ACKs ride on answers. What opens the conversation answers
  // nothing, where ato is 0 until the first data have come.
  if (now - c.last_received < Duration{c.ato_ns}) c.pingpong = true;
  if (reduces_in_proportion(c)) c.prr_out += n;
}

bool send_new(TcpContext& t, TcpConn& c, uint32_t n, Instant now) {
  uint32_t size = segment_size(c), segments = n > size ? cuts(n, size) : 1;
  if (!c.sent.reserve(segments)) return false;
  uint32_t seq = c.snd_nxt, end = c.send_queue.end();
  bool last = seq + n == end;
  bool window_for_fin = c.snd_wnd > seq - c.snd_una + n;
  bool fin = last && c.fin_queued && !c.fin_sent && window_for_fin;
  const bool push = n > 0 && ((last && c.snd_pushed == end) ||
                              (c.send_marks && c.send_queue.ends_within(SendQueue::kPush, seq, n)));
  uint8_t flags = static_cast<uint8_t>((push ? kPsh : 0) | (fin ? kFin : 0));
  if (c.sent.empty()) {
    restart_after_idle(t, c, now);
    c.stuck_since = now;
    if (c.mtu < c.route_mtu &&
        now - c.mtu_lowered > kMtuLife) {  // RFC 1191 section 6.3: the path may be wider again
      c.mtu = c.route_mtu;
      refresh_mss(t, c);
    }
  }
  if (!send_segment(t, c, seq, n, flags, now)) return false;
  uint32_t last_length = n - (segments - 1) * size;
  for (; seq != c.snd_nxt + n - last_length; seq += size) c.sent.add(seq, seq + size, microseconds(now));
  SentSegment& s = c.sent.add(seq, seq + last_length + (fin ? 1 : 0), microseconds(now));
  s.fin = fin;
  s.push = push;
  c.snd_nxt = s.end;
  note_segments_sent(c, segments, now);
  if (c.paced) note_paced(c, n, now);
  if (fin) c.fin_sent = true;
  if (last_length < size) c.snd_small = s.end;
  c.tx_bytes += n;
  note_data_sent(c, segments, n, now);
  return true;
}

bool retransmit(TcpContext& t, TcpConn& c, uint32_t i, Instant now) {
  uint32_t room = segment_size(c);
  if (c.sent[i].length() - c.sent[i].fin > room) {  // the MSS went down, or SACK blocks need room
    if (!c.sent.reserve(1)) return false;
    if (c.sent[i].sacked) ++c.sacked_segments;
    c.sent.split(i, c.sent[i].begin + room);
  }
  SentSegment& s = c.sent[i];
  uint32_t n = s.length() - s.fin;
  uint8_t flags = static_cast<uint8_t>((s.fin ? kFin : 0) | (s.push ? kPsh : 0));
  if (!send_segment(t, c, s.begin, n, flags, now)) return false;
  t.count(Counter::tcp_retransmits);
  ++c.total_retransmits;
  c.bytes_retransmitted += n;
  s.sent_us = microseconds(now);
  s.ever_resent = 1;
  if (c.sampled) stamp_sent(c, i);
  if (c.paced) note_paced(c, n, now);
  if (c.sack_ok) c.sent.note_resent(s);
  if (s.lost && !s.resent) {
    s.resent = 1;
    c.resent_bytes += s.length();
  }
  if (c.undo_retransmits >= 0) {
    ++c.undo_retransmits;
    if (!c.undo_stamped) c.undo_timestamp = timestamp_clock(now) + c.ts_offset;
    c.undo_stamped = true;
  }
  note_data_sent(c, 1, n, now);
  return true;
}

enum class Blocked : uint8_t { kNothing, kCongestion, kWindow, kHeld, kFrames, kPace };

static Blocked send_lost(TcpContext& t, TcpConn& c, Instant now) {
  SentRing& sent = c.sent;
  uint32_t i = sent.skip_sacked(sent.find(sent.lost_from));
  for (; i < sent.size() && c.lost_bytes > c.resent_bytes; i = sent.skip_sacked(i + 1)) {
    if (!sent[i].lost || sent[i].resent) continue;
    sent.lost_from = sent[i].begin;
    uint32_t pipe = c.pipe();
    if (pipe > 0 && pipe + std::min<uint32_t>(sent[i].length(), c.snd_mss) > c.cwnd)
      return Blocked::kCongestion;
    if (c.paced && !may_leave(c, sent[i].length(), now)) return Blocked::kPace;
    if (!retransmit(t, c, i, now)) return Blocked::kFrames;
    if (i == 0) restart_retransmit(t, c, now);
  }
  return Blocked::kNothing;
}

/// Whether a last partial segment waits: Nagle as Minshall amended it, TCP_CORK, MSG_MORE. `in_flight`: there
/// is unacknowledged data before it.
static bool held_back(const TcpConn& c, bool in_flight) {
  if (c.fin_queued || c.push || c.frto_probe) return false;
  if (c.urgent_out && seq_gt(c.snd_up, c.snd_una)) return false;  // as Linux' tcp_nagle_test()
  if (c.settings.cork || c.more) return true;
  if (c.settings.nodelay) return false;
  return seq_gt(c.snd_small, c.snd_una) && in_flight;
}

/// How much of `most` sendable bytes one frame may take that the device cuts, a full segment at least: whole
/// segments, and the last partial one where that would leave as well. Nothing is held back to gather more,
/// and nothing follows a segment with PSH. `data`: unsent, of one record.
static uint32_t gathered(const TcpContext& t, const TcpConn& c, uint32_t size, uint32_t data, uint32_t most) {
  const FramePool& pool = t.core.pool;
  if (!c.hop->resolved || pool.available() <= pool.size() / 2) return size;  // memory may not sit in queues
  // The urgent pointer counts from each segment's own number; CWR is of one segment.
  if (c.urgent_out || (c.ecn & kEcnCwrDue)) return size;
  uint64_t spare = uint64_t{pool.available() - pool.size() / 2 - 1} * pool.buffer_size();
  most = static_cast<uint32_t>(std::min<uint64_t>({most, t.core.of(*c.hop).tso_max, kMaxCuts * size, spare}));
  const bool ends_record = data < unsent(c);
  uint32_t n = std::max(std::min(most, data) / size, 1u) * size;
  if (most >= data && (data % size == 0 || ends_record || !held_back(c, true))) n = data;
  // The device sets PSH in the last segment only.
  if (c.send_marks) n = std::min(n, cuts(c.send_queue.up_to(SendQueue::kPush, c.snd_nxt, n), size) * size);
  return n;
}

/// The unsent bytes before the next record's end, as far as a frame could reach.
static uint32_t unsent_of_record(const TcpContext& t, const TcpConn& c, uint32_t data, uint32_t size) {
  if (!c.send_marks || data == 0) return data;
  const uint32_t most = std::min(data, t.core.of(*c.hop).tso ? kMaxCuts * size : size);
  const uint32_t n = c.send_queue.up_to(SendQueue::kRecord, c.snd_nxt, most);
  return n < most || c.send_queue.ends_within(SendQueue::kRecord, c.snd_nxt, most) ? n : data;
}

static Blocked send_unsent(TcpContext& t, TcpConn& c, Instant now) {
  while (true) {
    uint32_t data = unsent(c);
    bool fin = c.fin_queued && !c.fin_sent;
    if (data == 0 && !fin) return Blocked::kNothing;
    uint32_t used = c.snd_nxt - c.snd_una;
    uint32_t window = c.snd_wnd > used ? c.snd_wnd - used : 0;
    uint32_t size = segment_size(c);
    const uint32_t record = unsent_of_record(t, c, data, size);
    uint32_t n = std::min({record, window, size});
    if (n == 0 && (data > 0 || window == 0)) return Blocked::kWindow;
    uint32_t pipe = c.pipe();
    if (pipe > 0 && pipe + n > c.cwnd) return Blocked::kCongestion;
    if (n < size && n > 0) {
      if (n == data) {
        if (held_back(c, c.snd_nxt != c.snd_una)) return Blocked::kHeld;
      } else if (n < record && n < c.max_window / 2) {
        return Blocked::kWindow;  // sender's silly window avoidance (RFC 9293 section 3.8.6.2.1)
      }
    }
    if (c.paced && !may_leave(c, n, now)) return Blocked::kPace;
    if (t.core.tx_full(*c.hop)) return Blocked::kFrames;
    const uint32_t pace = c.paced ? paced_bytes(c, now) : 0xffffffff;
    if (n == size && record > size && t.core.of(*c.hop).tso)
      n = gathered(t, c, size, record, std::min({window, c.cwnd - std::min(c.cwnd, pipe), pace}));
    if (!send_new(t, c, n, now)) return Blocked::kFrames;
  }
}

static bool sends_data(TcpState s) {
  return s == TcpState::kEstablished || s == TcpState::kCloseWait || s == TcpState::kFinWait1 ||
         s == TcpState::kClosing || s == TcpState::kLastAck;
}

/// tcp_chrono_start(), tcp_cwnd_validate(). Apart, since output() is small and hot.
[[gnu::noinline]] static void note_wait(TcpConn& c, Blocked blocked, Instant now) {
  if (c.busy == Busy::kIdle) return;
  const bool more_to_come = blocked == Blocked::kNothing && c.no_space;
  note_busy(c,
            blocked == Blocked::kWindow ? Busy::kWindow
            : more_to_come              ? Busy::kBuffer
                                        : Busy::kSending,
            now);
}

/// RFC 5682 section 3.1, step 2b: new text, and nothing again until its ACKs have come. False: there is none,
/// or no window for it, and recovery goes on as after any timeout.
[[gnu::noinline]] static bool probe_timeout(TcpContext& t, TcpConn& c, Blocked& blocked, Instant now) {
  blocked = send_unsent(t, c, now);
  if (seq_gt(c.snd_nxt, c.recovery_point)) return true;
  c.frto = c.frto_probe = false;
  blocked = Blocked::kNothing;
  return false;
}

void output(TcpContext& t, TcpConn& c, Instant now) {
  if (c.handshake_due) {
    send_handshake(t, c, now);
    if ((c.fast_open & kFastOpenHalf) == 0) return;
  }
  if (c.tcp_state == TcpState::kClosed || c.tcp_state == TcpState::kSynSent ||
      c.tcp_state == TcpState::kSynReceived)
    return;
  Blocked blocked = Blocked::kNothing;
  if (sends_data(c.tcp_state)) {
    const uint32_t before = c.snd_nxt;
    const bool probed = c.frto_probe && probe_timeout(t, c, blocked, now);
    if (!probed && c.lost_bytes > c.resent_bytes) blocked = send_lost(t, c, now);
    if (!probed && blocked == Blocked::kNothing) blocked = send_unsent(t, c, now);
    if (c.snd_nxt != before) note_sent(t, c, now);
    c.cwnd_limited = blocked == Blocked::kCongestion || c.pipe() + c.snd_mss > c.cwnd;
    if (blocked == Blocked::kNothing) c.push = false;
    if (blocked == Blocked::kPace) set_pacing_timer(t, c, pacing_deadline(c));
    if (c.sampled) note_app_limited(c);
    if (blocked == Blocked::kWindow || c.no_space || c.busy > Busy::kSending) note_wait(c, blocked, now);
    if (c.sent.empty() && blocked == Blocked::kWindow) start_probe(t, c, now);
    if (blocked == Blocked::kHeld && (c.settings.cork || c.more) && c.deadlines[kTimerCork] == kNever)
      set_timer(t, c, kTimerCork, now + kCorkTime);
  }
  if (c.ack_now) send_ack(t, c, now);
  if (blocked == Blocked::kFrames || c.ack_now) {  // when the port has taken some
    t.stalled_until = std::min(t.stalled_until, now + 1ms);
    want_output(t, c);
  }
}

// ---------------------------------------------------------------- who has something to send

void want_output(TcpContext& t, TcpConn& c) {
  if (c.pending) return;
  c.pending = true;
  c.pending_next = nullptr;
  c.pending_prev = t.pending_tail;
  (t.pending_tail ? t.pending_tail->pending_next : t.pending_head) = &c;
  t.pending_tail = &c;
}

void unlist_pending(TcpContext& t, TcpConn& c) {
  if (!c.pending) return;
  (c.pending_prev ? c.pending_prev->pending_next : t.pending_head) = c.pending_next;
  (c.pending_next ? c.pending_next->pending_prev : t.pending_tail) = c.pending_prev;
  c.pending_next = c.pending_prev = nullptr;
  c.pending = false;
}

}  // namespace accel::tcp
