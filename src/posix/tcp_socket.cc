// A TCP socket's states, names, end and change of hands.
#include "posix/tcp_socket.h"

#include <asm/ioctls.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>

#include "base/real.h"
#include "base/user_memory.h"
#include "engine/stats.h"
#include "posix/epoll_set.h"
#include "posix/flow_label.h"
#include "posix/fork_state.h"
#include "posix/wait.h"

namespace accel::posix {

TcpSocket::TcpSocket(int fd, const TcpSocket& listener, std::shared_ptr<const ListenerOptions> options,
                     TcpConn* conn, bool nonblock)
    : Socket(FileKind::kTcp, fd, listener.domain()),
      state_(State::kConnected),
      inherited_name_(Engine::get()->stack().tcp().local(*Engine::get()->listener(*listener.flow_)).address),
      accepted_(true),
      inq_(options->inq),
      linger_(options->linger),
      linger_time_(options->linger_time),
      peek_offset_(options->peek_offset),
      conn_(conn) {
  nonblocking = nonblock;
  inherit_timeouts(options->receive_timeout, options->send_timeout);
  choice = listener.choice;
  const bool plain = receive_timeout == Duration{0} && send_timeout != kNoWait;
  if (!options->options.empty() || !plain) inherited_ = std::move(options);
}

TcpSocket* TcpSocket::received(int fd, int domain) {
  auto* s = new (std::nothrow) TcpSocket(fd, domain);
  if (s == nullptr) return nullptr;
  s->state_ = State::kListening;
  s->inherited = Inherited::kReceived;
  s->refresh_from_shadow();
  return s;
}

void TcpSocket::set_state(State state) {
  const int before = kernel_fd();
  state_ = state;
  if (kernel_fd() != before) kernel_fd_changed();
}

uint32_t TcpSocket::readiness() {
  Engine* engine = Engine::get();
  if (engine == nullptr) return 0;
  if (live()) return epoll_bits(engine->stack().tcp().readiness(*conn_));
  if (state_ == State::kListening) waited_on_ = true;
  if (!handed_off_.empty() || handoff_pending()) return EPOLLIN | EPOLLRDNORM;
  if (state_ == State::kListening && flow_ != nullptr)
    return epoll_bits(engine->stack().tcp().readiness(*engine->listener(*flow_)));
  return pending_error_ != 0 ? static_cast<uint32_t>(EPOLLERR) : 0;
}

int TcpSocket::kernel_fd() { return live() ? -1 : shadow(); }

/// What close() means. SO_LINGER with a time waits for the peer's acknowledgement (inet_release(),
/// tcp_close()).
void TcpSocket::on_last_close(Pass* pass) {
  if (pass != nullptr && state_ == State::kListening) hand_off_queue(*pass);
  close_handoff_socket();
  if (pass == nullptr) return;
  if (flow_ != nullptr) pass->engine().close(*pass, flow_);
  flow_ = nullptr;
  if (conn_ == nullptr) return;
  if (inherited_elsewhere(this) && detach(*pass, Reason::handed_back)) return;
  Stack& stack = pass->stack();
  const bool abort = linger_ && linger_time_ == Duration{0};
  if (linger_ && !abort && !in_handshake(stack) && stack.tcp().unread(*conn_) == 0 &&
      stack.tcp().shutdown(*conn_, SHUT_RDWR, pass->now())) {
    auto done = [&] {
      return stack.tcp().all_acked(*conn_) || stack.tcp().state(*conn_) == TcpState::kClosed;
    };
    (void)wait_for(*pass, pass->now() + linger_time_, done);
  }
  if (abort || stack.tcp().unread(*conn_) != 0)
    pass->engine().send_kept(*pass);  // else the reset comes instead
  pass->in_turn(this);
  stack.tcp().close(conn_, abort, pass->now());
  conn_ = nullptr;
}

File::Inherited TcpSocket::after_fork_in_child() {
  const bool was_live = live();
  conn_ = nullptr;
  flow_ = nullptr;
  close_marker_in_child();
  if (was_live) {
    state_ = State::kKernel;
    return Inherited::kConnection;
  }
  return state_ == State::kListening ? Inherited::kDormant : Inherited::kNo;
}

/// A listener that came by fork(), by exec() or in a message.
void TcpSocket::revive(Pass& pass) {
  if (state_ != State::kListening || flow_ != nullptr) return;
  if (shadow_option(SOL_SOCKET, SO_ACCEPTCONN) == 0) return fds.forget(this);  // another process has ended it
  if (decide_veto(pass) != Reason::accelerated) return (void)detach_undecided(&pass, veto);
  read_backlog();
  iwarp_ = listener_iwarp(shadow_name());
  if (iwarp_ == Iwarp::kRequire || choice.path == PathKind::kIwarp) {
    choice = {PathKind::kIwarp, Reason::iwarp, {}};
    return;
  }
  listen_here_too(pass);
  serve_handoffs();
  if (handoff_queued()) handoff_arrived(pass);  // before the request thread looks: accept() is about to
}

Iwarp TcpSocket::listener_iwarp(const Endpoint& local) const {
  const Iwarp wanted = config().iwarp_for(Role::kTcpServer, local);
  // A send with MSG_ZEROCOPY takes a plain connection to the kernel; an iWARP one cannot go there.
  return wanted == Iwarp::kPrefer && shadow_option(SOL_SOCKET, SO_ZEROCOPY) != 0 ? Iwarp::kOff : wanted;
}

/// The shadow of a socket of this process that listens at the connection's local end, for hand_back(). -1:
/// there is none, or no need to know.
int TcpSocket::listener_beside() const {
  if (Engine::get()->stack().tcp().is_active(*conn_) || Engine::privileged()) return -1;
  const Endpoint local = local_endpoint();
  for (int fd = 0; fd < fds.limit(); ++fd) {
    const Socket* s = find_socket(fd);
    if (s == nullptr || s->kind() != FileKind::kTcp) continue;
    if (static_cast<const TcpSocket*>(s)->state_ != State::kListening) continue;
    const Endpoint name = s->shadow_name();
    if (name.port == local.port && (name.address.is_any() || name.address == local.address))
      return s->shadow();
  }
  return -1;
}

Result<void> TcpSocket::detach(Pass& pass, Reason reason) {
  if (state_ == State::kKernel) return {};
  if (state_ == State::kUndecided) {
    veto = reason;
    return {};
  }
  write_inherited_options();
  if (state_ == State::kListening) {
    keep_queue(pass);
    restore_timeout();
    passed_ = reason == Reason::handed_back;
    if (!handed_off_.empty()) return {};  // these are this process's to accept; what comes is the shadow's
    hand_off_queue(pass);
  } else if (in_handshake(pass.stack())) {
    if (Result<void> r = restart_in_kernel(pass); !r) return r;
  } else {
    if (peek_offset_ >= 0)
      real.setsockopt(shadow(), SOL_SOCKET, SO_PEEK_OFF, &peek_offset_, sizeof peek_offset_);
    if (Result<void> r = pass.engine().hand_back(pass, conn_, shadow(), listener_beside()); !r) return r;
    conn_ = nullptr;
  }
  become_kernels(reason);
  return {};
}

/// A connection whose SYN is unanswered: the kernel begins anew from the same port. Where it cannot (the
/// device went with its routes) the attempt ends with the kernel's error, and the socket is unconnected.
Result<void> TcpSocket::restart_in_kernel(Pass& pass) {
  const Endpoint remote = pass.stack().tcp().remote(*conn_);
  const std::vector<uint8_t> text = pass.stack().tcp().text_of_syn(*conn_);
  pass.engine().forget(pass, conn_);
  conn_ = nullptr;
  sockaddr_storage name{};
  socklen_t length = sizeof name;
  (void)to_sockaddr(remote, domain(), reinterpret_cast<sockaddr*>(&name), &length);
  const int flags = real.fcntl(shadow(), F_GETFL);
  real.fcntl(shadow(), F_SETFL, flags | O_NONBLOCK);
  const auto* peer = reinterpret_cast<sockaddr*>(&name);
  const Result<int> begun =
      text.empty() ? from_libc(real.connect(shadow(), peer, length)) : restart_with_text(text, peer, length);
  real.fcntl(shadow(), F_SETFL, flags);
  if (begun || begun.is(EINPROGRESS)) return {};
  pending_error_ = static_cast<int>(begun.error());
  release_port();
  forget_shut();
  set_state(State::kUndecided);
  notify(kError | kHangUp | kWritable | kReadable);
  pass.engine().touch();
  return begun.error();
}

/// The program has given text that left with the SYN: the kernel takes it over with another SYN, which needs
/// no cookie. What the peer does not take of it is sent again.
Result<int> TcpSocket::restart_with_text(std::span<const uint8_t> text, const sockaddr* peer,
                                         socklen_t length) {
  const int on = 1;
  real.setsockopt(shadow(), IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE, &on, sizeof on);
  const Result<ssize_t> taken = from_libc(real.sendto(
      shadow(), text.data(), text.size(), MSG_FASTOPEN | MSG_DONTWAIT | MSG_NOSIGNAL, peer, length));
  if (!taken && !taken.is(EINPROGRESS)) return taken.error();
  if (taken && static_cast<size_t>(*taken) == text.size()) return 0;
  sockaddr none{};
  none.sa_family = AF_UNSPEC;
  real.connect(shadow(), &none, sizeof none);
  return err(ECONNABORTED);  // rather than without a part of it
}

void TcpSocket::unanswered(Pass& pass) {
  if (state_ != State::kConnecting) return;
  retain();
  write_inherited_options();
  if (restart_in_kernel(pass)) become_kernels(Reason::unanswered);
  release(nullptr);
}

void TcpSocket::become_kernels(Reason reason) {
  state_ = State::kKernel;
  choice.path = PathKind::kKernel;
  choice.reason = reason;
  stats::note_kernel(shadow(), reason, detail_of(reason));
  ++readiness_epoch;
  note_automatic_name();
  fds.forget(this);
  Engine::get()->touch();
}

/// Connections of ours that the kernel does not know hold their port.
bool TcpSocket::conflicts(Pass& pass, const sockaddr* address, socklen_t length) const {
  if (state_ != State::kUndecided || !can_read(address, length)) return false;
  Result<Endpoint> wanted = from_sockaddr(address, length, domain());
  if (!wanted || wanted->port == 0 || shadow_name().port != 0) return false;
  if (shadow_option(SOL_SOCKET, SO_REUSEPORT) != 0) return false;  // the kernel asks whose they are
  return pass.stack().tcp().bind_conflicts(*wanted, v6() && shadow_option(IPPROTO_IPV6, IPV6_V6ONLY) != 0,
                                           shadow_option(SOL_SOCKET, SO_REUSEADDR) != 0);
}

/// inet_bind(): with the end of a connection goes a port that bind() did not give, or gave because none was
/// asked for.
Result<int> TcpSocket::bind(Pass& pass, const sockaddr* address, socklen_t length) {
  if (!live() && conflicts(pass, address, length)) return err(EADDRINUSE);
  if (!live()) {  // the kernel refuses a listener
    if (left_name_.port == 0) return kOnKernel;
    Result<int> r = from_libc(real.bind(shadow(), address, length));
    if (r) left_name_ = {};
    return r;
  }
  if (pass.stack().tcp().state(*conn_) != TcpState::kClosed) return err(EINVAL);
  release_port();
  if (!renamed_) give_up_automatic_port();
  Result<int> r = from_libc(real.bind(shadow(), address, length));
  renamed_ |= r.ok();
  return r;
}

/// inet_shutdown().
Result<int> TcpSocket::shutdown(Pass& pass, int how) {
  if (how < SHUT_RD || how > SHUT_RDWR) return err(EINVAL);
  if (state_ == State::kListening) {
    if (how == SHUT_WR) {  // changes nothing, but wakes those who poll
      notify(kReadable);
      pass.engine().touch();
      return kOnKernel;
    }
    stop_listening(pass);
    return 0;
  }
  if (!live()) {  // ENOTCONN, and it holds all the same, also for a connection that is opened afterwards
    note_shut(how);
    return kOnKernel;
  }
  if (in_handshake(pass.stack())) {
    disconnect(pass);
    return 0;
  }
  disconnecting_ = state_ == State::kConnecting && pass.stack().tcp().state(*conn_) == TcpState::kClosed;
  if (state_ == State::kConnecting && !disconnecting_) set_state(State::kConnected);
  Result<void> r = pass.stack().tcp().shutdown(*conn_, how, pass.now());
  // An edge for every member, whatever it watches and also where nothing changes (sk_state_change()).
  notify(kError);
  pass.engine().touch();
  return r ? Result<int>(0) : r.error();
}

uint32_t TcpSocket::scope_of(Pass& pass, const TcpConn& conn) {
  const PortInfo* port = pass.engine().port_info(pass, pass.stack().tcp().interface(conn));
  return port != nullptr ? static_cast<uint32_t>(port->ifindex) : 0;
}

Result<int> TcpSocket::getsockname(Pass& pass, sockaddr* address, socklen_t* length) {
  const bool left = state_ == State::kUndecided && left_name_.port != 0;
  if (!left && (!live() || renamed_)) return kOnKernel;
  Result<void> r = to_sockaddr(left ? left_name_ : pass.stack().tcp().local(*conn_), domain(), address,
                               length, left ? 0 : scope_of(pass, *conn_));
  return r ? Result<int>(0) : r.error();
}

Result<int> TcpSocket::getpeername(Pass& pass, sockaddr* address, socklen_t* length) {
  if (!live()) return kOnKernel;
  const TcpState state = pass.stack().tcp().state(*conn_);
  if (state == TcpState::kClosed || state == TcpState::kSynSent) return err(ENOTCONN);
  const bool labelled = flowinfo_ != 0 && shadow_option(IPPROTO_IPV6, kFlowInfoSend) != 0;
  Result<void> r = to_sockaddr(pass.stack().tcp().remote(*conn_), domain(), address, length,
                               scope_of(pass, *conn_), labelled ? flowinfo_ : 0);
  return r ? Result<int>(0) : r.error();
}

Endpoint TcpSocket::local_endpoint() const {
  return live() ? Engine::get()->stack().tcp().local(*conn_) : shadow_name();
}

Endpoint TcpSocket::remote_endpoint() const {
  return live() ? Engine::get()->stack().tcp().remote(*conn_) : Endpoint{};
}

/// tcp_ioctl(): the queues. A listener's SIOCINQ and SIOCOUTQ fail on the shadow as they do on any listener.
Result<int> TcpSocket::ioctl(Pass& pass, unsigned long request, void* argument) {
  int answer = 0;
  if (state_ == State::kUndecided && left_unacked_ != 0 && (request == SIOCOUTQ || request == SIOCOUTQNSD)) {
    answer = static_cast<int>(request == SIOCOUTQ ? left_unacked_ : left_unsent_);
    return put_user(argument, answer) ? Result<int>(0) : err(EFAULT);
  }
  if (!live()) return kOnKernel;
  pass.engine().send_kept(pass);
  Stack& stack = pass.stack();
  switch (request) {
    case SIOCINQ:  // FIONREAD
      stack.tcp().know_unread(*conn_);
      answer = static_cast<int>(stack.tcp().readable_bytes(*conn_));
      break;
    case SIOCOUTQ:  // TIOCOUTQ
      answer = static_cast<int>(stack.tcp().unacked_bytes(*conn_));
      break;
    case SIOCOUTQNSD:
      answer = static_cast<int>(stack.tcp().unsent_bytes(*conn_));
      break;
    case SIOCATMARK:
      answer = stack.tcp().at_mark(*conn_);
      break;
    default:
      return kOnKernel;
  }
  return put_user(argument, answer) ? Result<int>(0) : err(EFAULT);
}

}  // namespace accel::posix
