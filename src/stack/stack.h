// The protocol stack: Ethernet, IPv4, IPv6, ICMP errors, UDP and TCP for the flows that a worker owns.
//
// Pure: no clock, system call, thread or randomness; time and secrets come in as arguments,
// memory from the FramePool and operator new. One owner at a time (the worker's lock). Nothing calls upward:
// what changed is collected and taken with take_ready() and tx_queue().
//
// A pass of the worker is: on_packets() for each port, on_deadlines(), the sockets' calls, then flush(), then
// the frames of tx_queue() go to the ports and take_ready() wakes those who wait.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/counters.h"
#include "base/instant.h"
#include "base/ip.h"
#include "base/result.h"
#include "stack/frame_pool.h"
#include "stack/memory_account.h"
#include "stack/packet.h"
#include "stack/port.h"
#include "stack/wire/tcp.h"

namespace accel {

using InterfaceId = uint8_t;
constexpr InterfaceId kMaxInterfaces = 32;
constexpr InterfaceId kAnyInterface = 255;

/// What a device's settings say of sources that IPv4 packets may come in with (net.ipv4.conf.*, "all" and the
/// device's own put together as the kernel does). IPv6 has none of them.
struct SourceRules {
  uint8_t rp_filter = 0;             ///< RFC 3704: 0 off, 1 strict, 2 loose
  bool accept_source_route = false;  ///< RFC 791's LSRR and SSRR
  bool route_localnet = false;       ///< 127/8 is an address like others
  bool accept_local = false;         ///< this host's own addresses too
  bool operator==(const SourceRules&) const = default;
};

/// One port as the stack sees it.
struct Interface {
  MacAddress mac{};
  uint32_t mtu = 1500;       ///< bytes of an IP packet
  bool tx_checksum = false;  ///< leave L4 checksums to the device
  bool tso = false;
  uint32_t tso_max = kTsoPayload;  ///< PortInfo::tso_max
  bool up = true;
  bool kernel_sees_errors = false;  ///< PortInfo's: UDP sockets have them from their kernel socket
  std::optional<uint16_t> vlan;     ///< 802.1Q tag of its frames
  /// A VLAN's: the interface by whose port its frames come, told apart from that one's own by the tag.
  std::optional<InterfaceId> lower;
  SourceRules sources;
};

/// Where frames to a destination leave, as the kernel's routing decided.
struct Route {
  InterfaceId interface = 0;
  IpAddress source;    ///< preferred source address
  IpAddress next_hop;  ///< gateway, or the destination itself when on link
  uint32_t mtu = 1500;
  bool mtu_locked = false;  ///< "mtu lock": what ICMP says of the path's MTU is not for it
};

enum class RouteKind : uint8_t {
  kUnicast,
  kLocal,        ///< this host's own address
  kBroadcast,    ///< a broadcast, anycast or network address: nobody sends from it
  kUnreachable,  ///< blackhole, unreachable, prohibit
  kOther,        ///< unicast, by means that only the kernel has: a tunnel
};

/// A row of the kernel's routing tables (RouteTable). By it replies of passive connections find their way,
/// and sources are validated.
struct RouteEntry {
  IpAddress prefix;
  uint8_t prefix_length = 0;  ///< bits of the 128 (IPv4: 96 + its own length)
  InterfaceId interface = 0;  ///< kAnyInterface: a device that is not accelerated
  IpAddress gateway;          ///< any(): on link
  uint32_t mtu = 1500;
  RouteKind kind = RouteKind::kUnicast;
};

/// What a socket can do or has suffered; combined as bits.
enum Ready : uint32_t {
  kReadable = 1,     ///< data (at least the low-water mark), an accepted connection, a datagram
  kWritable = 2,     ///< room to send, or connect() has ended
  kReadClosed = 4,   ///< the peer's FIN was read up to, or shutdown(SHUT_RD): EPOLLRDHUP
  kHangUp = 8,       ///< both directions are over: EPOLLHUP
  kError = 16,       ///< take_error() has something: EPOLLERR
  kUrgent = 32,      ///< urgent data: EPOLLPRI
  kUnanswered = 64,  ///< the first SYN was not answered in time, and TcpSettings::replies_may_be_misdirected
};

/// What every stack socket has for the layer above.
struct StackSocket {
  void* owner = nullptr;  ///< the layer above's; nullptr once the application has let go
  uint32_t edges = 0;     ///< Ready bits that happened since take_ready() gave this socket out
  bool listed = false;    ///< in the ready list
  StackSocket* next_ready = nullptr;
  uint64_t rx_bytes = 0;  ///< payload received in order / sent, for `accel stat`
  uint64_t tx_bytes = 0;
};

struct TcpConn;      // stack/tcp/conn.h
struct TcpListener;  // stack/tcp/conn.h
struct UdpPcb;       // stack/udp.h

/// RFC 9293 section 3.3.2; numbers are the kernel's (include/net/tcp_states.h), as TCP_INFO shows them.
enum class TcpState : uint8_t {
  kEstablished = 1,
  kSynSent,
  kSynReceived,
  kFinWait1,
  kFinWait2,
  kTimeWait,
  kClosed,
  kCloseWait,
  kLastAck,
  kListen,
  kClosing
};

/// IPv6 flow labels (RFC 6437) that sockets ask for: 20 bits, none, or what the stack makes of the flow.
constexpr uint32_t kNoFlowLabel = 0;
constexpr uint32_t kAutoFlowLabel = 0xffffffff;

constexpr uint32_t kNoLowWater = 0xffffffff;  ///< TCP_NOTSENT_LOWAT as it is from the start

/// Socket options that the protocol acts on; the layer above sets them before open or at any time
/// (settings_changed()).
struct TcpSettings {
  bool nodelay = false;
  bool cork = false;
  bool quickack = false;
  bool keepalive = false;
  bool oob_inline = false;
  bool auto_flow_label = true;  ///< IPV6_AUTOFLOWLABEL
  bool dont_fragment = true;  ///< IPv4's DF, and heed what ICMP says of the path's MTU; not IP_PMTUDISC_DONT
  bool rehash = true;         ///< SO_TXREHASH: a timeout changes the automatic label
  Duration keep_idle = 7200s;
  Duration keep_interval = 75s;
  uint32_t keep_count = 9;
  Duration user_timeout{0};  ///< 0: by retries (tcp_retries2 = 15)
  uint32_t syn_retries = 6;
  uint32_t receive_buffer = 0;  ///< bytes; 0: the stack's default
  uint32_t send_buffer = 0;
  uint32_t receive_low_water = 1;
  uint32_t notsent_low_water = kNoLowWater;
  uint32_t window_clamp = 0;
  uint16_t max_segment = 0;  ///< TCP_MAXSEG; 0: from the MTU
  uint8_t tos = 0;           ///< of IPv4, by an IPv6 socket too
  uint8_t ttl = 64;
  uint8_t traffic_class = 0;  ///< of IPv6
  uint8_t hop_limit = 64;
  uint32_t flow_label = kNoFlowLabel;  ///< the program's choice, before an automatic one
  int incoming_cpu = -1;               ///< SO_INCOMING_CPU, for listeners; -1: none
  Duration fin_wait2 = 60s;            ///< TCP_LINGER2
  bool newreno = false;                ///< TCP_CONGESTION "reno"; else CUBIC
  bool reuse_address = false;  ///< SO_REUSEADDR, for the kernel socket that a closed connection may move into
  bool defer_ack = false;  ///< TCP_DEFER_ACCEPT of an active connection: data is to carry the handshake's ACK
  /// Replies may come by a device that is not ours. After the first timeout of an active connection no SYN is
  /// sent, but the layer above told (kUnanswered): it may have the connection begin anew elsewhere.
  bool replies_may_be_misdirected = false;
};

/// Real state for TCP_INFO and `accel stat`. Durations in µs, sizes in bytes but where said.
struct TcpInfo {
  TcpState state = TcpState::kClosed;
  uint8_t congestion_state = 0;  ///< the kernel's enum tcp_ca_state
  uint8_t backoff = 0, retransmits = 0, probes = 0, snd_wscale = 0, rcv_wscale = 0;
  bool timestamps = false, sack = false, window_scaling = false;
  uint32_t rto_us = 0, rtt_us = 0, rttvar_us = 0, min_rtt_us = 0, snd_mss = 0, rcv_mss = 0, pmtu = 0;
  uint32_t snd_cwnd_segments = 0, snd_ssthresh_segments = 0, unacked_segments = 0, sacked_segments = 0,
           lost_segments = 0, resent_segments = 0, advertised_mss = 0;
  uint32_t window_clamp = 0;  ///< the largest that is offered: TCP_WINDOW_CLAMP, or what SO_RCVBUF allows
  uint32_t receive_rtt_us = 0,
           receive_space = 0;  ///< of receive buffer tuning: the round trip, and what was read in one
  uint32_t snd_wnd = 0, rcv_wnd = 0, total_retransmits = 0, notsent_bytes = 0, reordering = 3;
  uint64_t bytes_acked = 0, bytes_received = 0, bytes_sent = 0, bytes_retransmitted = 0;
  uint64_t pacing_rate = ~0ull;
  uint64_t busy_us = 0, window_limited_us = 0, buffer_limited_us = 0;
  uint32_t ack_timeout_us = 0, delivered = 0, duplicates_reported = 0, reorderings = 0, rehashes = 0,
           out_of_order_segments = 0;
  uint32_t segments_in = 0, segments_out = 0, data_segments_in = 0, data_segments_out = 0;
  uint32_t last_data_sent_ms = 0, last_data_received_ms = 0, last_ack_received_ms = 0;
};

/// A connection's whole state as TCP_REPAIR takes it; enough to carry on elsewhere.
struct TcpSnapshot {
  Endpoint local, remote;
  TcpState state = TcpState::kEstablished;
  uint32_t snd_una = 0, snd_nxt = 0, rcv_nxt = 0;
  uint32_t snd_wnd = 0, snd_wl1 = 0, max_window = 0, rcv_wnd = 0, rcv_wup = 0;
  uint8_t snd_wscale = 0, rcv_wscale = 0;
  bool wscale_ok = false, sack_ok = false, timestamps_ok = false;
  uint16_t mss = 0;               ///< peer's MSS option
  uint32_t timestamp_now = 0;     ///< our TSval at the moment of the snapshot
  uint32_t timestamp_recent = 0;  ///< TS.Recent
  bool fin_queued = false;  ///< the application shut its sending side down; the FIN may or may not be sent
  bool fin_received = false;
  bool fin_acked = false;
  std::vector<uint8_t> receive_queue;  ///< in order, unread; ends at rcv_nxt (less the FIN)
  std::vector<uint8_t> send_queue;     ///< from snd_una on, sent and unsent (without FIN)
};

/// IP_MTU_DISCOVER and IPV6_MTU_DISCOVER, in linux/in.h's order: which MTU bounds what is sent, and IPv4's
/// DF.
enum class MtuDiscovery : uint8_t {
  kDont,       ///< the path's; without DF
  kWant,       ///< the path's; DF where it fits
  kDo,         ///< the path's; DF
  kProbe,      ///< the interface's; DF
  kInterface,  ///< the interface's, no ICMP error counts; without DF
  kOmit,       ///< as kInterface, and larger ones are cut into fragments
};

/// What a UDP socket's options say of the size of its datagrams.
struct UdpMtuOptions {
  MtuDiscovery v4 = MtuDiscovery::kWant;
  MtuDiscovery v6 = MtuDiscovery::kWant;
  uint32_t most_v6 = 0;  ///< IPV6_MTU; 0: not set
};

/// What the sender of a datagram chooses of its headers.
struct UdpFields {
  uint8_t tos = 0;
  uint8_t ttl = 64;
  uint32_t flow_label = kNoFlowLabel;  ///< of IPv6
  uint16_t segment = 0;                ///< UDP_SEGMENT: a datagram for each so many bytes; 0: one
};

/// What a received datagram came with.
struct Datagram {
  Endpoint from;
  Endpoint to;
  InterfaceId interface = 0;
  uint8_t tos = 0;
  uint8_t ttl = 0;
  uint64_t timestamp = 0;  ///< the frame's (Packet)
  uint32_t size = 0;       ///< bytes of payload
  Instant arrived{};       ///< when the pass took it from the port
  bool placed = false;     ///< came when the socket asked for IP_PKTINFO: it tells the interface
  uint32_t drops = 0;      ///< SO_RXQ_OVFL: what the socket had lost when it came; 0 if it was not on then
};

/// net.ipv6.auto_flowlabels.
enum class AutoFlowLabels : uint8_t { kOff, kOptOut, kOptIn, kForced };

struct StackConfig {
  std::array<uint64_t, 2>
      secret{};  ///< keys ISNs (RFC 6528), hashes, timestamps' offsets; random in a process
  /// Keys timestamps' offsets: the same in all processes of a host, so that their timestamps grow from one
  /// process's connection to the next one's, and a peer's TIME-WAIT lets a port be used again (RFC 6191). No
  /// secret to local users.
  std::array<uint64_t, 2> timestamp_secret{};
  uint32_t max_connections = 1u << 20;  ///< per process, embryonic ones included
  uint32_t receive_buffer = 0;          ///< bytes of text; 0: tuned, between tcp_receive_first and _most
  uint32_t send_buffer = 0;
  MemoryLimits tcp_memory{512u << 20, 768u << 20, 1u << 30};  ///< of the process's sockets' queues
  MemoryLimits udp_memory{512u << 20, 768u << 20, 1u << 30};
  /// net.ipv4.tcp_rmem: what each connection may hold for certain, its buffer at first, and at most. In the
  /// kernel's measure, which counts overhead.
  uint32_t tcp_receive_least = 4096, tcp_receive_first = 131072, tcp_receive_most = 6u << 20;
  /// net.ipv4.tcp_wmem, likewise.
  uint32_t tcp_send_least = 4096, tcp_send_first = 16384, tcp_send_most = 4u << 20;
  uint32_t most_receive_buffer = 0;      ///< net.core.rmem_max: SO_RCVBUF may become as large
  uint32_t udp_receive_least = 4096;     ///< net.ipv4.udp_rmem_min
  uint32_t udp_receive_buffer = 212992;  ///< net.core.rmem_default, as SO_RCVBUF counts
  Duration min_rto = 200ms;              ///< Linux' TCP_RTO_MIN
  Duration delayed_ack = 40ms;           ///< Linux' TCP_DELACK_MIN
  Duration time_wait = 60s;
  Duration time_wait_reuse = Duration::max();  ///< until connect() takes a tuple; net.ipv4.tcp_tw_reuse
  uint32_t retries = 15;                       ///< net.ipv4.tcp_retries2
  uint32_t synack_retries = 5;                 ///< net.ipv4.tcp_synack_retries
  uint32_t orphan_retries = 8;                 ///< net.ipv4.tcp_orphan_retries
  uint32_t max_orphans = 65536;                ///< net.ipv4.tcp_max_orphans
  uint32_t max_time_waits = 262144;            ///< net.ipv4.tcp_max_tw_buckets
  Duration invalid_ratelimit = 500ms;          ///< net.ipv4.tcp_invalid_ratelimit
  uint32_t syn_linear_timeouts = 0;            ///< net.ipv4.tcp_syn_linear_timeouts, of Linux 6.5
  uint32_t min_snd_mss = 48;                   ///< net.ipv4.tcp_min_snd_mss
  bool frto = true;                            ///< net.ipv4.tcp_frto
  bool syn_cookies = true;                     ///< net.ipv4.tcp_syncookies
  bool window_scaling = true, sack = true, timestamps = true;  ///< net.ipv4.tcp_*
  bool abort_on_overflow = false;                              ///< likewise
  bool slow_start_after_idle = true;                           ///< likewise
  AutoFlowLabels auto_flow_labels = AutoFlowLabels::kOptOut;
  bool flow_label_ranges = false;  ///< net.ipv6.flowlabel_state_ranges: automatic labels have the highest bit
};

class TcpLayer;  // stack/tcp/tcp.h
class UdpLayer;  // stack/udp.h

class Stack {
 public:
  Stack(const StackConfig& config, FramePool& pool, Counters& counters);
  ~Stack();
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  // ---- interfaces, routes, neighbours: told by the engine ----
  void set_interface(InterfaceId id, const Interface& info);
  const Interface& interface(InterfaceId id) const;
  /// Frames to it are dropped from now on; its connections stay (retransmission finds another way or they are
  /// moved).
  void remove_interface(InterfaceId id);
  /// `ask`: policy routing, so that the table does not tell all: see take_route_questions().
  void set_routes(std::vector<RouteEntry> routes, bool ask = false);
  /// The host's settings are others from now on, as the kernel heeds them where it uses them. Secrets stay.
  void follow_host(const StackConfig& config);
  /// What leaves from `local` to `remote`: packets are kept until learn_route() tells, or resume() is called
  /// without that, which drops them.
  struct RouteQuestion {
    IpAddress remote, local;
  };
  std::vector<RouteQuestion> take_route_questions();
  bool has_route_questions() const;
  void learn_route(const RouteQuestion& question, const RouteEntry& answer);
  void resume(Instant now);
  /// A neighbour's address, or nullopt when the kernel has lost it. Frames that waited for it leave with the
  /// next flush.
  void set_neighbour(InterfaceId id, const IpAddress& address, std::optional<MacAddress> mac);
  struct Unresolved {
    InterfaceId interface;
    IpAddress address;
  };
  /// Neighbours that frames are waiting for, each given once a second at most; the engine has the kernel
  /// resolve them.
  std::vector<Unresolved> take_unresolved();
  bool has_unresolved() const;
  /// Neighbours that sockets send through; the engine keeps the kernel from forgetting them.
  std::vector<Unresolved> neighbours_in_use() const;

