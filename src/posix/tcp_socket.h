// A TCP socket over its shadow: connection or listener of the stack, with the kernel's states around it
// (net/ipv4/af_inet.c).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/config.h"
#include "engine/accept_queue.h"
#include "posix/guard.h"
#include "posix/listener_group.h"
#include "posix/listener_handoff.h"
#include "posix/silent_peers.h"
#include "posix/socket.h"

namespace accel::posix {

/// An option as it was set, to be set again on the shadow of an accepted connection.
struct SavedOption {
  int level;
  int name;
  std::vector<char> value;
};

/// What a listener gives to the connections whose handshakes end.
struct ListenerOptions {
  std::vector<SavedOption> options;  ///< that a new socket has otherwise
  Duration receive_timeout{0}, send_timeout{0};
  Duration linger_time{0};
  int peek_offset = -1;
  bool linger = false;
  bool inq = false;
};

class PortSearch;

class TcpSocket final : public Socket {
 public:
  TcpSocket(int fd, int domain) : Socket(FileKind::kTcp, fd, domain) {}
  /// A connection that `listener` accepted; `fd` is a fresh kernel socket.
  TcpSocket(int fd, const TcpSocket& listener, std::shared_ptr<const ListenerOptions> options, TcpConn* conn,
            bool nonblock);

  /// A listening socket of the kernel's that came by exec() or in a message. nullptr: no memory.
  static TcpSocket* received(int fd, int domain);

  // tcp_socket.cc
  uint32_t readiness() override;
  int kernel_fd() override;
  void on_last_close(Pass* pass) override;
  bool carries_connection() const override { return live(); }
  int served_handoff_socket() const override { return marker_ >= 0 && !handoff_seen_ ? handoff_socket_ : -1; }
  void handoff_arrived(Pass& pass) override;
  int group_socket() const override { return group_.name_socket; }
  void member_arrived() override;
  Instant watch_silent_peers(std::vector<pollfd>& watched) override;
  bool silent_peer_spoke(Pass& pass, int fd) override;
  bool hand_off_unaccepted(Pass& pass);
  /// The same for programs that may wait on the shadow.
  void queue_unaccepted(Pass& pass) {
    if (flow_ != nullptr) (void)queue_in_kernel(pass, *flow_, shadow());
  }
  /// The program was started with it: others that have it may be without libaccel.
  void came_by_exec() { came_by_exec_ = true; }
  void share_accept_queue() override;
  void hand_off_queue(Pass& pass) override;
  void serve_handoff_queue() override { serve_handoffs(); }
  void ports_opened(Pass& pass) override;
  void port_lost(Pass& pass) override;
  void hand_back_due(Pass& pass) override;
  void unanswered(Pass& pass) override;
  Inherited after_fork_in_child() override;
  void revive(Pass& pass) override;
  BoundFlow* releasable_flow() override {
    return state_ == State::kListening && !waited_on_ ? flow_ : nullptr;
  }
  BoundFlow* bound_flow() const override { return state_ == State::kListening ? flow_ : nullptr; }
  void queues_released() override;
  void queue_for_program(Pass& pass) override;
  void open_own_handoff_socket();
  void close_handoff_socket();
  Result<void> detach(Pass& pass, Reason reason) override;
  Result<int> bind(Pass& pass, const sockaddr* address, socklen_t length) override;
  Result<int> shutdown(Pass& pass, int how) override;
  Result<int> getsockname(Pass& pass, sockaddr* address, socklen_t* length) override;
  Result<int> getpeername(Pass& pass, sockaddr* address, socklen_t* length) override;
  Result<int> ioctl(Pass& pass, unsigned long request, void* argument) override;
  Endpoint local_endpoint() const override;
  Endpoint remote_endpoint() const override;

  // tcp_connect.cc
  Result<int> connect(Pass& pass, const sockaddr* address, socklen_t length) override;

  // tcp_accept.cc
  Result<int> listen(Pass& pass, int backlog) override;
  Result<int> accept(Pass& pass, sockaddr* address, socklen_t* length, int flags) override;

  // tcp_disconnect.cc
  /// The kernel has the connection: what connect() to AF_UNSPEC is to take off its name.
  void note_automatic_name() const;
  /// `fd` is such a connection, disconnected; `left`: its name before.
  static void replace_disconnected(Guard& guard, int fd, Endpoint left, bool address_stays);

  // tcp_transfer.cc
  Result<ssize_t> recvmsg(Pass& pass, msghdr* message, int flags) override;
  Result<ssize_t> sendmsg(Pass& pass, const msghdr* message, int flags) override;
  Result<ssize_t> lend(Pass& pass, LeaseCall& call) override;
  void keep_error(Pass& pass, Errno error) override;

  // tcp_options.cc
  Result<int> getsockopt(Pass& pass, int level, int name, void* value, socklen_t* length) override;
  Result<int> setsockopt(Pass& pass, int level, int name, const void* value, socklen_t length) override;
  void option_was_set(int level, int name, const void* value, socklen_t length) override;

