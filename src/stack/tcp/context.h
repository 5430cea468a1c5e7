// What TCP's verbs share, and their declarations. Each file of this folder defines some of them.
#pragma once

#include <deque>
#include <unordered_map>
#include <vector>

#include "stack/core.h"
#include "stack/tcp/conn.h"

namespace accel {

struct TcpContext {
  explicit TcpContext(StackCore& core_in) : core(core_in), fast_open(core_in.config.secret[1]) {}
  StackCore& core;
  TimerWheel wheel;
  ChunkCache chunks;
  std::vector<TcpEntry*> buckets = std::vector<TcpEntry*>(256);
  uint32_t entries = 0;      ///< in buckets
  uint32_t connections = 0;  ///< TcpConns, embryonic ones and those without a tuple included
  uint32_t time_waits = 0;
  uint32_t orphans = 0;  ///< TcpConns that the application has closed
  std::unordered_map<uint16_t, std::vector<TcpListener*>> listeners;  ///< by port
  std::unordered_map<uint16_t, uint32_t> ports;  ///< connections and TIME-WAITs by local port
  TcpConn* pending_head = nullptr;               ///< with something to send: flush()
  TcpConn* pending_tail = nullptr;
  TcpConn* all_head = nullptr;
  struct Forgotten {
    uint64_t hash;
    Instant until;
  };
  /// Tuples that are the kernel's now, with what is still on its way: by hash_of(), until when.
  std::unordered_map<uint64_t, Instant> forgotten;
  std::deque<Forgotten>
      forgetting;  ///< the same, oldest first; `until` differs where one was forgotten again
  /// Local ends whose listeners have sent SYN cookies lately: ACKs without a connection come to us.
  struct CookieEnd {
    Endpoint local;
    InterfaceId interface;
    Instant until;
  };
  std::vector<CookieEnd> cookie_ends;
  FastOpenContext fast_open;
  TcpConn* current = nullptr;  ///< being worked on: its end frees it only afterwards
  Instant stalled_until = kNever;

  void count(Counter c, uint64_t n = 1) { core.counters.add(c, n); }
};

namespace tcp {

constexpr uint32_t kMaxSegmentOptions = 40;
constexpr uint32_t kDupThreshold = 3;
/// Of those, how many do not tell yet that the peer is dead: what Linux' reqsk_timer_handler() leaves to
/// every handshake, however long the queue. 7 seconds.
constexpr uint32_t kYoungRetries = 2;
constexpr uint8_t kQuickAcks = 16;    ///< TCP_MAX_QUICKACKS
constexpr Duration kInitialRto = 1s;  ///< RFC 6298 (2.1)
constexpr Duration kMaxRto = 120s;    ///< TCP_RTO_MAX
constexpr Duration kMtuLife = 600s;   ///< ip_rt_mtu_expires, tcp_probe_interval
constexpr uint32_t kMostWindow = 1u << 30;
constexpr Duration kCorkTime = 200ms;
constexpr Duration kMemoryWait = 1ms;     ///< nothing says when there is memory again
constexpr Duration kForgottenTime = 10s;  ///< what is on its way to us has come by then
constexpr size_t kMostForgotten = 4096;   ///< of the oldest nothing is expected any more

// ---- table.cc: tuples, life and death ----
inline uint64_t hash_of(const TcpContext& t, const Endpoint& local, const Endpoint& remote) {
  return hash_tuple(local, remote, t.core.config.secret[0]);
}
inline TcpEntry* find(const TcpContext& t, uint64_t hash, const Endpoint& local, const Endpoint& remote) {
  for (TcpEntry* e = t.buckets[hash & (t.buckets.size() - 1)]; e; e = e->hash_next)
    if (e->hash == hash && e->local == local && e->remote == remote) return e;
  return nullptr;
}
/// nullptr also where the tuple is in TIME-WAIT.
inline TcpConn* find_connection(const TcpContext& t, const Endpoint& local, const Endpoint& remote) {
  TcpEntry* e = find(t, hash_of(t, local, remote), local, remote);
  return e && e->kind == TcpEntry::Kind::kConn ? static_cast<TcpConn*>(e) : nullptr;
}
void insert(TcpContext& t, TcpEntry& e);
void remove(TcpContext& t, TcpEntry& e);
/// A new connection in CLOSED, in no table yet; nullptr: limit or no memory.
TcpConn* create(TcpContext& t);
/// Frees it, and takes it out of everything. If it is `t.current`, at the end of that work.
void destroy(TcpContext& t, TcpConn& c);
/// The tuple is free again: unsteer.
void announce_closed(TcpContext& t, const TcpEntry& e, InterfaceId interface);
/// Enters CLOSED: no tuple, no timers, nothing to send. The application keeps it with what it has to read; an
/// orphan is freed.
void finish(TcpContext& t, TcpConn& c);
/// finish() with an error for the application.
void fail(TcpContext& t, TcpConn& c, int error);
void enter_time_wait(TcpContext& t, TcpConn& c, Instant now);
void destroy_time_wait(TcpContext& t, TcpTimeWait& w, bool announce);
void release_packet(Packet* p);  ///< of the pool or of the heap (pool == nullptr)
Packet* heap_packet(uint32_t capacity);
void purge_receive(TcpContext& t, TcpConn& c);
void purge_send(TcpContext& t, TcpConn& c);
/// While a connection is worked on; frees it at the end when it ended.
class Working {
 public:
  Working(TcpContext& t, TcpConn& c) : t_(t), before_(t.current) { t.current = &c; }
  Working(const Working&) = delete;
  Working& operator=(const Working&) = delete;
  ~Working() {
    TcpConn* c = t_.current;
    t_.current = before_;
    if (c->deferred_free && before_ != c) destroy(t_, *c);
  }

