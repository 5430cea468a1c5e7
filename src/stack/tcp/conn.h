// The state of connections and listeners: only fields, in RFC 9293's order. The verbs are in the other files
// of this folder.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "stack/core.h"
#include "stack/tcp/fast_open_state.h"
#include "stack/tcp/options.h"
#include "stack/tcp/rates.h"
#include "stack/tcp/reassembly.h"
#include "stack/tcp/send_queue.h"
#include "stack/tcp/sent.h"
#include "stack/tcp/seq.h"
#include "stack/timer_wheel.h"
#include "stack/types.h"

namespace accel {

/// What the demultiplexer and the timer wheel know of a tuple: a connection or its TIME-WAIT rest.
struct TcpEntry {
  enum class Kind : uint8_t { kConn, kTimeWait };
  TcpEntry* hash_next = nullptr;
  uint64_t hash = 0;
  TimerNode timer;
  Endpoint local;
  Endpoint remote;
  Kind kind = Kind::kConn;
  bool hashed = false;
};

/// RFC 9293 section 3.6.1's TIME-WAIT, in little memory.
struct TcpTimeWait : TcpEntry {
  HopRef hop;
  InterfaceId interface = 0;
  bool timestamps = false;
  bool reuse_address = false;
  uint8_t tos = 0;
  uint8_t ttl = 0;
  uint32_t flow_label = 0;
  uint32_t snd_nxt = 0;
  uint32_t rcv_nxt = 0;
  uint16_t window = 0;  ///< as it goes into the header
  uint32_t ts_recent = 0;
  uint32_t ts_offset = 0;
  Instant entered{};
  Instant deadline{};
  uint32_t answered_invalid = 0;  ///< as TcpConn's
};

/// Deadlines of a connection. One wheel node serves them all; it is armed at or before the earliest.
enum TcpTimer : uint8_t {
  kTimerLoss,  ///< what it does is TcpConn::loss_timer; before the timeout, in whose place a tail probe may
               ///< stand
  kTimerRetransmit,  ///< what it does is TcpConn::retransmit_mode
  kTimerAck,         ///< delayed ACK
  kTimerKeepalive,
  kTimerCork,    ///< a held-back partial segment leaves (200 ms), or a write may find memory again
  kTimerLinger,  ///< FIN-WAIT-2 without an application (tcp_fin_timeout)
  kTimerCount
};

enum class RetransmitMode : uint8_t {
  kTimeout,    ///< RFC 6298
  kHandshake,  ///< SYN or SYN-ACK
  kProbe,      ///< zero window (RFC 9293 section 3.8.6.1)
};

enum class LossTimer : uint8_t {
  kTailProbe,  ///< TLP (RFC 8985 section 7)
  kReorder,    ///< RACK's reordering window ends
};

enum class Recovery : uint8_t {
  kOpen,
  kReduced,  ///< an echo of a CE mark has reduced the window, until recovery_point is passed (TCP_CA_CWR)
  kFast,     ///< fast recovery until recovery_point is acknowledged
  kTimeout,  ///< after an RTO, until recovery_point is acknowledged
};

/// What a connection that has something to send waits for (Linux' tcp_chrono). Counted in ticks of 2^20 ns.
enum class Busy : uint8_t {
  kIdle,
  kSending,  ///< the network
  kWindow,   ///< the peer's window
  kBuffer,   ///< SO_SNDBUF: all is sent, and the application has more
};

/// RFC 9438 section 4.1. Windows in bytes.
struct CubicState {
  float w_max = 0;
  float w_est = 0;
  float k = 0;       ///< s
  float origin = 0;  ///< where the curve's plateau is
  Instant epoch{};   ///< start of this congestion avoidance stage; 0: none
};

/// What has come behind a gap, and what is said of it.
struct OutOfOrder : Reassembly {
  using Reassembly::Reassembly;
  std::array<SackBlock, 4> sack_blocks{};  ///< most recent first (RFC 2018 section 4)
};

/// The first slow start: RFC 9406 section 4.2, and the ACK train of Linux' hystart_update().
struct HyStart {
  static constexpr uint32_t kNone = 0xffffffff;
  uint32_t round_end = 0;         ///< SND.NXT when the round began
  uint32_t round_began_us = 0;    ///< low bits of the stack's clock
  uint32_t round_min_us = kNone;  ///< shortest round trip of this round
  uint32_t baseline_us = kNone;   ///< in conservative slow start: what began it
  uint32_t paused_us = 0;         ///< of this round, between ACKs that did not follow each other
  uint8_t samples = 0;            ///< of this round, as far as they count
  uint8_t slow_rounds = 0;        ///< of conservative slow start
  uint8_t pauses = 0;             ///< what paused_us is the sum of
  bool begun = false;
};

union WindowGrowth {
  WindowGrowth() : hystart() {}
  HyStart hystart;   ///< without a slow start threshold; only undo leads back
  CubicState cubic;  ///< with one
};

/// Bits of TcpConn::ecn. RFC 3168 section 6.1, as Linux' TCP_ECN_*.
enum EcnState : uint8_t {
  kEcnOk = 1,       ///< agreed to; in SYN-SENT: asked for
  kEcnCwrDue = 2,   ///< the next new text says that the window was reduced
  kEcnEchoDue = 4,  ///< a CE mark has come: ACKs have ECE, until CWR comes
  kEcnSeen = 8,     ///< a packet with ECT or CE has come
};

constexpr uint16_t kDefaultReordering = 3;     ///< net.ipv4.tcp_reordering
constexpr uint32_t kNoThreshold = 0x7fffffff;  ///< TcpConn::ssthresh before the first loss

/// Linux' rcvq_space and rcv_rtt_est. Times are low bits of microseconds.
struct ReceiveTuning {
  uint32_t space = 0;       ///< the most that was read in a round trip
  uint32_t space_seq = 0;   ///< copied_seq when this round trip began
  uint32_t space_us = 0;    ///< when it did
  uint32_t rtt_us8 = 0;     ///< eight times the round trip as a receiver sees it; 0: not known
  uint32_t rtt_seq = 0;     ///< a window is through when rcv_nxt is here
  uint32_t rtt_seq_us = 0;  ///< when it began
  uint32_t last_tsecr = 0;
};

struct TcpConn : StackSocket, TcpEntry {
  TcpState tcp_state = TcpState::kClosed;
  InterfaceId interface = 0;

