// TCP of one stack: all connections and listeners, their timers and buffers. The layers above see connections
// and listeners by these calls alone.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "stack/lent.h"
#include "stack/tcp/segment.h"
#include "stack/types.h"

namespace accel {

struct StackCore;
struct TcpContext;  // stack/tcp/context.h

class TcpLayer {
 public:
  explicit TcpLayer(StackCore& core);
  ~TcpLayer();
  TcpLayer(const TcpLayer&) = delete;
  TcpLayer& operator=(const TcpLayer&) = delete;

  // ---- from ingress ----
  /// Takes ownership of the frame.
  void on_segment(Packet* frame, const TcpSegmentInfo& segment, Instant now);
  /// The segment's text is what the connection waits for next, with nothing behind a gap.
  bool expects(const TcpSegmentInfo& segment) const;
  /// An ICMP error that quotes a segment we sent. `error`: what a socket would get (ECONNREFUSED,
  /// EHOSTUNREACH ...); `hard`: it ends a connection that is being opened. `mtu`: not 0 for fragmentation
  /// needed / packet too big. False: no connection has the flow, or the sequence number is not in flight (RFC
  /// 5927).
  bool on_icmp_error(const Endpoint& local, const Endpoint& remote, uint32_t seq, int error, bool hard,
                     uint32_t mtu, Instant now);

  // ---- a pass ----
  void on_deadlines(Instant now);
  Instant next_deadline() const;
  void flush(Instant now);
  bool has_to_send() const;  ///< flush() has something to do

  // ---- the sockets' calls ----
  /// Errors: EADDRINUSE (the tuple is taken), ENOBUFS/ENOMEM (limits).
  Result<TcpConn*> connect(const Endpoint& local, const Endpoint& remote, const Route& route,
                           const TcpSettings& settings, void* owner, Instant now);
  /// `local.address` may be any(): then `v6_only` says whether an IPv6 wildcard takes IPv4 too. Several
  /// listeners may share a tuple when all say `reuse_port`; connections are spread by hash. `device`: only
  /// what comes by that (SO_BINDTODEVICE). Errors: EADDRINUSE.
  Result<TcpListener*> listen(const Endpoint& local, bool v6_only, bool reuse_port, uint32_t backlog,
                              const TcpSettings& settings, void* owner, InterfaceId device = kAnyInterface);
  void set_device(TcpListener& listener, InterfaceId device);
  void set_backlog(TcpListener& listener, uint32_t backlog);
  TcpSettings& settings(TcpListener& listener);  ///< its connections' from the end of their handshakes on
  void set_defer_accept(TcpListener& listener, Duration d);
  void set_fast_open(TcpListener& listener, const FastOpenServer& server);
  /// A socket that was shut down before listen(): so are its connections, from their beginning, FIN included.
  void listen_shut(TcpListener& listener, bool read, bool write);
  /// The oldest completed connection (owner is nullptr until the caller sets it), or nullptr.
  TcpConn* accept(TcpListener& listener);
  /// What accept() gave is the queue's first again.
  void put_back(TcpListener& listener, TcpConn& conn);
  uint32_t accept_queue_length(const TcpListener& listener) const;
  uint32_t handshakes_under_way(const TcpListener& listener) const;
  /// What accept() would give.
  TcpConn* first_unaccepted(const TcpListener& listener) const;
  /// Any of those in the accept queue, in order, until `visit` says true.
  bool any_unaccepted(const TcpListener& listener, bool (*visit)(const TcpConn& conn, const void* context),
                      const void* context) const;
  Endpoint local(const TcpListener& listener) const;
  /// It takes no SYNs meanwhile: the kernel has them.
  void set_stopped(TcpListener& listener, bool stopped);
  /// Counts what the layer above has for its connections: those that are queued from now on have the next
  /// one. Gives the one that ends.
  uint32_t end_options_generation(TcpListener& listener);
  /// Handshakes of which only the peer's ACK is missing are taken for complete and join the queue, whatever
  /// the backlog says: the caller is about to hand it to somebody who cannot go on with them. A SYN-ACK goes
  /// out once more. Those whose SYN-ACK has timed out again and again are left alone.
  void complete_handshakes(TcpListener& listener, Instant now);
  /// A connection's segment that the port had to drop. True: the connection is good, and would do better with
  /// a port that gets its segments. A reset ends it; of a handshake what does not acknowledge our SYN-ACK
  /// does too, the peer being in another one.
  bool misdirected(const FlowKey& key, const MisdirectedSegment& segment, Instant now);
  /// A handshake that is another process's, which has the key: nothing is sent.
  void end_handshake(const FlowKey& key);
  /// The host has lost the connection's local address, or has it again: meanwhile its segments are dropped,
  /// as the kernel's routing drops them. It sends on.
  void set_deaf(const FlowKey& key, bool deaf);
  /// The listener is about to be closed, but may listen again: handshakes under way are left to it. Whatever
  /// happens to one of them next (a segment, a timeout) finds who listens by then, or ends it.
  void leave_handshakes(TcpListener& listener);
  /// Unaccepted connections are reset.
  void close_listener(TcpListener* listener);
  /// The connection of that tuple, if there is one, keeps `numbers` up to date with what it sends, to its
  /// end.
  void note_numbers(const FlowKey& key, TcpNumbers* numbers);