 private:
  TcpContext& t_;
  TcpConn* before_;
};

// ---- handshake.cc ----
uint32_t initial_sequence(const TcpContext& t, const Endpoint& local, const Endpoint& remote, Instant now);
uint32_t timestamp_offset(const TcpContext& t, const IpAddress& local, const IpAddress& remote);
inline uint32_t timestamp_clock(Instant now) {
  return static_cast<uint32_t>(now.time_since_epoch().count() / 1'000'000);
}
/// The low bits, for SentSegment::sent_us.
inline uint32_t microseconds(Instant now) {
  return static_cast<uint32_t>(now.time_since_epoch().count() / 1000);
}
inline uint32_t busy_clock(Instant now) {
  return static_cast<uint32_t>(now.time_since_epoch().count() >> 20);
}
inline void note_busy(TcpConn& c, Busy to, Instant now) {
  if (c.busy == to) return;
  if (c.busy != Busy::kIdle) c.busy_ticks[static_cast<size_t>(c.busy) - 1] += busy_clock(now) - c.busy_since;
  c.busy = to;
  c.busy_since = busy_clock(now);
}
/// The MTU that the connection uses where its route's is `mtu`.
uint32_t path_mtu(const TcpConn& c, uint32_t mtu);
void set_way(TcpContext& t, TcpConn& c, const Way& way);
inline const RouteMetrics& metrics_of(const TcpContext& t, const TcpConn& c) {
  return t.core.metrics[c.metrics];
}
/// tcp_rto_min()
inline Duration min_rto(const TcpContext& t, const TcpConn& c) {
  const Duration own = metrics_of(t, c).min_rto;
  return own.count() > 0 ? own : t.core.config.min_rto;
}
/// The header template anew, after its hop, the settings or the flow's hash have changed.
void refresh_headers(const TcpContext& t, TcpConn& c);
/// IPv6: another automatic flow label, so that equal-cost routers may take another path
/// (sk_rethink_txhash()).
void rehash(const TcpContext& t, TcpConn& c);
/// tcp_rcv_spurious_retrans(): the same old text a second time says that the ACKs get lost on their path.
inline void rehash_if_resent_again(const TcpContext& t, TcpConn& c, uint32_t seq) {
  if (seq == c.dsack.begin) rehash(t, c);
}
/// The headers' fields of the connection's segments.
HeaderFields header_fields(const TcpContext& t, const TcpConn& c);
void refresh_mss(const TcpContext& t, TcpConn& c);
void input_syn_sent(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s, const TcpOptions& o, Packet* frame,
                    Instant now);
/// Fifth check in SYN-RECEIVED. False: the segment is done with (and `c` may have ended).
bool complete_handshake(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s, Instant now);
/// An embryo joins its listener's queue although the peer's ACK has not come.
void take_for_established(TcpContext& t, TcpConn& c, Instant now);
/// SYN-RECEIVED ends; `s`: the last segment of the handshake. A listener's connection joins its queue.
void enter_established(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s, Instant now);
[[gnu::cold]] void send_handshake(TcpContext& t, TcpConn& c, Instant now);
void take_syn_options(const TcpContext& t, TcpConn& c, const TcpOptions& o, Instant now);

/// tcp_init_transfer(): its buffers, its congestion control, its keepalive.
void begin_transfer(TcpContext& t, TcpConn& c, Instant now);
void inherit_settings(const TcpContext& t, TcpConn& c);
/// In SYN-SENT or SYN-RECEIVED: of our SYN, and perhaps of text that left with it.
inline bool acknowledges_syn(const TcpConn& c, uint32_t ack) {
  return seq_gt(ack, c.iss) && seq_le(ack, c.snd_nxt);
}

// ---- fast_open.cc ----
/// An embryo whose SYN lets it be a connection at once: it is in its listener's queue. Else its SYN-ACK may
/// get a cookie.
[[gnu::cold]] bool open_at_once(TcpContext& t, TcpListener& l, TcpConn& c, const TcpSegmentInfo& s,
                                const Packet* frame, Instant now);
/// The option of the SYN or SYN-ACK that is about to leave.
[[gnu::cold]] FastOpenCookie cookie_of_syn(TcpContext& t, TcpConn& c, Instant now);
/// Of one with kFastOpenHalf: the ACK of its SYN-ACK has come (false: none that could be), its SYN has come
/// again, the SYN-ACK has timed out, its peer has reset it.
[[gnu::cold]] bool confirm_child(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s, Instant now);
[[gnu::cold]] void repeat_syn_ack(TcpContext& t, TcpConn& c);
[[gnu::cold]] void time_out_child(TcpContext& t, TcpConn& c, Instant now);
[[gnu::cold]] void leave_half(TcpContext& t, const TcpConn& c, bool reset, Instant now);
/// The listener is gone.
void leave_listener(TcpContext& t, const TcpListener& l);
/// connect() of a socket that asks for Fast Open. True: the SYN waits for the first write.
[[gnu::cold]] bool begin_fast_open(TcpContext& t, TcpConn& c, Instant now);
/// That write: sends the SYN; returns how much of the text it took along.
[[gnu::cold]] size_t send_first_text(TcpContext& t, TcpConn& c, std::span<const iovec> data, Instant now);
/// The SYN-ACK, once the connection is established. True: it may bring text, too.
[[gnu::cold]] bool take_fast_open_answer(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s,
                                         const TcpOptions& o, Instant now);
/// A timeout, the first with retransmits of 0. `over`: the connection ends by it.
[[gnu::cold]] void note_fast_open_timeout(TcpContext& t, TcpConn& c, bool over, Instant now);
/// The connection ends.
[[gnu::cold]] void end_fast_open(TcpContext& t, TcpConn& c, Instant now);

// ---- ecn.cc ----
/// net.ipv4.tcp_ecn, or the route.
bool accepts_ecn(const TcpContext& t, const TcpConn& c);
/// Whether the answer to a SYN agrees to ECN.
bool agrees_to_ecn(const TcpContext& t, const TcpConn& c, const TcpSegmentInfo& syn);
/// The answer to a SYN that asked for it, or the peer's SYN.
void take_ecn_answer(TcpConn& c, const TcpSegmentInfo& s);
/// tcp_ecn_queue_cwr(): the window is smaller from now on.
inline void tell_of_reduction(TcpConn& c) {
  if (c.ecn & kEcnOk) c.ecn |= kEcnCwrDue;
}
/// Where ECN is agreed to: the ECN field of a segment that is about to leave, and its flags.
uint8_t mark_segment(TcpConn& c, uint32_t seq, uint32_t n, uint8_t& flags);
/// Where ECN is agreed to: marks and CWR of a segment with text.
void take_marks(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s);

// ---- listener.cc ----
TcpListener* find_listener(const TcpContext& t, const Endpoint& local, const Endpoint& remote,
                           InterfaceId interface);
/// False: the flow is the kernel's, which alone listens or has a way back.
bool on_syn(TcpContext& t, TcpListener& l, const TcpSegmentInfo& s, const Packet* frame, uint32_t iss_hint,
            Instant now);
void link_embryo(TcpListener& l, TcpConn& c);
void unlink_embryo(TcpConn& c);
/// The way to answer the segment; no hop: there is none.
Way way_back(TcpContext& t, const TcpSegmentInfo& s);
/// A connection in SYN-RECEIVED as the SYN `s` with its options `o` makes it, in no table yet.
void fill_embryo(TcpContext& t, TcpConn& c, const TcpListener& l, const TcpSegmentInfo& s,
                 const TcpOptions& o, uint32_t iss, const Way& way, Instant now);
/// False: a handshake whose listener has left it (TcpLayer::leave_handshakes), and nobody listens now.
bool has_listener(TcpContext& t, TcpConn& c);
bool accept_queue_full(const TcpListener& l);
void queue_accepted(TcpContext& t, TcpConn& c);

// ---- cookie_input.cc ----
/// A SYN beyond the backlog: a SYN-ACK that holds a cookie, and nothing is kept.
void answer_with_cookie(TcpContext& t, const TcpListener& l, const TcpSegmentInfo& s, const TcpOptions& o,
                        const Way& way, Instant now);
/// Whether ACKs without a connection may hold a cookie that was sent from their local end.
bool takes_cookies(TcpContext& t, const TcpSegmentInfo& s, Instant now);
/// Such an ACK. False: it holds none, and is the kernel's; else the frame is taken.
bool input_cookie(TcpContext& t, Packet* frame, const TcpSegmentInfo& s, Instant now);

// ---- input.cc ----
void on_segment(TcpContext& t, Packet* frame, const TcpSegmentInfo& s, Instant now);
/// From now on what comes for the tuple is the kernel's (Stack::frames_for_kernel).
void forget_tuple(TcpContext& t, uint64_t hash, Instant now);
/// The steps of RFC 9293 section 3.10.7.4 from the fifth on. Takes the frame.
void take_from_ack_on(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s, const TcpOptions& o, Packet* frame,
                      Instant now);
void challenge_ack(TcpContext& t, TcpConn& c, Instant now);
/// TS.Recent from a segment whose sequence number and acknowledgement are acceptable.
void take_timestamp(TcpConn& c, const TcpSegmentInfo& s, const TcpOptions& o, Instant now);
void reset_by_peer(TcpContext& t, TcpConn& c);

// ---- ack.cc ----
/// False: the ACK is unacceptable, the segment is dropped.
bool take_ack(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s, const TcpOptions& o, Instant now);
void sample_rtt(TcpContext& t, TcpConn& c, Duration rtt);
/// Text that left with the SYN, which was acknowledged as well.
[[gnu::cold]] void acknowledge_syn_text(TcpContext& t, TcpConn& c, uint32_t ack, Instant now);

// ---- text.cc ----
void take_text(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s, const TcpOptions& o, Packet* frame,
               Instant now);
void take_urgent(TcpContext& t, TcpConn& c, const TcpSegmentInfo& s);
void take_fin(TcpContext& t, TcpConn& c, Instant now);
/// A FIN at `seq`, before which text is missing. `alone`: it came without text, whose SACK block tells of
/// both.
void take_fin_behind_gap(TcpContext& t, TcpConn& c, uint32_t seq, bool alone);
void forget_out_of_order(TcpConn& c);

// ---- receive_buffer.cc ----
/// Bytes that the window may promise while nothing waits to be read.
uint32_t receive_buffer(const TcpConn& c);
/// As large as the window may ever be: SO_RCVBUF, TCP_WINDOW_CLAMP.
uint32_t most_window(const TcpConn& c);
uint32_t receive_space(const TcpContext& t, const TcpConn& c);
uint8_t window_scale(const TcpContext& t, const TcpConn& c);
uint32_t first_receive_buffer(const TcpContext& t);
/// Linux' advmss: text of the segments that the peer may send.
inline uint32_t advertised_mss(const TcpConn& c) {
  return c.own_mss - (c.timestamps_ok ? option::kTimestampsLength : 0u);
}
/// At the end of the handshake (tcp_init_buffer_space()).
void begin_receive_tuning(const TcpContext& t, TcpConn& c, Instant now);
void take_receive_rtt(TcpConn& c, const TcpSegmentInfo& s, const TcpOptions& o, Instant now);
/// With each segment of text, before it is taken.
inline void measure_receive_rtt(TcpConn& c, const TcpSegmentInfo& s, const TcpOptions& o, Instant now) {
  const ReceiveTuning& r = c.receive_tuning;
  if (!seq_lt(c.rcv_nxt, r.rtt_seq) || (o.tsecr != r.last_tsecr && o.has_timestamps))
    take_receive_rtt(c, s, o, now);
}
/// What waits behind a gap may not take the window from what comes after it.
void make_room_behind_gap(const TcpContext& t, TcpConn& c);
void take_read_rate(const TcpContext& t, TcpConn& c, uint32_t read, Instant now);
/// When the application has read (tcp_rcv_space_adjust()). The clock is looked at only once it has read more
/// than in any round trip before.
inline void tune_receive_buffer(const TcpContext& t, TcpConn& c, Instant now) {
  const uint32_t read = c.copied_seq - c.receive_tuning.space_seq;
  if (read > c.receive_tuning.space) take_read_rate(t, c, read, now);
}
/// True size of a buffer.
inline uint32_t memory_of(const Packet& p) { return p.capacity + static_cast<uint32_t>(sizeof(Packet)); }
/// Takes the first buffer off the receive queue; the caller owns it.
inline Packet* take_received(TcpContext& t, TcpConn& c) {
  Packet* p = c.receive_queue.pop_front();
  c.receive_memory -= memory_of(*p);
  t.core.tcp_memory.release(memory_of(*p));
  return p;
}
inline void pop_received(TcpContext& t, TcpConn& c) { release_packet(take_received(t, c)); }
/// A buffer behind what the receive queue has.
inline void push_received(TcpContext& t, TcpConn& c, Packet* p) {
  p->look = t.core.look;
  c.receive_memory += memory_of(*p);
  t.core.tcp_memory.charge(memory_of(*p));
  c.receive_queue.push_back(p);
}
/// tcp_epollin_ready().
inline bool has_for_reader(const TcpContext& t, const TcpConn& c, uint32_t wanted) {
  return c.has_for_reader(wanted) || (c.unread() > 0 && t.core.tcp_memory.under_pressure());
}
/// By how much the window has to open to be worth a word (RFC 9293 section 3.8.6.2.2).
uint32_t receive_step(const TcpConn& c);

// ---- send_buffer.cc ----
uint32_t send_limit(const TcpContext& t, const TcpConn& c);
void begin_send_tuning(const TcpContext& t, TcpConn& c);
/// sk_stream_is_writeable(): a third of the buffer is free.
bool send_space_wakes(const TcpContext& t, const TcpConn& c);
/// Bytes have been acknowledged, or have left: tells a writer that waits, once there is enough room
/// (tcp_check_space()).
void free_send_space(TcpContext& t, TcpConn& c);

// ---- loss.cc ----
struct AckEvent {
  uint32_t ack = 0;
  uint32_t acked = 0;             ///< bytes newly acknowledged cumulatively
  uint32_t sacked = 0;            ///< bytes newly SACKed
  uint32_t delivered = 0;         ///< bytes of which we learn now that they arrived
  uint32_t tsecr = 0;             ///< 0: none
  uint32_t delivered_before = 0;  ///< TcpConn::high_delivered when it came
  bool came = false;              ///< it is an ACK's, and no timer's
  bool dsack = false;
  bool echo = false;       ///< ECE: the peer tells of a CE mark
  bool original = false;   ///< text of before recovery_point that was sent once has arrived
  bool resent = false;     ///< of what is acknowledged some was sent again
  bool duplicate = false;  ///< a duplicate ACK in RFC 5681's sense
  bool window_changed = false;
  Duration rtt{-1};
  Duration gap{0};  ///< since the ACK before
};
void take_sack(TcpContext& t, TcpConn& c, uint32_t ack, const TcpOptions& o, AckEvent& e, Instant now);
void rack_delivered(TcpConn& c, const SentSegment& s, const AckEvent& e, Instant now);
void clear_marks(TcpConn& c, const SentSegment& s);
/// Linux' FLAG_ORIG_SACK_ACKED: of a segment that is known to have arrived from now on.
inline void note_original(const TcpConn& c, const SentSegment& s, AckEvent& e) {
  if (!s.ever_resent && seq_le(s.end, c.recovery_point)) e.original = true;
}
void react(TcpContext& t, TcpConn& c, AckEvent& e, Instant now);
/// Linux' tcp_in_cwnd_reduction(): RFC 9937 says how much leaves.
inline bool reduces_in_proportion(const TcpConn& c) {
  return c.recovery == Recovery::kFast || c.recovery == Recovery::kReduced;
}
/// TCP_CA_Recovery or TCP_CA_Loss.
inline bool recovers(const TcpConn& c) {
  return c.recovery == Recovery::kFast || c.recovery == Recovery::kTimeout;
}
void detect_lost(TcpContext& t, TcpConn& c, Instant now);
void mark_lost(TcpConn& c, SentSegment& s);
void mark_all_lost(TcpConn& c);
void on_retransmit_timeout(TcpContext& t, TcpConn& c, Instant now);
/// tcp_enter_loss()
[[gnu::cold]] void enter_loss(TcpContext& t, TcpConn& c, Instant now);
/// tcp_non_congestion_loss_retransmit()
[[gnu::cold]] void resend_without_congestion(TcpContext& t, TcpConn& c);

// ---- congestion: newreno.cc, cubic.cc, hystart.cc ----
/// TCP_INIT_CWND: ten segments whatever their size, where RFC 6928 has a limit in bytes.
inline uint32_t initial_window(uint32_t mss) { return 10 * mss; }
/// tcp_init_cwnd(): the route may have another.
inline uint32_t initial_window(const TcpContext& t, const TcpConn& c) {
  const uint32_t segments = metrics_of(t, c).initial_window;
  return segments ? std::min<uint64_t>(uint64_t{segments} * c.snd_mss, kMostWindow)
                  : initial_window(c.snd_mss);
}
inline bool is_reno(const TcpConn& c) { return c.settings.congestion == Congestion::kReno; }
void grow_window(TcpConn& c, const AckEvent& e, Instant now);
/// Data leaves after a pause, with nothing in flight.
void restart_after_idle(const TcpContext& t, TcpConn& c, Instant now);
/// The new ssthresh after a loss; remembers what CUBIC needs.
uint32_t reduced_window(TcpConn& c);
void cubic_avoidance(TcpConn& c, uint32_t acked, Instant now);
void cubic_loss(TcpConn& c);
/// How much the window grows in slow start by `acked` bytes; may end it.
uint32_t hystart_step(TcpConn& c, uint32_t acked, const AckEvent& e, Instant now);
void newreno_avoidance(TcpConn& c, uint32_t acked);

// ---- delivery_rate.cc ----
/// TcpConn::rates, made where there are none; nullptr: no memory.
[[gnu::noinline]] Rates* need_rates(TcpConn& c, Instant now);
/// From now on segments have stamps, for which the scoreboard has room. False: no memory.
[[gnu::noinline]] bool begin_sampling(TcpConn& c, Instant now);
/// The last `segments` of the scoreboard leave for the first time.
[[gnu::noinline]] void stamp_new(TcpConn& c, uint32_t segments, Instant now);
inline void note_segments_sent(TcpConn& c, uint32_t segments, Instant now) {
  if (c.sampled || (c.sent.has_stamps() && c.sent.size() > SentRing::kFew)) stamp_new(c, segments, now);
}
/// Where samples are taken: segment i of the scoreboard has left.
[[gnu::noinline]] void stamp_sent(TcpConn& c, uint32_t i);
/// Where samples are taken: an ACK has come; this segment has been delivered, the newest of those that the
/// ACK covers at least; all has been looked at. `bytes`: that were delivered.
[[gnu::noinline]] void begin_sample(TcpConn& c);
[[gnu::noinline]] void sample_delivered(TcpConn& c, const SentSegment& s, Instant now);
[[gnu::noinline]] void finish_sample(TcpConn& c, uint32_t bytes, Instant now);
/// Where samples are taken, and all that could leave has left: tcp_rate_check_app_limited().
[[gnu::noinline]] void note_app_limited(TcpConn& c);
/// Bytes/s as TCP_INFO tells it; 0: not known.
uint64_t delivery_rate(const TcpConn& c);

// ---- pacing.cc ----
/// Bytes/s by which Linux has a qdisc pace.
uint64_t window_rate(const TcpConn& c);
/// The settings, or the window, have changed: paces if that is asked for.
[[gnu::noinline]] void begin_pacing(TcpConn& c, Instant now);
/// Of a paced connection: so much text may leave now; else at pacing_deadline().
[[gnu::noinline]] bool may_leave(TcpConn& c, uint32_t bytes, Instant now);
/// Behind may_leave(): how much may leave at once.
uint32_t paced_bytes(const TcpConn& c, Instant now);
Instant pacing_deadline(const TcpConn& c);
/// Of a paced connection: `bytes` of text have left.
[[gnu::noinline]] void note_paced(TcpConn& c, uint32_t bytes, Instant now);

// ---- bbr.cc ----
inline bool runs_bbr(const TcpConn& c) { return c.paced && c.rates->bbr; }
/// Goes on with the congestion control that the settings ask for; with CUBIC where there is no memory for
/// BBR.
[[gnu::noinline]] void choose_congestion(TcpConn& c, Instant now);
/// Where BBR runs: an ACK has come (finish_sample()); the window is about to be reduced; a timeout has; that
/// was needless; text leaves with nothing in flight.
[[gnu::noinline]] void bbr_on_ack(TcpConn& c, Instant now);
[[gnu::noinline]] void bbr_reduction(TcpConn& c);
[[gnu::noinline]] void bbr_timeout(TcpConn& c, Instant now);
[[gnu::noinline]] void bbr_undo(TcpConn& c, Instant now);
[[gnu::noinline]] void bbr_restart(TcpConn& c, Instant now);
BbrInfo bbr_info(const TcpConn& c);  ///< TCP_CC_INFO

// ---- output.cc ----
/// Sends what window, congestion, Nagle and cork allow, lost segments first; then the ACK that is owed.
void output(TcpContext& t, TcpConn& c, Instant now);
void send_ack(TcpContext& t, TcpConn& c, Instant now);
/// Sends segment i of the scoreboard again; false: no frame.
bool retransmit(TcpContext& t, TcpConn& c, uint32_t i, Instant now);
uint32_t segment_size(const TcpConn& c);
inline void note_numbers_sent(const TcpConn& c) {
  if (c.numbers) *c.numbers = {c.snd_una - 1, c.rcv_nxt};
}
inline uint32_t unsent(const TcpConn& c) { return c.send_queue.end() - (c.snd_nxt - (c.fin_sent ? 1 : 0)); }
/// tcp_notsent_lowat()
inline uint32_t notsent_low_water(const TcpContext& t, const TcpConn& c) {
  const uint32_t own = c.settings.notsent_low_water;
  return own ? own : t.core.config.notsent_low_water;
}
/// Linux' tcp_stream_memory_free() for those who poll: half of TCP_NOTSENT_LOWAT.
inline bool wakes_writer(const TcpContext& t, const TcpConn& c) {
  return 2 * uint64_t{unsent(c)} < notsent_low_water(t, c) || unsent(c) == 0;
}
/// One new data segment of at most `n` bytes; for output() and the tail probe.
bool send_new(TcpContext& t, TcpConn& c, uint32_t n, Instant now);
void send_probe(TcpContext& t, TcpConn& c, Instant now);
void send_reset(TcpContext& t, TcpConn& c, Instant now);
void refuse_text(TcpContext& t, const TcpConn& c, uint32_t ack);
/// RST (or ACK) without a connection: the answer to `s`.
void answer_reset(TcpContext& t, const TcpSegmentInfo& s);
void answer_time_wait(TcpContext& t, const TcpTimeWait& w, Instant now);
[[gnu::cold]] void send_syn(TcpContext& t, TcpConn& c, bool ack, Instant now);
void want_output(TcpContext& t, TcpConn& c);
void unlist_pending(TcpContext& t, TcpConn& c);

// ---- ack_policy.cc ----
/// An ACK is owed: with this pass, or by the timer.
void owe_ack(TcpContext& t, TcpConn& c, bool now_please, Instant now);
/// Text in order has been taken. `filled_gap`: text behind a gap was there (RFC 5681 section 4.2).
void ack_in_order(TcpContext& t, TcpConn& c, bool filled_gap, Instant now);
/// Text behind a gap has come. A peer without SACK counts each of these ACKs; one with SACK sees the first
/// three, and then all but what `extends` the run that the last one told of.
void ack_out_of_order(TcpContext& t, TcpConn& c, bool extends, Instant now);
void adapt_ack_delay(const TcpContext& t, TcpConn& c, Duration gap);
/// tcp_event_data_recv(): how fast the peer sends decides how long an ACK waits.
inline void note_text_arrived(const TcpContext& t, TcpConn& c, Instant now) {
  const Duration gap = now - c.last_received, least = t.core.config.delayed_ack;
  c.last_received = now;
  if (gap > least / 2 || Duration{c.ato_ns} != least) adapt_ack_delay(t, c, gap);
}
/// tcp_enter_quickack_mode(). `most`: 2 at least.
void enter_quick_acks(const TcpContext& t, TcpConn& c, uint8_t most = kQuickAcks);
/// tcp_delack_timer_handler().
void on_ack_timer(TcpContext& t, TcpConn& c);

// ---- timers.cc ----
void set_timer(TcpContext& t, TcpConn& c, TcpTimer which, Instant when);
/// Output goes on at that time (Rates::deadline).
void set_pacing_timer(TcpContext& t, TcpConn& c, Instant when);
inline void clear_timer(TcpConn& c, TcpTimer which) { c.deadlines[which] = kNever; }
/// The partial segment is no longer held back; a write that waits for memory goes on waiting (kTimerCork).
inline void release_cork(TcpConn& c) {
  if (!c.no_memory) clear_timer(c, kTimerCork);
}
void clear_timers(TcpContext& t, TcpConn& c);
/// (Re)starts the retransmission timeout for what is in flight, and the tail probe's (RFC 6298 section 5).
void restart_retransmit(TcpContext& t, TcpConn& c, Instant now);
/// New data has left: starts the timeout where it does not run, and schedules the tail probe anew.
void note_sent(TcpContext& t, TcpConn& c, Instant now);
void start_probe(TcpContext& t, TcpConn& c, Instant now);
void restart_keepalive(TcpContext& t, TcpConn& c, Instant now);
void on_timer(TcpContext& t, TimerNode& node, Instant now);
Duration backed_off(const TcpConn& c);
/// When the retransmission timer that is set now expires. Of a row the last ends with TCP_USER_TIMEOUT
/// (tcp_clamp_rto_to_user_timeout()).
Instant next_timeout(const TcpConn& c, Instant now);
/// In FIN-WAIT-2 without an application: the peer has tcp_fin_timeout for its FIN (TCP_LINGER2); with a
/// negative one it is reset.
void wait_for_fin(TcpContext& t, TcpConn& c, Instant now);

}  // namespace tcp
}  // namespace accel
