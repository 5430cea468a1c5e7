// What the stack, its layers and its user speak of: interfaces, routes, what sockets are set to, and what one
// of them is like.
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
#include "stack/memory_account.h"
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

/// The metrics of a route that its connections heed (rtnetlink(7) RTA_METRICS, ip-route(8)), but for the MTU.
/// Zero: the route has none.
struct RouteMetrics {
  uint32_t initial_window = 0;  ///< RTAX_INITCWND, segments
  Duration min_rto{0};          ///< RTAX_RTO_MIN
  uint16_t advertised_mss = 0;  ///< RTAX_ADVMSS
  uint8_t hop_limit = 0;        ///< RTAX_HOPLIMIT, where the program has left the default
  bool quickack = false;        ///< RTAX_QUICKACK
  bool ecn = false;             ///< RTAX_FEATURE_ECN
  bool operator==(const RouteMetrics&) const = default;
};
using MetricsId = uint8_t;  ///< Stack::metrics_id(); 0: none

/// Where frames to a destination leave, as the kernel's routing decided.
struct Route {
  InterfaceId interface = 0;
  IpAddress source;    ///< preferred source address
  IpAddress next_hop;  ///< gateway, or the destination itself when on link
  uint32_t mtu = 1500;
  bool mtu_locked = false;  ///< "mtu lock": what ICMP says of the path's MTU is not for it
  MetricsId metrics = 0;
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
  MetricsId metrics = 0;
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
constexpr uint8_t kDefaultHopLimit = 64;
constexpr uint32_t kNoFlowLabel = 0;
constexpr uint32_t kAutoFlowLabel = 0xffffffff;

constexpr uint32_t kNoLowWater = 0xffffffff;  ///< net.ipv4.tcp_notsent_lowat as it is from the start

/// Of options that are told in seconds.
using Seconds = std::chrono::duration<int32_t>;

/// Congestion controls, by the kernel's names: cubic, reno, bbr.
enum class Congestion : uint8_t { kCubic, kReno, kBbr };

/// Bits of TcpSettings::fast_open (RFC 7413).
enum FastOpenWish : uint8_t {
  kFastOpenConnect = 1,  ///< TCP_FASTOPEN_CONNECT
  kFastOpenMessage = 2,  ///< MSG_FASTOPEN: the SYN leaves with the first write, whatever is known of the peer
  kFastOpenNoCookie = 4,  ///< TCP_FASTOPEN_NO_COOKIE
};

/// TCP_INFO's tcpi_fastopen_client_fail.
enum FastOpenFailure : uint8_t { kNoFastOpenCookie = 1, kFastOpenNotAcked = 2, kFastOpenSynAgain = 3 };

using FastOpenKey = std::array<uint64_t, 2>;

/// Of a listener with TCP_FASTOPEN.
struct FastOpenServer {
  uint32_t limit = 0;  ///< connections whose handshakes are not through; 0: it takes no text of SYNs
  std::array<FastOpenKey, 2> keys{};  ///< cookies are made with the first, and are good with both
  uint8_t key_count = 0;
  bool no_cookie = false;  ///< TCP_FASTOPEN_NO_COOKIE
};

constexpr uint64_t kNoPacing = ~0ull;  ///< of rates: there is no limit

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
  Seconds keep_idle = 7200s;
  Seconds keep_interval = 75s;
  uint64_t max_pacing_rate = kNoPacing;  ///< SO_MAX_PACING_RATE, bytes/s
  Duration user_timeout{0};              ///< 0: by retries (tcp_retries2 = 15)
  Seconds fin_wait2 = 60s;               ///< TCP_LINGER2
  uint32_t receive_buffer = 0;           ///< bytes; 0: the stack's default
  uint32_t send_buffer = 0;
  uint32_t receive_low_water = 1;
  uint32_t notsent_low_water = 0;  ///< TCP_NOTSENT_LOWAT; 0: StackConfig's
  uint32_t window_clamp = 0;
  uint32_t flow_label = kNoFlowLabel;  ///< the program's choice, before an automatic one
  int16_t incoming_cpu = -1;           ///< SO_INCOMING_CPU, for listeners; -1: none
  uint16_t max_segment = 0;            ///< TCP_MAXSEG; 0: from the MTU
  uint8_t tos = 0;                     ///< of IPv4, by an IPv6 socket too
  uint8_t ttl = 64;
  uint8_t traffic_class = 0;  ///< of IPv6
  uint8_t hop_limit = 64;
  uint8_t keep_count = 9;
  uint8_t syn_retries = 6;
  Congestion congestion = Congestion::kCubic;  ///< TCP_CONGESTION
  bool reuse_address = false;  ///< SO_REUSEADDR, for the kernel socket that a closed connection may move into
  bool defer_ack = false;  ///< TCP_DEFER_ACCEPT of an active connection: data is to carry the handshake's ACK
  /// Replies may come by a device that is not ours. After the first timeout of an active connection no SYN is
  /// sent, but the layer above told (kUnanswered): it may have the connection begin anew elsewhere.
  bool replies_may_be_misdirected = false;
  uint8_t fast_open = 0;  ///< FastOpenWish
};

