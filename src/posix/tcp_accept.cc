// listen() and accept() on TCP: our stack's queue first, then the shadow's, which listens as well.
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>

#include "base/proc.h"
#include "base/real.h"
#include "engine/shown_socket.h"
#include "engine/stats.h"
#include "posix/acceptor_hints.h"
#include "posix/same_host.h"
#include "posix/siw_socket.h"
#include "posix/tcp_option_table.h"
#include "posix/tcp_socket.h"
#include "posix/wait.h"

namespace accel::posix {
namespace {

/// How soon a listener without a queue asks again whether one is free.
constexpr Duration kAskAgain = 1s;
/// The kernel's at its longest.
constexpr Duration kTick = 10ms;

/// net.core.somaxconn as it is now, which cuts every backlog; as it was where /proc is out of reach.
uint32_t most_backlog() {
  static std::atomic<int> known{4096};
  known = std::max(sysctl("/proc/sys/net/core/somaxconn", known), 1);
  return static_cast<uint32_t>(known);
}

struct Delete {
  void operator()(void* memory) const { ::operator delete(memory); }
};
/// For an object to be.
using OwnedMemory = std::unique_ptr<void, Delete>;

}  // namespace

Result<int> TcpSocket::listen(Pass& pass, int backlog) {
  if (state_ == State::kKernel) return kOnKernel;
  if (live()) return err(EINVAL);
  left_name_ = {};
  const uint32_t limit = std::min(static_cast<uint32_t>(backlog), most_backlog());
  if (state_ == State::kListening) {
    backlog_ = limit;
    if (flow_ != nullptr) pass.stack().tcp().set_backlog(*pass.engine().listener(*flow_), limit);
    return from_libc(real.listen(shadow(), backlog));
  }
  // Ours first: a client that connects at once is ours, too. Without a port yet nobody can, and where the
  // shadow proves that the port is ours it has to listen before. It does already where the engine has just
  // been started.
  const bool shadow_first = shadow_name().port == 0 || ShownSocket::is_needed(pass.engine()) ||
                            shadow_option(SOL_SOCKET, SO_ACCEPTCONN) != 0;
  if (shadow_first)
    if (Result<int> r = from_libc(real.listen(shadow(), backlog)); !r) return r;
  Result<int> started = start_listen(pass, limit);
  if (!started || shadow_first) return started;
  Result<int> shadows = from_libc(real.listen(shadow(), backlog));
  if (!shadows && state_ == State::kListening) {
    if (flow_ != nullptr) pass.engine().close(pass, flow_);
    flow_ = nullptr;
    set_state(State::kUndecided);
  }
  return shadows;
}

/// Listens in the engine where the shadow is bound, with the shadow's options.
Result<BoundFlow*> TcpSocket::open_listener(Pass& pass) {
  const TcpSettings settings = read_settings();
  const bool v6_only = v6() && shadow_option(IPPROTO_IPV6, IPV6_V6ONLY) != 0;
  const ShownSocket shown(pass.engine(), shadow());
  Result<BoundFlow*> flow = pass.engine().listen(
      pass, choice, shadow_name(), v6_only, shadow_option(SOL_SOCKET, SO_REUSEPORT) != 0, backlog_, settings,
      shadow_option(SOL_SOCKET, SO_BINDTOIFINDEX), static_cast<File*>(this));
  if (flow && choice.accelerated())
    pass.stack().tcp().listen_shut(*pass.engine().listener(**flow), shut_read_, shut_write_);
  if (flow && choice.accelerated())
    pass.stack().tcp().set_fast_open(*pass.engine().listener(**flow), fast_open_server_of(*this));
  const int defer = shadow_option(IPPROTO_TCP, TCP_DEFER_ACCEPT);
  if (flow && choice.accelerated() && defer != 0)
    pass.stack().tcp().set_defer_accept(*pass.engine().listener(**flow), std::chrono::seconds(defer));
  return flow;
}

/// What listen() was told, perhaps in another process: tcp_get_info().
void TcpSocket::read_backlog() {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (real.getsockopt(shadow(), IPPROTO_TCP, TCP_INFO, &info, &length) == 0) backlog_ = info.tcpi_sacked;
}

Result<int> TcpSocket::start_listen(Pass& pass, uint32_t backlog) {
  const Endpoint local = shadow_name();
  auto decline = [&](Reason reason) -> Result<int> {
    const Errno answer = detach_undecided(&pass, reason);
    if (answer == kOnKernel) return 0;  // listen() sees to it
    sockaddr none{};
    none.sa_family = AF_UNSPEC;
    real.connect(shadow(), &none, sizeof none);
    return answer;
  };
  backlog_ = backlog;
  iwarp_ = listener_iwarp(local);
  if (iwarp_ == Iwarp::kRequire) return listen_for_iwarp(pass);
  if (decide_veto(pass) != Reason::accelerated) return decline(veto);
  if (local.address.is_loopback())
    return iwarp_ == Iwarp::kPrefer ? listen_for_iwarp(pass) : decline(Reason::loopback);
  Result<BoundFlow*> flow = open_listener(pass);
  if ((!flow || !choice.accelerated()) && iwarp_ == Iwarp::kPrefer) return listen_for_iwarp(pass);
  if (waits_for_queue()) {
    if (Result<void> r = may_use_kernel(choice.reason); !r) return decline(choice.reason);
    refresh_from_shadow();
    set_state(State::kListening);
    return 0;
  }
  if (!flow || !choice.accelerated())
    return decline(choice.accelerated() || choice.reason == Reason::accelerated ? Reason::resources
                                                                                : choice.reason);
  if (Result<void> r = check_required(); !r) {
    pass.engine().close(pass, *flow);
    return r.error();
  }
  flow_ = *flow;
  begin_options();
  set_state(State::kListening);
  return 0;
}

/// The shadow alone listens: other processes hold every queue.
bool TcpSocket::waits_for_queue() const {
  return flow_ == nullptr && (choice.reason == Reason::no_queue || choice.reason == Reason::address_taken);
}

/// A connection came by the kernel. Where a queue has become free, the next ones are ours.
void TcpSocket::ask_for_queue(Pass& pass) {
  if (!waits_for_queue() || pass.now() - asked_for_queue_ < kAskAgain) return;
  asked_for_queue_ = pass.now();
  if (decide_veto(pass) != Reason::accelerated) return;
  listen_here_too(pass);
  if (flow_ != nullptr) pass.engine().touch();
}

/// A listener whose shadow listens already listens in this process's engine too; where that fails the shadow
/// alone serves.
void TcpSocket::listen_here_too(Pass& pass) {
  Result<BoundFlow*> flow = open_listener(pass);
  if (!flow || !choice.accelerated()) return;
  flow_ = *flow;
  begin_options();
}

/// It was made while its device's port was being opened: the shadow alone has listened so far.
void TcpSocket::ports_opened(Pass& pass) {
  if (state_ != State::kListening || flow_ == nullptr) return;
  const PathChoice now = pass.engine().path_of(pass, *flow_);
  if (choice.reason != Reason::port_opening && now.reason != Reason::port_opening &&
      now.reason != Reason::redirected)
    return;
  choice = now;
  if (choice.accelerated()) return;
  pass.engine().close(pass, std::exchange(flow_, nullptr));
  if (!waits_for_queue()) (void)detach(pass, choice.reason);
}

/// The shadow alone listens; what it accepts may turn out to be iWARP.
Result<int> TcpSocket::listen_for_iwarp(Pass& pass) {
  if (pass.engine().channels() == nullptr) return err(ENOBUFS);
  choice = {PathKind::kIwarp, Reason::iwarp, {}};
  if (Result<void> r = check_required(); !r) return r.error();
  refresh_from_shadow();
  set_state(State::kListening);
  return 0;
}

void TcpSocket::stop_listening(Pass& pass) {
  close_marker_in_child();  // every process's listening ends
  close_handoff_socket();
  if (flow_ != nullptr) {
    pass.stack().tcp().leave_handshakes(*pass.engine().listener(*flow_));  // as inet_csk_listen_stop()
    pass.engine().close(pass, flow_);
  }
  flow_ = nullptr;
  restore_timeout();
  sockaddr none{};
  none.sa_family = AF_UNSPEC;
  real.connect(shadow(), &none, sizeof none);
  forget_shut();
  set_state(State::kUndecided);
  pass.engine().touch();
}

/// accept() has no MSG_DONTWAIT, and O_NONBLOCK is shared with other processes: a receive timeout of one tick
/// keeps accept4() on the shadow from blocking when another process was faster. The program's own SO_RCVTIMEO
/// is kept by Socket.
void TcpSocket::hold_timeout() { set_shadow_timeout(SO_RCVTIMEO, 1us); }

void TcpSocket::restore_timeout() { set_shadow_timeout(SO_RCVTIMEO, receive_timeout); }

Result<int> TcpSocket::accept(Pass& pass, sockaddr* address, socklen_t* length, int flags) {
  if ((flags & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) != 0) return err(EINVAL);
  if (state_ != State::kListening)
    return state_ == State::kKernel || !live() ? Result<int>(kOnKernel) : err(EINVAL);
  waited_on_ = served = true;
  pass.in_turn();
  const Instant deadline = deadline_after(pass, receive_timeout);
  auto ours = [&] {
    return flow_ != nullptr && pass.stack().tcp().accept_queue_length(*pass.engine().listener(*flow_)) != 0;
  };
  auto queued = [&] {
    return state_ != State::kListening || !handed_off_.empty() || handoff_seen_ || ours();
  };
  for (;;) {
    if (handoff_pending()) take_handoff(pass);
    if (!handed_off_.empty()) return accept_handed_off(address, length, flags);
    if (ours()) return accept_ours(pass, address, length, flags);
    pollfd kernel{shadow(), POLLIN, 0};
    if (real.poll(&kernel, 1, 0) > 0) {
      Result<int> fd = accept_kernels(pass, address, length, flags);
      if (!fd.is(EAGAIN)) return fd;
    }
    if (nonblocking || !may_wait()) return err(EAGAIN);
    const WaitsOn waiting(*this);
    Result<Woke> woke = wait_for(pass, deadline, queued, std::span(&kernel, 1));
    if (!woke) return woke.error();
    if (state_ != State::kListening) return state_ == State::kKernel ? Result<int>(kOnKernel) : err(EINVAL);
  }
}

Result<int> TcpSocket::accept_ours(Pass& pass, sockaddr* address, socklen_t* length, int flags) {
  // First the descriptor and the memory: without them (EMFILE, ENOMEM) the connection stays in the queue.
  const int fd = real.socket(domain(), SOCK_STREAM | flags, IPPROTO_TCP);
  if (fd < 0) return err(errno);
  OwnedMemory memory(::operator new(sizeof(TcpSocket), std::nothrow));
  if (memory == nullptr) {
    real.close(fd);
    return err(ENOMEM);
  }
  TcpConn* conn = pass.stack().tcp().accept(*pass.engine().listener(*flow_));
  if (conn == nullptr || fd >= fds.size()) {
    if (conn != nullptr) pass.stack().tcp().close(conn, true, pass.now());
    real.close(fd);
    return err(conn != nullptr ? EMFILE : EAGAIN);
  }
  if (address != nullptr) {  // it has been accepted by then, so it is closed: __sys_accept4_file()
    Result<void> r =
        to_sockaddr(pass.stack().tcp().remote(*conn), domain(), address, length, scope_of(pass, *conn));
    if (!r) {
      pass.stack().tcp().close(conn, false, pass.now());
      real.close(fd);
      return r.error();
    }
  }
  auto* accepted = new (memory.release())
      TcpSocket(fd, *this, options_of(pass, *conn), conn, (flags & SOCK_NONBLOCK) != 0);
  fds.erase(fd, &pass);  // a descriptor that was closed behind our back
  fds.insert(fd, accepted);
  pass.stack().tcp().set_owner(*conn, static_cast<File*>(accepted));
  pass.engine().counters().add(Counter::sockets_accelerated);
  return fd;
}

/// accept4() on the shadow. Only for this call it has the timeout of a tick: that is the one of every process
/// and program that has the listener. Who would put it back while another is about to accept would let that
/// one block, with its lock, until the next connection.
Result<int> TcpSocket::accept_at_once(sockaddr* address, socklen_t* length, int flags) {
  if (nonblocking) return from_libc(real.accept4(shadow(), address, length, flags));
  const TimeoutLock timeout_lock(group_.hints_page);
  if (!timeout_lock.granted()) return err(EAGAIN);
  hold_timeout();
  const Result<int> fd = from_libc(real.accept4(shadow(), address, length, flags));
  restore_timeout();
  return fd;
}

Result<int> TcpSocket::accept_kernels(Pass& pass, sockaddr* address, socklen_t* length, int flags) {
  const Result<int> accepted = accept_at_once(address, length, flags);
  if (!accepted) return accepted;
  const int fd = *accepted;
  if (const Duration timeout = timeout_of(fd, SO_RCVTIMEO); timeout > Duration{0} && timeout <= kTick)
    set_timeout_of(fd, SO_RCVTIMEO, receive_timeout);  // its handshake ended while hold_timeout() held
  ask_for_queue(pass);
  if (iwarp_ != Iwarp::kOff && fd < fds.size() && pass.engine().channels() != nullptr) {
    auto* s = new (std::nothrow)
        SiwSocket(fd, *this, iwarp_ == Iwarp::kRequire, (flags & SOCK_NONBLOCK) != 0, pass);
    if (s != nullptr) {
      fds.erase(fd, &pass);  // a descriptor that was closed behind our back
      fds.insert(fd, s);
      s->begin(pass);
      return fd;
    }
  }
  stats::note_kernel(fd, Reason::accepted_by_kernel);
  if (!never_waits()) candidates.add(fd);
  return fd;
}

}  // namespace accel::posix