  // ---- a pass of the worker ----
  /// Takes ownership of the frames. `cpu` brings them: SO_INCOMING_CPU prefers sockets that name it; -1: not
  /// known.
  void on_packets(std::span<Packet* const> frames, InterfaceId id, Instant now, int cpu = -1);
  int receiving_cpu() const;  ///< that which last did; -1: none has
  void on_deadlines(Instant now);
  /// There are route questions, frames for the kernel, or a deadline is over.
  bool has_work(Instant now) const;
  /// flush() has something to do, or frames wait.
  bool has_to_send() const;
  /// kNever when nothing is due.
  Instant next_deadline() const;
  /// Builds the segments that became possible (ACKs owed, data allowed by window, Nagle and cork). Cheap when
  /// there are none.
  void flush(Instant now);
  /// Frames to send on an interface, in order. The worker pops what the port takes and leaves the rest; TCP
  /// stops building data segments while more than kTxBacklog frames wait.
  PacketQueue& tx_queue(InterfaceId id);
  static constexpr uint32_t kTxBacklog = 512;
  /// Sockets whose `edges` are not 0, each once; the caller reads and clears `edges`. nullptr: no more.
  StackSocket* take_ready();
  bool has_ready() const;

  // ---- TCP ----
  /// Errors: EADDRINUSE (the tuple is taken), ENOBUFS/ENOMEM (limits).
  Result<TcpConn*> tcp_connect(const Endpoint& local, const Endpoint& remote, const Route& route,
                               const TcpSettings& settings, void* owner, Instant now);
  /// `local.address` may be any(): then `v6_only` says whether an IPv6 wildcard takes IPv4 too. Several
  /// listeners may share a tuple when all say `reuse_port`; connections are spread by hash. `device`: only
  /// what comes by that (SO_BINDTODEVICE). Errors: EADDRINUSE.
  Result<TcpListener*> tcp_listen(const Endpoint& local, bool v6_only, bool reuse_port, uint32_t backlog,
                                  const TcpSettings& settings, void* owner,
                                  InterfaceId device = kAnyInterface);
  void set_device(TcpListener& listener, InterfaceId device);
  void set_backlog(TcpListener& listener, uint32_t backlog);
  TcpSettings& settings(TcpListener& listener);  ///< its connections' from the end of their handshakes on
  void set_defer_accept(TcpListener& listener, Duration d);
  /// A socket that was shut down before listen(): so are its connections, from their beginning, FIN included.
  void tcp_listen_shut(TcpListener& listener, bool read, bool write);
  /// The oldest completed connection (owner is nullptr until the caller sets it), or nullptr.
  TcpConn* tcp_accept(TcpListener& listener);
  /// What tcp_accept() gave is the queue's first again.
  void tcp_put_back(TcpListener& listener, TcpConn& conn);
  uint32_t accept_queue_length(const TcpListener& listener) const;
  /// Handshakes of which only the peer's ACK is missing are taken for complete and join the queue, whatever
  /// the backlog says: the caller is about to hand it to somebody who cannot go on with them. A SYN-ACK goes
  /// out once more. Those whose SYN-ACK has timed out again and again are left alone.
  void tcp_complete_handshakes(TcpListener& listener, Instant now);
  /// A connection's segment that the port had to drop. True: the connection is good, and would do better with
  /// a port that gets its segments. A reset ends it; of a handshake what does not acknowledge our SYN-ACK
  /// does too, the peer being in another one.
  bool tcp_misdirected(const FlowKey& key, const MisdirectedSegment& segment, Instant now);
  /// A handshake that is another process's, which has the key: nothing is sent.
  void tcp_end_handshake(const FlowKey& key);
  /// The host has lost the connection's local address, or has it again: meanwhile its segments are dropped,
  /// as the kernel's routing drops them. It sends on.
  void tcp_set_deaf(const FlowKey& key, bool deaf);
  /// The listener is about to be closed, but may listen again: handshakes under way are left to it. Whatever
  /// happens to one of them next (a segment, a timeout) finds who listens by then, or ends it.
  void tcp_leave_handshakes(TcpListener& listener);
  /// Unaccepted connections are reset.
  void tcp_close_listener(TcpListener* listener);
  /// Connections in SYN-RECEIVED or later that steering must know of: filled by on_packets for each SYN
  /// taken. kOpened: steer this connected flow now, before flush(). kFinSent: it is in FIN-WAIT-2, its
  /// numbers are noted no more (tcp_note_numbers()). kResting: it is in TIME-WAIT. kClosed: unsteer, the
  /// tuple is free. kTakesAcks: a listener's local end has sent SYN cookies, and ACKs without a connection
  /// are to come as SYNs do; kLeavesAcks: no longer.
  enum class Flow : uint8_t { kOpened, kFinSent, kResting, kClosed, kTakesAcks, kLeavesAcks };
  struct FlowChange {
    FlowKey key;
    InterfaceId interface;
    Flow to;
  };
  std::vector<FlowChange>& flow_changes();
  /// The connection of that tuple, if there is one, keeps `numbers` up to date with what it sends, to its
  /// end.
  void tcp_note_numbers(const FlowKey& key, TcpNumbers* numbers);