/// What TCP_CC_INFO tells of a connection with BBR. Linux: struct tcp_bbr_info.
struct BbrInfo {
  uint64_t bandwidth = 0;  ///< bytes/s
  uint32_t min_rtt_us = 0;
  uint32_t pacing_gain = 0, window_gain = 0;  ///< 256: one
};

/// Real state for TCP_INFO and `accel stat`. Durations in µs, sizes in bytes but where said.
struct TcpInfo {
  TcpState state = TcpState::kClosed;
  uint8_t congestion_state = 0;  ///< the kernel's enum tcp_ca_state
  uint8_t backoff = 0, retransmits = 0, probes = 0, snd_wscale = 0, rcv_wscale = 0;
  bool timestamps = false, sack = false, window_scaling = false;
  bool ecn = false;               ///< RFC 3168 was agreed to
  bool ecn_seen = false;          ///< a packet with ECT or CE has come
  bool syn_text = false;          ///< text of the SYN was acknowledged (RFC 7413)
  bool opened_by_syn = false;     ///< a listener took it before the ACK of its SYN-ACK
  uint8_t fast_open_failure = 0;  ///< FastOpenFailure
  uint32_t rto_us = 0, rtt_us = 0, rttvar_us = 0, min_rtt_us = 0, snd_mss = 0, rcv_mss = 0, pmtu = 0;
  uint32_t snd_cwnd_segments = 0, snd_ssthresh_segments = 0, unacked_segments = 0, sacked_segments = 0,
           lost_segments = 0, resent_segments = 0, advertised_mss = 0;
  uint32_t window_clamp = 0;  ///< the largest that is offered: TCP_WINDOW_CLAMP, or what SO_RCVBUF allows
  uint32_t receive_rtt_us = 0,
           receive_space = 0;  ///< of receive buffer tuning: the round trip, and what was read in one
  uint32_t snd_wnd = 0, rcv_wnd = 0, total_retransmits = 0, notsent_bytes = 0, reordering = 3;
  uint64_t bytes_acked = 0, bytes_received = 0, bytes_sent = 0, bytes_retransmitted = 0;
  uint64_t pacing_rate = kNoPacing, max_pacing_rate = kNoPacing, delivery_rate = 0;  ///< bytes/s
  bool delivery_rate_app_limited = false;
  uint64_t busy_us = 0, window_limited_us = 0, buffer_limited_us = 0;
  uint32_t ack_timeout_us = 0, delivered = 0, delivered_ce = 0, duplicates_reported = 0, reorderings = 0,
           rehashes = 0, out_of_order_segments = 0;
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
  uint32_t notsent_low_water = kNoLowWater;    ///< net.ipv4.tcp_notsent_lowat
  uint32_t min_snd_mss = 48;                   ///< net.ipv4.tcp_min_snd_mss
  bool frto = true;                            ///< net.ipv4.tcp_frto
  bool ecn_accept = true;                      ///< net.ipv4.tcp_ecn: ECN is agreed to where a peer asks
  bool ecn_ask = false;                        ///< and asked for by connect()
  bool ecn_fallback = true;          ///< net.ipv4.tcp_ecn_fallback: a SYN that comes again asks no more
  bool syn_cookies = true;           ///< net.ipv4.tcp_syncookies
  uint32_t fast_open = 1;            ///< net.ipv4.tcp_fastopen
  Duration fast_open_black_hole{0};  ///< net.ipv4.tcp_fastopen_blackhole_timeout_sec
  bool window_scaling = true, sack = true, timestamps = true;  ///< net.ipv4.tcp_*
  bool abort_on_overflow = false;                              ///< likewise
  bool slow_start_after_idle = true;                           ///< likewise
  AutoFlowLabels auto_flow_labels = AutoFlowLabels::kOptOut;
  bool flow_label_ranges = false;  ///< net.ipv6.flowlabel_state_ranges: automatic labels have the highest bit
};

/// Where a packet is about to go to, for take_route_questions().
struct RouteLookup {
  IpAddress remote, local;
};

/// A neighbour that frames wait for.
struct UnresolvedNeighbour {
  InterfaceId interface;
  IpAddress address;
};

/// What becomes of a flow's steering, for take_flow_changes().
enum class FlowEvent : uint8_t { kOpened, kFinSent, kResting, kClosed, kTakesAcks, kLeavesAcks };
struct FlowChange {
  FlowKey key;
  InterfaceId interface;
  FlowEvent to;
};

/// How one write is to be sent.
struct TcpWrite {
  bool more = false;        ///< hold back a last partial segment (MSG_MORE)
  bool urgent = false;      ///< the last byte is urgent (MSG_OOB)
  bool record_end = false;  ///< no segment reaches beyond the last byte (MSG_EOR)
};

/// What a changed route means for a connection.
enum class Followed : uint8_t {
  kStays,     ///< its packets leave as before, or by another next hop of the same interface from now on;
              ///< without a route they are dropped until there is one
  kLeaves,    ///< the route leads by another interface, or by means that only the kernel has
  kQuestion,  ///< only the kernel knows (set_routes()): learn_route() first
};

/// Frames: above it TCP builds no data segments.
constexpr uint32_t kTxBacklog = 512;

}  // namespace accel