  /// Copies as much as the send buffer takes; returns bytes. Errors: EAGAIN (no room), EPIPE (shut down or
  /// closed by error), ENOTCONN, and the pending error (ECONNRESET, ETIMEDOUT ...) once.
  Result<size_t> send(TcpConn& conn, std::span<const iovec> data, TcpWrite how, Instant now);
  /// connect() has sent no SYN: the first send() does, with as much of its text as fits. It returns that
  /// much, which may be nothing.
  bool waits_for_text(const TcpConn& conn) const;
  /// In SYN-SENT: what has left with the SYN.
  std::vector<uint8_t> text_of_syn(const TcpConn& conn) const;
  /// Copies in-order data; 0 at end of stream. `peek_offset` with peek: skips that many bytes (SO_PEEK_OFF, 0
  /// else). Errors: EAGAIN, ENOTCONN, the pending error once.
  Result<size_t> receive(TcpConn& conn, std::span<const iovec> into, bool peek, size_t peek_offset,
                         Instant now);
  /// The program has been told of this connection's text (Stack::note_look()), as receive() tells it.
  void know_unread(TcpConn& conn);
  /// Drops up to n in-order bytes (MSG_TRUNC on TCP); returns as receive() does.
  Result<size_t> discard(TcpConn& conn, size_t n, Instant now);
  /// Takes whole buffers off the receive queue, which the program then reads in place; 0 at end of stream.
  /// Errors: as receive(); EOPNOTSUPP (an urgent byte stands within the first one: receive() has it),
  /// ENOBUFS (the first one alone is more than `most`).
  Result<size_t> lend(TcpConn& conn, const LendLimit& most, Instant now, Lent& lent);
  /// The urgent byte (MSG_OOB). Errors: EINVAL (none, or in line), EAGAIN (announced, not arrived).
  Result<size_t> receive_urgent(TcpConn& conn, uint8_t* byte, bool peek);
  bool at_mark(const TcpConn& conn) const;  ///< SIOCATMARK
  /// how: SHUT_RD, SHUT_WR, SHUT_RDWR as the kernel does on TCP. Errors: ENOTCONN.
  Result<void> shutdown(TcpConn& conn, int how, Instant now);
  /// The application lets go: sends the rest and FIN, or RST where data was unread (RFC 2525 section 2.17) or
  /// `abort` (SO_LINGER 0). `conn` is not to be used afterwards. The stack finishes it.
  void close(TcpConn* conn, bool abort, Instant now);
  /// Ready bits as of now.
  uint32_t readiness(const TcpConn& conn) const;
  uint32_t readiness(const TcpListener& listener) const;
  /// SO_ERROR: gives the pending error and clears it; 0: none.
  int take_error(TcpConn& conn);
  int peek_error(const TcpConn& conn) const;
  TcpSettings& settings(TcpConn& conn);
  /// To be called after settings() was written to: rearms keepalive and so on. `push`: TCP_NODELAY was set,
  /// or TCP_CORK cleared: what waited goes, as far as Nagle allows, with TCP_NODELAY all of it.
  void settings_changed(TcpConn& conn, Instant now, bool push = false);
  TcpInfo info(const TcpConn& conn, Instant now) const;
  std::optional<BbrInfo> bbr_info(const TcpConn& conn) const;  ///< nothing: it does not run BBR
  TcpState state(const TcpConn& conn) const;
  Endpoint local(const TcpConn& conn) const;
  Endpoint remote(const TcpConn& conn) const;
  InterfaceId interface(const TcpConn& conn) const;
  size_t readable_bytes(const TcpConn& conn) const;  ///< FIONREAD
  /// SIOCOUTQ: unsent and unacknowledged, FIN included; closed: as it was.
  size_t unacked_bytes(const TcpConn& conn) const;
  size_t unsent_bytes(const TcpConn& conn) const;  ///< SIOCOUTQNSD
  uint32_t max_window(const TcpConn& conn) const;  ///< the widest window that the peer has offered
  /// In sequence and not read, what follows an urgent byte too.
  uint32_t unread(const TcpConn& conn) const;
  /// As much as is wanted, or as much as comes before something is read; or the end has come.
  bool has_text_for(const TcpConn& conn, uint32_t wanted) const;
  /// The urgent byte is announced, and stands so many bytes behind the first that is not read.
  bool urgent_at(const TcpConn& conn, uint32_t offset) const;
  bool fin_received(const TcpConn& conn) const;
  bool has_received(const TcpConn& conn) const;       ///< a segment
  bool is_active(const TcpConn& conn) const;          ///< opened by connect()
  uint16_t segment_size(const TcpConn& conn) const;   ///< payload bytes of a segment without SACK blocks
  uint32_t next_sequence(const TcpConn& conn) const;  ///< SND.NXT
  /// Pending for the next call that tells of errors.
  void keep_error(TcpConn& conn, int error);
  /// What ICMP said that ends nothing (sk_err_soft); 0: nothing since the last call.
  int take_soft_error(TcpConn& conn);
  void* owner(const TcpConn& conn) const;
  /// Of what accept() gave: edges are told of from now on.
  void set_owner(TcpConn& conn, void* owner);
  /// In an accept queue.
  bool is_queued(const TcpConn& conn) const;
  /// That of the listener's options when it was queued.
  uint32_t options_generation(const TcpConn& conn) const;
  /// A socket that was shut down before connect(): reads end, writes are EPIPE; no FIN.
  void connect_shut(TcpConn& conn, bool read, bool write);
  /// True when all that was sent, FIN included, is acknowledged (what SO_LINGER waits for).
  bool all_acked(const TcpConn& conn) const;
  /// Connections that the application has closed and that still have bytes or a FIN to deliver (process exit
  /// waits for them). Not those whose local address the host has lost: no ACK comes.
  size_t lingering() const;
  /// Every connection, for exit, hand-back and statistics.
  void for_each(void (*visit)(TcpConn& conn, void* context), void* context);
  /// State for hand-back. Errors: ENOTCONN (not synchronised, or already closed both ways).
  Result<TcpSnapshot> snapshot(const TcpConn& conn, Instant now) const;
  /// Forgets the connection without a packet; its tuple shows up in Stack::flow_changes(). `conn` is gone
  /// afterwards.
  void forget(TcpConn* conn);
  /// Ends it with `error` for the application, without a packet: its way is gone for good.
  void end_with(TcpConn& conn, int error);
  /// Carries on from a snapshot. Errors as connect().
  Result<TcpConn*> adopt(const TcpSnapshot& snapshot, const Route& route, const TcpSettings& settings,
                         void* owner, Instant now);
  /// Whether a local port has a connection or listener of ours (any state, TIME-WAIT too).
  bool port_in_use(const IpAddress& local, uint16_t port) const;
  /// A connection, or what is left of one in TIME-WAIT, keeps a socket from being bound there
  /// (inet_csk_bind_conflict()). `v6_only` as for listen(); `reuse_address`: the socket has SO_REUSEADDR.
  bool bind_conflicts(const Endpoint& local, bool v6_only, bool reuse_address) const;
  /// After Stack::set_routes(): has the connection take its route's next hop and MTU.
  Followed follow_route(TcpConn& conn);

 private:
  std::unique_ptr<TcpContext> context_;
};

}  // namespace accel