  struct TcpWrite {
    bool more = false;        ///< hold back a last partial segment (MSG_MORE)
    bool urgent = false;      ///< the last byte is urgent (MSG_OOB)
    bool record_end = false;  ///< no segment reaches beyond the last byte (MSG_EOR)
  };
  /// Copies as much as the send buffer takes; returns bytes. Errors: EAGAIN (no room), EPIPE (shut down or
  /// closed by error), ENOTCONN, and the pending error (ECONNRESET, ETIMEDOUT ...) once.
  Result<size_t> tcp_send(TcpConn& conn, std::span<const iovec> data, TcpWrite how, Instant now);
  /// Copies in-order data; 0 at end of stream. `peek_offset` with peek: skips that many bytes (SO_PEEK_OFF, 0
  /// else). Errors: EAGAIN, ENOTCONN, the pending error once.
  Result<size_t> tcp_receive(TcpConn& conn, std::span<const iovec> into, bool peek, size_t peek_offset,
                             Instant now);
  /// Drops up to n in-order bytes (MSG_TRUNC on TCP); returns as tcp_receive does.
  Result<size_t> tcp_discard(TcpConn& conn, size_t n, Instant now);
  /// The urgent byte (MSG_OOB). Errors: EINVAL (none, or in line), EAGAIN (announced, not arrived).
  Result<size_t> tcp_receive_urgent(TcpConn& conn, uint8_t* byte, bool peek);
  bool tcp_at_mark(const TcpConn& conn) const;  ///< SIOCATMARK
  /// how: SHUT_RD, SHUT_WR, SHUT_RDWR as the kernel does on TCP. Errors: ENOTCONN.
  Result<void> tcp_shutdown(TcpConn& conn, int how, Instant now);
  /// The application lets go: sends the rest and FIN, or RST where data was unread (RFC 2525 section 2.17) or
  /// `abort` (SO_LINGER 0). `conn` is not to be used afterwards. The stack finishes it.
  void tcp_close(TcpConn* conn, bool abort, Instant now);
  /// Ready bits as of now.
  uint32_t tcp_readiness(const TcpConn& conn) const;
  uint32_t tcp_readiness(const TcpListener& listener) const;
  /// SO_ERROR: gives the pending error and clears it; 0: none.
  int tcp_take_error(TcpConn& conn);
  int tcp_peek_error(const TcpConn& conn) const;
  TcpSettings& settings(TcpConn& conn);
  /// To be called after settings() was written to: rearms keepalive and so on. `push`: TCP_NODELAY was set,
  /// or TCP_CORK cleared: what waited goes, as far as Nagle allows, with TCP_NODELAY all of it.
  void tcp_settings_changed(TcpConn& conn, Instant now, bool push = false);
  TcpInfo tcp_info(const TcpConn& conn, Instant now) const;
  TcpState tcp_state(const TcpConn& conn) const;
  Endpoint tcp_local(const TcpConn& conn) const;
  Endpoint tcp_remote(const TcpConn& conn) const;
  InterfaceId tcp_interface(const TcpConn& conn) const;
  size_t tcp_readable_bytes(const TcpConn& conn) const;  ///< FIONREAD
  size_t tcp_unacked_bytes(
      const TcpConn& conn) const;  ///< SIOCOUTQ: unsent and unacknowledged, FIN included; closed: as it was
  size_t tcp_unsent_bytes(const TcpConn& conn) const;  ///< SIOCOUTQNSD
  uint32_t tcp_max_window(const TcpConn& conn) const;  ///< the widest window that the peer has offered
  /// A socket that was shut down before connect(): reads end, writes are EPIPE; no FIN.
  void tcp_connect_shut(TcpConn& conn, bool read, bool write);
  /// True when all that was sent, FIN included, is acknowledged (what SO_LINGER waits for).
  bool tcp_all_acked(const TcpConn& conn) const;
  /// Connections that the application has closed and that still have bytes or a FIN to deliver (process exit
  /// waits for them). Not those whose local address the host has lost: no ACK comes.
  size_t tcp_lingering() const;
  /// Every connection, for exit, hand-back and statistics.
  void tcp_for_each(void (*visit)(TcpConn& conn, void* context), void* context);
  /// State for hand-back. Errors: ENOTCONN (not synchronised, or already closed both ways).
  Result<TcpSnapshot> tcp_snapshot(const TcpConn& conn, Instant now) const;
  /// Forgets the connection without a packet; its tuple shows up in flow_changes(). `conn` is gone
  /// afterwards.
  void tcp_forget(TcpConn* conn);
  /// What came for connections soon after they were forgotten, SYNs that no listener here is for (another
  /// process's may be), with what follows them, and ICMP errors that a UDP socket's kernel socket is to
  /// have; from the IP header on, with the interface that it came in by. The engine empties it.
  PacketQueue& frames_for_kernel();
  /// Ends it with `error` for the application, without a packet: its way is gone for good.
  void tcp_fail(TcpConn& conn, int error);
  /// Carries on from a snapshot. Errors as tcp_connect.
  Result<TcpConn*> tcp_adopt(const TcpSnapshot& snapshot, const Route& route, const TcpSettings& settings,
                             void* owner, Instant now);
  /// Whether a local port has a connection or listener of ours (any state, TIME-WAIT too).
  bool tcp_port_in_use(const IpAddress& local, uint16_t port) const;
  /// A connection, or what is left of one in TIME-WAIT, keeps a socket from being bound there
  /// (inet_csk_bind_conflict()). `v6_only` as for tcp_listen; `reuse_address`: the socket has SO_REUSEADDR.
  bool tcp_bind_conflicts(const Endpoint& local, bool v6_only, bool reuse_address) const;
  enum class Followed : uint8_t {
    kStays,     ///< its packets leave as before, or by another next hop of the same interface from now on;
                ///< without a route they are dropped until there is one
    kLeaves,    ///< the route leads by another interface, or by means that only the kernel has
    kQuestion,  ///< only the kernel knows (set_routes()): learn_route() first
  };
  /// After set_routes(): has the connection take its route's next hop and MTU.
  Followed tcp_follow_route(TcpConn& conn);