  // ---- send sequence (RFC 9293 section 3.3.1) ----
  uint32_t iss = 0;
  uint32_t snd_una = 0;
  uint32_t snd_nxt = 0;  ///< a sent FIN included
  uint32_t snd_wnd = 0;
  uint32_t snd_wl1 = 0;
  uint32_t snd_up = 0;      ///< one past the urgent byte; valid while `urgent_out`
  uint32_t snd_pushed = 0;  ///< Linux' pushed_seq: a segment that ends the queue there has PSH
  uint32_t snd_small = 0;   ///< end of the last partial segment sent (Minshall's Nagle)
  uint32_t max_window = 0;
  uint16_t snd_mss = 536;  ///< payload bytes of a segment without SACK blocks
  uint16_t peer_mss = 536;
  uint16_t own_mss = 536;  ///< what we advertise
  uint8_t snd_wscale = 0;
  bool send_marks = false;           ///< SendQueue::Mark: there are some
  uint32_t duplicates_reported = 0;  ///< segments that D-SACKs told of
  SendQueue send_queue;              ///< from snd_una on (the SYN's and FIN's numbers not included)
  SentRing sent;
  TcpNumbers* numbers = nullptr;  ///< TcpLayer::note_numbers()

  union {
    uint32_t rack_from = 0;  ///< before it RACK has judged all that was sent once
    uint32_t left_unacked;   ///< of a closed connection: what tcp_ioctl() still counts, a FIN included
  };
  uint32_t left_unsent = 0;

