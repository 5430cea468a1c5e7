// A TCP socket whose connection is, or may become, iWARP: the shadow carries it. A TcpSocket gives
// its place to one when connect() or accept() finds that the configuration wants it.
#pragma once

#include <atomic>
#include <memory>

#include "base/config.h"
#include "posix/socket.h"
#include "siw_fallback/reactor.h"

namespace accel::posix {

/// Whether recv() looks at the socket before it waits: while that finds what it wants, and else now and then.
class LookPolicy {
 public:
  bool pays() { return skipped_ == kSkips || ++skipped_ == kSkips; }
  void record(bool found) { skipped_ = found ? kSkips : 0; }

 private:
  static constexpr int kSkips = 16;
  int skipped_ = kSkips;
};

class SiwSocket final : public Socket {
 public:
  /// About to connect, in the place of `before`.
  explicit SiwSocket(const Socket& before);
  /// `fd` was accepted on `listener`'s shadow.
  SiwSocket(int fd, const Socket& listener, bool required, bool nonblock, Pass& pass);

  /// The accepted connection is in the table: its first bytes decide. The file may be gone afterwards.
  void begin(Pass& pass) { channel_->begin_server(pass.now()); }

  // siw_socket.cc
  uint32_t readiness() override;
  int kernel_fd() override { return live() ? -1 : shadow(); }
  void on_last_close(Pass* pass) override;
  bool carries_connection() const override { return live(); }
  void decided(uint32_t edges) override;
  Result<void> detach(Pass& pass, Reason reason) override;
  Result<int> bind(Pass& pass, const sockaddr* address, socklen_t length) override;
  Result<int> connect(Pass& pass, const sockaddr* address, socklen_t length) override;
  Result<int> listen(Pass& pass, int backlog) override;
  Result<int> accept(Pass& pass, sockaddr* address, socklen_t* length, int flags) override;
  Result<int> shutdown(Pass& pass, int how) override;
  Result<int> getsockname(Pass&, sockaddr*, socklen_t*) override { return kOnKernel; }
  Result<int> getpeername(Pass& pass, sockaddr* address, socklen_t* length) override;
  Endpoint local_endpoint() const override { return shadow_name(); }
  Endpoint remote_endpoint() const override;
  bool lingers_in_kernel() const override { return linger_ && linger_time_ != Duration{0}; }

  // siw_transfer.cc
  Result<ssize_t> recvmsg(Pass& pass, msghdr* message, int flags) override;
  Result<ssize_t> sendmsg(Pass& pass, const msghdr* message, int flags) override;

  // siw_options.cc
  Result<int> getsockopt(Pass& pass, int level, int name, void* value, socklen_t* length) override;
  Result<int> setsockopt(Pass& pass, int level, int name, const void* value, socklen_t length) override;
  Result<int> ioctl(Pass& pass, unsigned long request, void* argument) override;

  // siw_fork.cc: a connection that parent and child have goes on in the process that uses it first
  void before_fork();
  Inherited after_fork_in_child() override;
  void revive(Pass& pass) override;
  /// False: the other process has it, and here it is over.
  bool take_over();

  /// A fork has left it to two, and nobody has used it since.
  bool suspended() const { return holder_ != nullptr; }

  const siw::Channel* channel() const { return channel_.get(); }

 private:
  enum class State : uint8_t {
    kIdle,        ///< not connected (any more)
    kConnecting,  ///< until connect() has reported the end
    kConnected,   ///< also a connection that the peer has not declared itself on yet
    kKernel,      ///< it has left the table: plain TCP
  };
  using Stage = siw::Channel::Stage;

  bool live() const { return state_ == State::kConnecting || state_ == State::kConnected; }
  bool in_setup() const {
    return channel_->stage() == Stage::kConnecting || channel_->stage() == Stage::kNegotiating;
  }
  /// The peer has been silent long enough for our first words to make the connection a plain one.
  bool may_commit() const { return channel_->hold_over() && !required_; }
  uint32_t undecided_readiness() const;
  void set_state(State state);
  void read_options();
  Result<int> start_connect(Pass& pass, const Endpoint& remote);
  Result<int> finish_connect(Pass& pass, Errno unfinished);
  void disconnect();
  void become_plain();
  void reconnect_plain();
  Errno take_error();
  bool leaves_bytes_unread(Instant now);
  Errno take_left_error();
  Errno failure() const;
  Result<bool> settle(Pass& pass);
  void shadow_moved() override;
  bool carried_by_shadow() const override { return live(); }
  /// TCP's state as the program would see it: the carrying connection's says nothing of half-closes.
  uint8_t tcp_state() const;

  // siw_transfer.cc
  Result<size_t> take(msghdr& message, size_t size, size_t got, int flags);
  Result<size_t> put(const msghdr& message, size_t done);

  State state_ = State::kIdle;
  bool required_ = false;
  bool plain_forbidden_ = false;  ///< by the setting `require`, not by a rule
  bool nodelay_ = false;          ///< as the program has it; the shadow's is always on
  bool linger_ = false;
  bool error_taken_ = false;
  Errno left_error_{};  ///< what a disconnect leaves for SO_ERROR or the next call
  Duration linger_time_{0};
  size_t low_water_ = 1;  ///< SO_RCVLOWAT
  LookPolicy look_;
  Endpoint remote_;  ///< connect()'s, and as the program spelt it
  sockaddr_storage name_{};
  socklen_t name_length_ = 0;
  std::unique_ptr<siw::Channel> channel_;
  std::atomic<int>* holder_ = nullptr;  ///< while a fork has left it to two: the process that has it, or 0
};

/// Sockets whose connections are suspended between fork() and their first use here; 0 for nearly all
/// programs.
extern uint32_t suspended_connections;

}  // namespace accel::posix