  // ---- UDP ----
  /// `remote.port` 0: unconnected. `local.address` any(): wildcard, with v6_only as for tcp_listen. Several
  /// may share a tuple: unicast goes to the last that came, or to one by hash where that is of a group
  /// (UdpPcb::reuse_port); multicast to all. Errors: ENOMEM.
  Result<UdpPcb*> udp_open(const Endpoint& local, const Endpoint& remote, bool v6_only, void* owner);
  /// Connects, re-connects or (remote.port 0) disconnects; `local` as from then on.
  void udp_connect(UdpPcb& pcb, const Endpoint& local, const Endpoint& remote);
  void udp_close(UdpPcb* pcb);
  void udp_set_device(UdpPcb& pcb, InterfaceId device);  ///< SO_BINDTODEVICE: only what comes by that
  /// What `from` has queued goes to the front of `to`'s queue.
  void udp_take_queue(UdpPcb& to, UdpPcb& from);
  /// Sends one datagram, or with UdpFields::segment several. Errors: EMSGSIZE (one would be larger than
  /// UdpMtuOptions allow, or there would be too many of them: the kernel cuts it into fragments or has an
  /// error for it), EAGAIN/ENOBUFS (no buffer).
  Result<size_t> udp_send(UdpPcb& pcb, std::span<const iovec> data, const Endpoint& from, const Endpoint& to,
                          const Route& route, const UdpFields& fields, Instant now);
  void udp_set_mtu_options(UdpPcb& pcb, const UdpMtuOptions& options);
  /// The next datagram's facts, or nullptr.
  const Datagram* udp_front(const UdpPcb& pcb) const;
  /// Copies the next datagram as far as it fits; `pop` takes it off. Returns bytes copied; Datagram::size
  /// tells the rest.
  size_t udp_receive(UdpPcb& pcb, std::span<const iovec> into, bool pop);
  uint32_t udp_readiness(const UdpPcb& pcb) const;
  int udp_take_error(UdpPcb& pcb);
  void udp_set_receive_buffer(UdpPcb& pcb, uint32_t bytes);
  void udp_set_placing(UdpPcb& pcb, bool on);  ///< Datagram::placed of what comes from now on
  uint64_t udp_drops(const UdpPcb& pcb) const;
  size_t udp_queued_bytes(const UdpPcb& pcb) const;

 private:
  friend class TcpLayer;
  friend class UdpLayer;
  struct Core;
  std::unique_ptr<Core> core_;
};

}  // namespace accel
