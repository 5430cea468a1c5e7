// What an iWARP socket becomes: its connection, its end, its names.
#include "posix/siw_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>

#include "base/private_fds.h"
#include "base/real.h"
#include "engine/stats.h"
#include "posix/early_wait.h"
#include "posix/epoll_set.h"
#include "posix/wait.h"

namespace accel::posix {
namespace {

constexpr PathChoice kIwarpPath{PathKind::kIwarp, Reason::iwarp, {}};

/// connect() without blocking, whatever the program has set.
int connect_at_once(int fd, const sockaddr_storage& name, socklen_t length) {
  const int flags = real.fcntl(fd, F_GETFL);
  real.fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  const int result = real.connect(fd, reinterpret_cast<const sockaddr*>(&name), length);
  const int error = errno;
  real.fcntl(fd, F_SETFL, flags);
  return result == 0 ? 0 : error;
}

void disconnect_shadow(int fd) {
  sockaddr none{};
  none.sa_family = AF_UNSPEC;
  real.connect(fd, &none, sizeof none);
}

}  // namespace

SiwSocket::SiwSocket(const Socket& before) : Socket(FileKind::kIwarp, before.shadow(), before.domain()) {
  veto = before.veto;
  choice = kIwarpPath;
  refresh_from_shadow();
  read_options();
}

SiwSocket::SiwSocket(int fd, const Socket& listener, bool required, bool nonblock, Pass& pass)
    : Socket(FileKind::kIwarp, fd, listener.domain()), state_(State::kConnected), required_(required) {
  nonblocking = nonblock;
  inherit_timeouts(listener.receive_timeout, listener.send_timeout);
  choice = kIwarpPath;
  read_options();
  channel_ =
      std::make_unique<siw::Channel>(*pass.engine().channels(), fd, required, static_cast<File*>(this));
}

void SiwSocket::read_options() {
  nodelay_ = shadow_option(IPPROTO_TCP, TCP_NODELAY) != 0;
  low_water_ = static_cast<size_t>(std::max(shadow_option(SOL_SOCKET, SO_RCVLOWAT), 1));
  linger keep{};
  socklen_t length = sizeof keep;
  real.getsockopt(shadow(), SOL_SOCKET, SO_LINGER, &keep, &length);
  linger_ = keep.l_onoff != 0;
  linger_time_ = std::chrono::seconds(keep.l_linger);
}

void SiwSocket::set_state(State state) {
  const int before = kernel_fd();
  state_ = state;
  if (kernel_fd() != before) kernel_fd_changed();
}

void SiwSocket::shadow_moved() {
  if (channel_) channel_->move_to(shadow());
}

// ---- readiness ----

uint32_t SiwSocket::readiness() {
  if (!live()) return left_error_ != Errno{} ? uint32_t{EPOLLERR} : 0;
  constexpr uint32_t kOver = EPOLLIN | EPOLLRDNORM | EPOLLRDHUP | EPOLLOUT | EPOLLWRNORM | EPOLLHUP;
  if (holder_ != nullptr && !take_over()) return kOver | EPOLLERR;  // another process has it
  switch (channel_->stage()) {
    case Stage::kUndecided:
      return undecided_readiness();
    case Stage::kFailed:
      return kOver | (error_taken_ ? uint32_t{0} : uint32_t{EPOLLERR});
    case Stage::kOpen:
      break;
    default:
      return 0;
  }
  const siw::Conn& conn = *channel_->conn();
  if (conn.failed()) return kOver | (error_taken_ ? uint32_t{0} : uint32_t{EPOLLERR});
  uint32_t bits = 0;
  if (conn.available() >= low_water_) bits |= EPOLLIN | EPOLLRDNORM;
  if (conn.read_over()) bits |= EPOLLIN | EPOLLRDNORM | EPOLLRDHUP;
  if (conn.write_over() || conn.writable()) bits |= EPOLLOUT | EPOLLWRNORM;
  if (conn.write_over() && conn.read_over()) bits |= EPOLLHUP;
  return bits;
}

uint32_t SiwSocket::undecided_readiness() const {
  uint32_t bits = 0;
  if (channel_->read_shut()) bits |= EPOLLIN | EPOLLRDNORM | EPOLLRDHUP;
  if (channel_->write_shut() || may_commit()) bits |= EPOLLOUT | EPOLLWRNORM;
  if (channel_->read_shut() && channel_->write_shut()) bits |= EPOLLHUP;
  return bits;
}

/// SO_ERROR: what went wrong, told once.
Errno SiwSocket::take_error() {
  if (!channel_ || error_taken_) return Errno{};
  const Errno error = failure();
  error_taken_ = error != Errno{};
  return error;
}

/// For sockets that are not connected: the error that a disconnected one still owes; for the rest the kernel
/// has the answer.
Errno SiwSocket::take_left_error() {
  const Errno error = std::exchange(left_error_, Errno{});
  return error != Errno{} ? error : kOnKernel;
}

/// Where the peer speaks plain TCP, and only the setting `require` forbids that, it is that setting's error.
Errno SiwSocket::failure() const {
  const bool heard_us = state_ == State::kConnecting && channel_->conn() != nullptr;
  if (plain_forbidden_ && heard_us && channel_->stage() == Stage::kFailed)
    if (Result<void> r = may_use_kernel(Reason::iwarp_plain); !r) return r.error();
  return channel_->error();
}

// ---- connect ----

Result<int> SiwSocket::bind(Pass&, const sockaddr*, socklen_t) {
  if (live()) return err(EINVAL);
  return kOnKernel;
}

Result<int> SiwSocket::connect(Pass& pass, const sockaddr* address, socklen_t length) {
  if (state_ == State::kKernel) return kOnKernel;
  if (address == nullptr || length < sizeof address->sa_family) return kOnKernel;  // which refuses it
  if (holder_ != nullptr && !take_over()) return err(EISCONN);
  if (is_unspecified(address, length)) {
    if (!live()) return kOnKernel;
    disconnect();
    return 0;
  }
  if (state_ == State::kConnected) return err(EISCONN);
  if (state_ == State::kConnecting) return finish_connect(pass, err(EALREADY));
  Result<Endpoint> remote = from_sockaddr(address, length, domain());
  if (!remote) return kOnKernel;
  name_ = {};
  name_length_ = std::min<socklen_t>(length, sizeof name_);
  std::memcpy(&name_, address, name_length_);
  return start_connect(pass, *remote);
}

Result<int> SiwSocket::start_connect(Pass& pass, const Endpoint& remote) {
  const Iwarp wanted = config().iwarp_for(Role::kTcpClient, remote);  // for another connect() it may differ
  required_ = wanted == Iwarp::kRequire;
  siw::Reactor* reactor = pass.engine().channels();
  if (!required_ && (wanted == Iwarp::kOff || reactor == nullptr))
    return detach_undecided(&pass, Reason::rule);
  if (!required_ && reactor->known_plain(remote, pass.now()))
    return detach_undecided(&pass, Reason::iwarp_plain);
  if (reactor == nullptr) return err(ENOBUFS);
  if (const int error = connect_at_once(shadow(), name_, name_length_); error != 0 && error != EINPROGRESS)
    return err(error);
  remote_ = remote;
  error_taken_ = false;
  left_error_ = {};
  plain_forbidden_ = !required_ && config().settings.require != Require::kOff;
  channel_ = std::make_unique<siw::Channel>(*reactor, shadow(), required_ || plain_forbidden_,
                                            static_cast<File*>(this));
  set_state(State::kConnecting);
  channel_->begin_client(pass.now());
  if (nonblocking) return err(EINPROGRESS);
  return finish_connect(pass, err(EINPROGRESS));
}

/// `unfinished`: the answer while it goes on and this call may not, or may no longer, wait.
Result<int> SiwSocket::finish_connect(Pass& pass, Errno unfinished) {
  if (in_setup()) {
    if (nonblocking) return unfinished;
    auto ended = [&] { return state_ != State::kConnecting || !in_setup(); };
    Result<Woke> woke = wait_for(pass, deadline_after(pass, send_timeout), ended);
    if (!woke) return woke.is(EAGAIN) ? unfinished : woke.error();
  }
  if (state_ == State::kConnected) return 0;  // another thread's connect() came first
  if (state_ == State::kKernel) return kOnKernel;
  if (state_ != State::kConnecting) {  // another thread's disconnect
    const Errno error = take_left_error();
    return error != kOnKernel ? error : err(ECONNABORTED);
  }
  if (channel_->stage() == Stage::kPlain) {
    reconnect_plain();
    return kOnKernel;
  }
  if (channel_->stage() == Stage::kFailed) {
    const Errno error = take_error();
    disconnect();
    return error != Errno{} ? error : err(ECONNABORTED);
  }
  set_state(State::kConnected);
  return 0;
}

/// Back to an unconnected socket.
void SiwSocket::disconnect() {
  left_error_ = channel_->error() == Errno{} ? err(ECONNRESET) : take_error();
  if (channel_->established()) {
    const linger abort{1, 0};
    linger keep{};
    socklen_t length = sizeof keep;
    real.getsockopt(shadow(), SOL_SOCKET, SO_LINGER, &keep, &length);
    real.setsockopt(shadow(), SOL_SOCKET, SO_LINGER, &abort, sizeof abort);
    disconnect_shadow(shadow());
    real.setsockopt(shadow(), SOL_SOCKET, SO_LINGER, &keep, sizeof keep);
  } else {
    disconnect_shadow(shadow());
  }
  channel_.reset();
  (void)shadow_option(SOL_SOCKET, SO_ERROR);  // the carrying connection's end is not the program's
  const int nodelay = nodelay_;
  real.setsockopt(shadow(), IPPROTO_TCP, TCP_NODELAY, &nodelay, sizeof nodelay);
  set_state(State::kIdle);
  Engine::get()->touch();
}

// ---- plain TCP after all ----

/// A client's peer does not speak iWARP: the connection that heard our request is of no use to it.
void SiwSocket::reconnect_plain() {
  Engine* engine = Engine::get();
  disconnect_shadow(shadow());
  const int nodelay = nodelay_;
  real.setsockopt(shadow(), IPPROTO_TCP, TCP_NODELAY, &nodelay, sizeof nodelay);
  if (siw::Reactor* reactor = engine->channels()) reactor->remember_plain(remote_, monotonic_now());
  connect_at_once(shadow(), name_, name_length_);  // its outcome is the kernel's to tell
  become_plain();
}

void SiwSocket::become_plain() {
  Engine* engine = Engine::get();
  channel_.reset();
  state_ = State::kKernel;
  choice = {PathKind::kKernel, Reason::iwarp_plain, {}};
  engine->counters().add(Counter::sockets_kernel);
  stats::note_kernel(shadow(), Reason::iwarp_plain);
  engine->touch();
  ++readiness_epoch;
  fds.forget(this);
}

void SiwSocket::decided(uint32_t edges) {
  retain();
  if (channel_->stage() == Stage::kPlain)
    state_ == State::kConnecting ? reconnect_plain() : become_plain();
  else
    notify(edges & ~uint32_t{siw::kDecided});
  release(nullptr);
}

Result<void> SiwSocket::detach(Pass&, Reason reason) {
  if (state_ == State::kKernel) return {};
  if (state_ == State::kIdle) {
    veto = reason;
    return {};
  }
  auto ours_alone = [&] { return channel_->stage() != Stage::kUndecided || required_; };
  if (!ours_alone() && holder_ != nullptr && !take_over()) return err(ECONNRESET);
  if (ours_alone()) return err(EOPNOTSUPP);
  become_plain();
  return {};
}

// ---- the rest of its life ----

Result<int> SiwSocket::listen(Pass&, int) {
  if (live()) return err(EINVAL);
  return kOnKernel;
}

Result<int> SiwSocket::accept(Pass&, sockaddr*, socklen_t*, int) {
  if (live()) return err(EINVAL);
  return kOnKernel;
}

/// The stage after what can be done at once: true when data can pass. Errors: kOnKernel, and those of a
/// failed connection.
Result<bool> SiwSocket::settle(Pass& pass) {
  if (!live()) return kOnKernel;
  if (holder_ != nullptr && !take_over()) return err(ECONNRESET);
  if (channel_->stage() == Stage::kUndecided) channel_->progress(pass.now());
  switch (channel_->stage()) {
    case Stage::kPlain:
      state_ == State::kConnecting ? reconnect_plain() : become_plain();
      return kOnKernel;
    case Stage::kFailed:
      if (const Errno error = take_error(); error != Errno{}) return error;
      return err(ENOTCONN);
    case Stage::kOpen:
      return true;
    default:
      return false;
  }
}

Result<int> SiwSocket::shutdown(Pass& pass, int how) {
  if (how < SHUT_RD || how > SHUT_RDWR) return err(EINVAL);
  Result<bool> open = settle(pass);
  if (!open) return open.error() == kOnKernel ? kOnKernel : err(ENOTCONN);
  if (!*open && channel_->stage() == Stage::kUndecided) {
    if (may_commit()) {
      channel_->commit_plain();
      return settle(pass).error();
    }
    channel_->shutdown_later(how);
    pass.engine().touch();
    return 0;
  }
  if (!*open) {
    disconnect();
    return 0;
  }
  notify(kError);  // as TcpSocket::shutdown()
  if (tcp_state() == TCP_CLOSE) return err(ENOTCONN);
  if (state_ == State::kConnecting) set_state(State::kConnected);
  Result<void> r = channel_->conn()->shutdown(how);
  channel_->flush(pass.now());
  pass.engine().touch();
  return r ? Result<int>(0) : r.error();
}

uint8_t SiwSocket::tcp_state() const {
  switch (channel_->stage()) {
    case Stage::kConnecting:
      return TCP_SYN_SENT;
    case Stage::kNegotiating:
      return state_ == State::kConnecting ? TCP_SYN_SENT : TCP_ESTABLISHED;
    case Stage::kFailed:
      return TCP_CLOSE;
    case Stage::kUndecided:
    case Stage::kPlain:
      return TCP_ESTABLISHED;
    case Stage::kOpen:
      break;
  }
  const siw::Conn& conn = *channel_->conn();
  if (conn.peer_ended()) return conn.write_ended() ? TCP_CLOSE : TCP_CLOSE_WAIT;
  return conn.write_ended() ? TCP_FIN_WAIT2 : TCP_ESTABLISHED;
}

Result<int> SiwSocket::getpeername(Pass&, sockaddr*, socklen_t*) {
  if (live() && (tcp_state() == TCP_SYN_SENT || tcp_state() == TCP_CLOSE)) return err(ENOTCONN);
  return kOnKernel;
}

Endpoint SiwSocket::remote_endpoint() const { return kernel_peer_name(shadow()); }

/// With TCP the peer is told by a reset. The kernel's siw would lose by it what it holds still.
bool SiwSocket::leaves_bytes_unread(Instant now) {
  if (channel_->stage() != Stage::kOpen || !channel_->conn()->peer_lingers()) return false;
  channel_->progress(now);
  if (channel_->conn()->available() == 0 || channel_->conn()->failed()) return false;
  const linger abort{1, 0};
  real.setsockopt(shadow(), SOL_SOCKET, SO_LINGER, &abort, sizeof abort);
  return true;
}

/// What close() means. The kernel does the rest with the shadow: the FIN, or the reset and the waiting that
/// SO_LINGER asks for.
void SiwSocket::on_last_close(Pass* pass) {
  if (holder_ != nullptr) --suspended_connections;
  if (!channel_ || pass == nullptr || holder_ != nullptr) return;  // holder_: perhaps it goes on elsewhere
  const bool abort = (linger_ && linger_time_ == Duration{0}) || leaves_bytes_unread(pass->now());
  if (!abort && channel_->outlives_close()) {
    const int flags = real.fcntl(shadow(), F_GETFL);  // a closed socket sends no SIGIO
    if ((flags & O_ASYNC) != 0) real.fcntl(shadow(), F_SETFL, flags & ~O_ASYNC);
    channel_->close(pass->now());
    auto sent = [&] { return !channel_->unsent(); };
    if (linger_) (void)wait_for(*pass, pass->now() + linger_time_, sent);
    const int copy = channel_->over() ? -1 : keep_private(real.fcntl(shadow(), F_DUPFD_CLOEXEC, 3));
    if (copy >= 0) {
      channel_->move_to(copy);
      pass->engine().channels()->adopt(std::move(channel_));
    }
  }
  channel_.reset();
}

}  // namespace accel::posix