  /// The shadow is both processes' from now on. The child must not write to it: the parent may be handing the
  /// connection back to it.
  void before_fork() { write_inherited_options(); }

  TcpConn* conn() const { return conn_; }
  BoundFlow* flow() const { return flow_; }
  /// Its port was found by connect(): others may have it too.
  bool shares_port() const { return bound_by_us_; }

 private:
  enum class State : uint8_t {
    kUndecided,   ///< the kernel serves it so far (and may have connected it, over loopback)
    kConnecting,  ///< the kernel's SS_CONNECTING: until connect() or accept() has reported the end of the
                  ///< handshake
    kConnected,
    kListening,
    kKernel,  ///< it has left the table; calls that were blocked in it go on in the kernel
  };

  struct PastOptions {
    uint32_t generation;  ///< TcpListener::options_generation
    std::shared_ptr<const ListenerOptions> options;
  };

  bool live() const { return state_ == State::kConnecting || state_ == State::kConnected; }
  bool in_handshake(Stack& stack) const;
  /// sin6_scope_id of a connection's names, where those are link-local.
  static uint32_t scope_of(Pass& pass, const TcpConn& conn);
  void set_state(State state);
  Result<void> restart_in_kernel(Pass& pass);
  Result<int> restart_with_text(std::span<const uint8_t> text, const sockaddr* peer, socklen_t length);
  void become_kernels(Reason reason);

  bool conflicts(Pass& pass, const sockaddr* address, socklen_t length) const;

  // tcp_connect.cc
  bool wants_iwarp(Pass& pass, const Endpoint& remote);
  Result<int> connect_as_iwarp(Pass& pass, const sockaddr* address, socklen_t length);
  Errno stay_on_host(Pass& pass, Reason reason);
  Result<int> start_connect(Pass& pass, const Endpoint& remote, uint32_t flowinfo);
  Result<void> bind_implicitly(const PathChoice& path, Endpoint& local, const Endpoint& remote);
  Result<void> bind_elsewhere(PortSearch& search, Endpoint& local, const Endpoint& remote);
  Result<int> finish_connect(Pass& pass, Errno unfinished);
  void disconnect(Pass& pass);
  void release_port();
  void give_up_automatic_port();
  void leave_unsent_on_shadow();

  // tcp_accept.cc
  Result<int> start_listen(Pass& pass, uint32_t backlog);
  Result<BoundFlow*> open_listener(Pass& pass);
  void read_backlog();
  Result<int> accept_ours(Pass& pass, sockaddr* address, socklen_t* length, int flags);
  Result<int> accept_at_once(sockaddr* address, socklen_t* length, int flags);
  Result<int> accept_kernels(Pass& pass, sockaddr* address, socklen_t* length, int flags);
  Result<int> listen_for_iwarp(Pass& pass);
  bool waits_for_queue() const;
  void ask_for_queue(Pass& pass);
  void listen_here_too(Pass& pass);

  // tcp_handoff.cc
  void join_group();
  void drain_own_handoff_socket();
  void tell_acceptors(Pass& pass);
  bool take_sender(int sender);
  void keep_silent_peer(int fd, SilentPeers::Wants what);
  void hear_silent_senders(Pass& pass);
  void admit(int candidate);
  void serve_handoffs();
  void user_changed() override;
  bool handoff_queued() const;
  bool handoff_pending();
  void take_handoff(Pass& pass);
  void queue_handed_off(Pass& pass, int connection);
  void close_marker_in_child();
  HandoffTargets find_targets(Pass& pass);
  void keep_queue(Pass& pass);
  void let_handshakes_end(Pass& pass);
  int listener_beside() const;
  std::vector<int> received_from(int sender) const;
  int accept_into_kernel(Pass& pass, bool or_stays = false);
  void hand_back_unaccepted(Pass& pass);
  Result<int> accept_handed_off(sockaddr* address, socklen_t* length, int flags);

  void stop_listening(Pass& pass);
  /// A listener's shadow has a receive timeout of its own: accept() must not block on it.
  void hold_timeout();
  /// Takes off the shadow what hold_timeout() set; the program's own is back.
  void restore_timeout();

  // tcp_transfer.cc
  Result<size_t> take(Pass& pass, std::span<const iovec> into, size_t want, size_t peeked, int flags);
  Errno open_by_message(Pass& pass, const msghdr* message, int flags, bool wait);
  Result<size_t> send_with_syn(Pass& pass, std::span<const iovec> data, bool wait);
  Result<ssize_t> receive_urgent(Pass& pass, msghdr* message, int flags);
  void put_control(Pass& pass, msghdr* message);
  Errno take_pending_error();