  // ---- receive sequence ----
  uint8_t rcv_wscale = 0;
  uint8_t ecn = 0;         ///< EcnState
  uint16_t rcv_mss = 536;  ///< the peer's segments as observed, for the ACK of every second
  uint32_t irs = 0;
  uint32_t rcv_nxt = 0;
  uint32_t rcv_edge = 0;    ///< one past what the peer may send: never goes back
  uint32_t rcv_wup = 0;     ///< rcv_nxt of the last ACK sent (Last.ACK.sent of RFC 7323)
  uint32_t copied_seq = 0;  ///< first byte the application has not read
  PacketQueue receive_queue;
  uint32_t receive_memory = 0;         ///< true size of the receive queue
  uint32_t out_of_order_segments = 0;  ///< that have come so
  OutOfOrder* out_of_order = nullptr;  ///< while there is any
  uint8_t sack_count = 0;              ///< of its sack_blocks
  bool dsack_due = false;
  uint16_t ip_id = 0;  ///< of the next frame without DF
  SackBlock dsack;
  uint32_t fin_early_seq = 0;
  uint32_t urgent_seq = 0;  ///< of the urgent byte
  uint8_t urgent_byte = 0;

  // ---- flags (whole bytes: bit fields written and read in different widths stall the store queue) ----
  bool wscale_ok = false;
  bool timestamps_ok = false;
  bool sack_ok = false;
  bool fin_queued = false;  ///< the application sends no more
  bool fin_sent = false;
  bool fin_acked = false;
  bool fin_received = false;
  bool fin_early = false;   ///< a FIN at fin_early_seq waits for the data before it
  bool read_shut = false;   ///< SHUT_RD, or the end of the connection
  bool write_shut = false;  ///< shut down before it was connected: no sending; a FIN only of who was called
  bool held = false;        ///< the application (or the accept queue) has it; else it is an orphan
  bool active = false;      ///< opened by connect()
  bool ack_now = false;
  bool handshake_due = false;  ///< SYN or SYN-ACK to be sent by flush()
  bool more = false;           ///< MSG_MORE: the last partial segment waits, until an ACK at most
  bool push = false;           ///< send partial segments whatever Nagle says
  bool urgent_out = false;
  bool urgent_in = false;     ///< announced
  bool urgent_valid = false;  ///< urgent_byte is here
  bool pingpong = false;      ///< interactive: ACKs ride on replies
  bool quick_forced = false;  ///< TCP_QUICKACK
  bool pushed = false;        ///< unacknowledged data came with less than a full segment
  bool pending = false;       ///< listed for flush()
  bool stalled = false;
  bool cwnd_limited = false;
  bool defer_acked = false;  ///< handshake complete, TCP_DEFER_ACCEPT waits for data
  bool makes_way = false;    ///< in SYN-RECEIVED: the peer has acknowledged another's SYN-ACK
  bool queued = false;       ///< in the listener's accept queue
  bool tail_probed = false;
  bool reordering_seen = false;
  bool deferred_free : 1 = false;
  bool no_memory : 1 = false;  ///< a write found none, and no ACK is to come: until kTimerCork
  bool frto : 1 = false;       ///< whether the timeout was spurious is open (RFC 5682)
  bool frto_probe : 1 =
      false;  ///< its step 2b: new text leaves before what is marked lost, until the next ACK
  mutable bool no_space = false;  ///< the application found the send buffer full (also by tcp_readiness())
  uint8_t quick_acks = 0;
  uint8_t duplicates_told = 0;  ///< ACKs that said rcv_nxt again, three at most
  uint8_t compressed = 0;       ///< segments behind a gap that the next ACK tells of beside others
  uint32_t ato_ns = 0;          ///< how long an ACK may wait; 0: no text has come

