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
#include "stack/types.h"

namespace accel {

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
  using RouteQuestion = RouteLookup;
  std::vector<RouteQuestion> take_route_questions();
  bool has_route_questions() const;
  void learn_route(const RouteQuestion& question, const RouteEntry& answer);
  void resume(Instant now);
  /// A neighbour's address, or nullopt when the kernel has lost it. Frames that waited for it leave with the
  /// next flush.
  void set_neighbour(InterfaceId id, const IpAddress& address, std::optional<MacAddress> mac);
  using Unresolved = UnresolvedNeighbour;
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
  static constexpr uint32_t kTxBacklog = accel::kTxBacklog;
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
  using Flow = FlowEvent;
  using FlowChange = accel::FlowChange;
  std::vector<FlowChange>& flow_changes();
  /// The connection of that tuple, if there is one, keeps `numbers` up to date with what it sends, to its
  /// end.
  void tcp_note_numbers(const FlowKey& key, TcpNumbers* numbers);

  using TcpWrite = accel::TcpWrite;
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
  using Followed = accel::Followed;
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