  // tcp_options.cc
  /// TcpSettings as the shadow's options say, and the options that this class keeps.
  TcpSettings read_settings();
  /// TCP_MAXSEG; 0: not set.
  uint16_t maximum_segment() const;
  /// The settings in force, or nullptr where there are none (undecided).
  TcpSettings* settings(Pass& pass);
  void settings_changed(Pass& pass);
  void keep_option(Pass& pass, int level, int name);
  /// A listener's, as of now; read anew once an option has been set.
  std::shared_ptr<const ListenerOptions> options_now();
  /// Of a listener whose queue begins.
  void begin_options();
  /// Connections in the queue keep what the options were.
  void options_change(Pass& pass);
  /// Of the queue's oldest connection.
  std::shared_ptr<const ListenerOptions> options_of(Pass& pass, const TcpConn& oldest);
  enum class SavedFor : uint8_t { kConnections, kSameSocket };
  std::vector<SavedOption> unusual_options(SavedFor purpose) const;
  static void write_options(int fd, const ListenerOptions& options);
  /// A connection's shadow gets the options that it inherited, and those set by set_later_on_shadow(), only
  /// when somebody may look at them.
  void write_inherited_options();
  /// Whether a send with MSG_ZEROCOPY is to be told when its memory is free again (SO_ZEROCOPY), as the
  /// kernel alone does.
  bool wants_completions(Pass& pass);
  /// The setting for the connections of a listener at this name.
  Iwarp listener_iwarp(const Endpoint& local) const;
  Result<int> set_later_on_shadow(Pass& pass, int name, bool on);
  Result<int> peer_name(Pass& pass, void* value, socklen_t* length);
  Result<int> listener_info(Pass& pass, void* value, socklen_t* length);
  Result<int> map_received(Pass& pass, void* value, socklen_t* length);

  State state_ = State::kUndecided;
  bool bound_by_us_ = false;   ///< the shadow's port was chosen by connect(), as the kernel's autobind
  bool v6_only_ = false;       ///< IPV6_V6ONLY before that: binding to an address has set the shadow's
  Endpoint left_name_;         ///< of a disconnected socket: the name that it still shows
  IpAddress inherited_name_;   ///< an accepted connection's local address where its listener was bound to it;
                               ///< else any
  bool accepted_ = false;      ///< not disconnected since
  int64_t routeless_at_ = -1;  ///< IP_TOS was changed when so many segments had gone out
  bool renamed_ = false;       ///< bound again after the connection's end
  bool disconnecting_ =
      false;  ///< the kernel's SS_DISCONNECTING: connect() has not reported the end, and will not
  uint32_t flowinfo_ = 0;  ///< sin6_flowinfo of connect(), where IPV6_FLOWINFO_SEND was on
  /// Of a disconnected socket: what SIOCOUTQ and SIOCOUTQNSD count, since tcp_disconnect() moves write_seq
  /// on.
  uint32_t left_unacked_ = 0, left_unsent_ = 0;
  uint16_t left_mss_ = 0;            ///< likewise, for TCP_MAXSEG
  std::optional<uint16_t> set_mss_;  ///< TCP_MAXSEG as this process has set it; 0: taken back
  bool inq_ = false;                 ///< TCP_INQ
  bool fast_open_ = false;           ///< connect() is MSG_FASTOPEN's
  bool linger_ = false;              ///< SO_LINGER
  Duration linger_time_{0};
  uint32_t backlog_ = 0;       ///< listen()'s
  Iwarp iwarp_ = Iwarp::kOff;  ///< of a listener: what its shadow's connections may be
  bool waited_on_ = false;     ///< a listener on which this process has accepted or looked for connections
  Instant asked_for_queue_{};  ///< last, by a listener that has none
  int peek_offset_ = -1;       ///< SO_PEEK_OFF
  int pending_error_ = 0;      ///< of a connection that is gone, for SO_ERROR
  TcpConn* conn_ = nullptr;    ///< when live(); the stack's, given back by tcp_close
  BoundFlow* flow_ = nullptr;  ///< when listening; the engine's
  int handoff_socket_ = -1;    ///< where other processes pass connections (posix/listener_handoff.h)
  int marker_ = -1;            ///< acceptor marker: this process serves it
  bool handoff_socket_is_own_ = false;  ///< nobody else has it
  bool handoff_socket_waits_ = false;   ///< until user_changed()
  bool handoff_seen_ = false;           ///< one is queued, as the request thread saw; perhaps it is gone
  bool joined_group_ = false;           ///< join_group() has been tried
  ListenerGroup group_;                 ///< then, and `name_socket` where it has succeeded
  bool came_by_exec_ = false;
  bool passed_ = false;          ///< another process may get to listen on the shadow at any moment
  std::vector<int> handed_off_;  ///< those, not accepted yet: kernel sockets
  std::unique_ptr<SilentPeers> silent_peers_;           ///< of `handoff_socket_` and `group_`
  std::shared_ptr<const ListenerOptions> options_now_;  ///< a listener's; nullptr: to be read
  std::vector<PastOptions> past_options_;               ///< that connections in its queue have, oldest first
  std::shared_ptr<const ListenerOptions> inherited_;    ///< not yet on this connection's shadow
  std::optional<bool> late_cork_, late_nodelay_;        ///< likewise
};

}  // namespace accel::posix