  // ---- timers (RFC 6298) ----
  RetransmitMode retransmit_mode = RetransmitMode::kTimeout;
  uint8_t backoff = 0;
  uint8_t keep_probes = 0;
  uint8_t probes_out = 0;
  uint16_t retransmits = 0;  ///< timeouts in a row
  uint16_t rehashes = 0;     ///< timeouts that asked for another path
  Busy busy = Busy::kIdle;
  LossTimer loss_timer = LossTimer::kTailProbe;
  bool sampled = false;  ///< segments in flight have SendStamps; with `rates`
  bool paced = false;    ///< with `rates`
  std::array<Instant, kTimerCount> deadlines{kNever, kNever, kNever, kNever, kNever, kNever};
  Instant armed_at = kNever;
  Duration rto{1s};
  Duration srtt{0};
  Duration rttvar{0};
  Instant stuck_since{};            ///< when something last moved: first segment sent, bytes acknowledged
  Instant shut_out_since = kNever;  ///< the first probe of a closed window
  Instant last_sent{};              ///< data
  Instant last_received{};
  Instant last_ack_received{};

  // ---- timestamps (RFC 7323) ----
  uint32_t ts_offset = 0;
  uint32_t ts_recent = 0;
  uint32_t ts_recent_ms = 0;  ///< when it was taken
  bool ts_recent_valid = false;
  bool deaf = false;              ///< its local address is gone: what comes is dropped (TcpLayer::set_deaf())
  bool orphan = false;            ///< the application has closed it: counted in TcpContext::orphans
  uint8_t fast_open = 0;          ///< FastOpenState
  uint8_t fast_open_failure = 0;  ///< FastOpenFailure

  // ---- congestion and loss ----
  Recovery recovery = Recovery::kOpen;
  uint8_t dupacks = 0;
  uint8_t reorder_windows = 1;  ///< RACK's multiplier
  uint8_t reorder_persist = 0;
  uint16_t reordering = kDefaultReordering;  ///< seen, in segments (tcp_check_sack_reordering())
  uint32_t cwnd = 0;
  uint32_t ssthresh = kNoThreshold;
  uint32_t cwnd_acked = 0;  ///< NewReno's byte count in congestion avoidance
  uint32_t recovery_point = 0;
  uint32_t sacked_bytes = 0;
  uint32_t lost_bytes = 0;
  uint32_t resent_bytes = 0;
  uint32_t sacked_segments = 0;
  uint32_t high_delivered = 0;  ///< one past the highest byte known to have arrived
  uint32_t prior_cwnd = 0;      ///< to undo a spurious reduction
  uint32_t prior_ssthresh = 0;
  uint32_t undo_marker = 0;
  uint32_t undo_timestamp = 0;    ///< TSval of the first retransmission (Eifel, RFC 3522)
  int32_t undo_retransmits = -1;  ///< retransmissions not yet proved spurious; -1: nothing to undo
  uint32_t prr_delivered = 0;
  uint32_t prr_out = 0;
  uint32_t prr_flight = 0;
  uint32_t rack_sent_us = 0;
  bool rack_valid = false;
  bool undo_stamped = false;  ///< undo_timestamp is one
  uint16_t reorderings = 0;   ///< seen
  uint32_t rack_end = 0;
  uint32_t rack_rtt_us = 0;
  uint32_t tail_probe_end = 0;
  uint32_t flow_hash = 0;         ///< Linux' sk_txhash, which a timeout changes
  uint32_t answered_invalid = 0;  ///< when an unacceptable segment was last answered (ms); 0: never
  WindowGrowth growth;
  std::unique_ptr<Rates> rates;  ///< of one that sends in bulk or is paced

  // ---- the way out ----
  HopRef hop;
  uint32_t mtu = 1500;        ///< of the path, as far as known
  uint32_t route_mtu = 1500;  ///< before ICMP or probing lowered it
  Instant mtu_lowered{};
  HeaderTemplate headers;

  // ---- the application ----
  int16_t error = 0;
  int16_t soft_error = 0;            ///< from ICMP
  uint32_t min_rtt_us = 0xffffffff;  ///< all ones: none yet
  TcpSettings settings;
  TcpListener* listener = nullptr;  ///< while embryonic or in its accept queue
  uint32_t options_generation = 0;  ///< its listener's when it was queued
  uint32_t delivered = 0;           ///< segments that have arrived there, as far as ACKs and SACKs say
  uint32_t delivered_ce = 0;        ///< of those, told of by ACKs with ECE
  MetricsId metrics = 0;            ///< of the way out
  TcpConn* accept_next = nullptr;   ///< accept queue; while embryonic: list of such
  TcpConn* embryo_prev = nullptr;
  TcpConn* pending_next = nullptr;
  TcpConn* pending_prev = nullptr;
  TcpConn* all_next = nullptr;
  TcpConn* all_prev = nullptr;

  // ---- for TCP_INFO ----
  uint64_t bytes_acked = 0;
  uint64_t bytes_sent = 0;
  uint64_t bytes_retransmitted = 0;
  uint32_t total_retransmits = 0;
  std::array<uint32_t, 3> busy_ticks{};  ///< by Busy, from kSending on
  uint32_t busy_since = 0;
  uint32_t segments_in = 0, segments_out = 0, data_segments_in = 0, data_segments_out = 0;

  // ---- buffers where SO_RCVBUF and SO_SNDBUF do not say ----
  uint32_t receive_limit = 0;  ///< in bytes of text
  uint32_t send_limit = 0;
  ReceiveTuning receive_tuning;

  uint32_t flight() const { return snd_nxt - snd_una; }
  bool write_ended() const { return fin_queued || write_shut; }
  /// Linux' write_seq: one past what the application has given, its FIN included.
  uint32_t write_seq() const { return send_queue.end() + (fin_queued ? 1 : 0); }
  /// RFC 6675's pipe, from the counters that loss.cc keeps. Without SACK each duplicate ACK stands for a
  /// segment.
  uint32_t pipe() const {
    uint32_t out = flight() - sacked_bytes - lost_bytes + resent_bytes;
    uint32_t left = sack_ok ? 0 : uint32_t{dupacks} * snd_mss;
    return out > left ? out - left : 0;
  }
  /// True size of what came and is not read.
  uint32_t receive_held() const { return receive_memory + (out_of_order ? out_of_order->memory() : 0); }
  uint32_t unread() const { return rcv_nxt - copied_seq - (fin_received ? 1 : 0); }
  /// How much more the peer may send.
  uint32_t window_left() const { return seq_gt(rcv_edge, rcv_nxt) ? rcv_edge - rcv_nxt : 0; }
  /// As much as is wanted, or as much as comes before something is read.
  bool has_for_reader(uint32_t wanted) const {
    return unread() >= wanted || (unread() > 0 && window_left() <= rcv_mss);
  }
  bool synchronized() const {
    return tcp_state != TcpState::kSynSent && tcp_state != TcpState::kSynReceived &&
           tcp_state != TcpState::kClosed;
  }
};
static_assert(sizeof(TcpConn) <= 1024, "an idle connection is a block of 1 KiB");

struct TcpListener : StackSocket {
  Endpoint local;
  bool v6_only = false;
  bool reuse_port = false;
  InterfaceId device = kAnyInterface;          ///< SO_BINDTODEVICE
  bool read_shut = false, write_shut = false;  ///< shut down before listen(): its connections are, too
  bool stopped = false;                        ///< takes no SYNs any more: the kernel has them
  uint32_t backlog = 0;
  Duration defer_accept{0};
  TcpSettings settings;
  uint32_t options_generation = 0;  ///< of the options that the layer above has for its connections
  TcpConn* accept_head = nullptr;
  TcpConn* accept_tail = nullptr;
  uint32_t accept_size = 0;
  TcpConn* embryo_head = nullptr;  ///< newest first
  TcpConn* embryo_tail = nullptr;
  uint32_t embryo_size = 0;
  FastOpenQueue fast_open;
};

}  // namespace accel
