// connect() on TCP: __inet_stream_connect() of net/ipv4/af_inet.c, with the shadow holding the local port.
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>

#include <set>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/kernel_tcp.h"
#include "base/real.h"
#include "engine/shown_socket.h"
#include "posix/connect_rules.h"
#include "posix/flow_label.h"
#include "posix/fork_state.h"
#include "posix/port_search.h"
#include "posix/same_host.h"
#include "posix/siw_socket.h"
#include "posix/tcp_socket.h"
#include "posix/wait.h"

namespace accel::posix {
namespace {

bool shadow_connected(int fd) {
  sockaddr_storage peer;
  socklen_t length = sizeof peer;
  return real.getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0;
}

/// Binds to address:0 so that the kernel picks and keeps a port, whatever IP_BIND_ADDRESS_NO_PORT says.
Result<void> bind_port(const Socket& s, const IpAddress& address) {
  const int late = s.shadow_option(IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT);
  const int off = 0;
  if (late != 0) real.setsockopt(s.shadow(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &off, sizeof off);
  sockaddr_storage name{};
  socklen_t length = sizeof name;
  (void)to_sockaddr({address, 0}, s.domain(), reinterpret_cast<sockaddr*>(&name), &length);
  const int result = real.bind(s.shadow(), reinterpret_cast<sockaddr*>(&name), length);
  const int error = errno;
  if (late != 0) real.setsockopt(s.shadow(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &late, sizeof late);
  if (result != 0)
    return err(error == EADDRINUSE ? EADDRNOTAVAIL : error);  // connect()'s word for "no port left"
  return {};
}

/// One of our connections that was given its port by connect(), a port from which none of them goes to
/// `remote`: the kernel's connect() shares such ports once none is free. nullptr: there is none.
TcpSocket* one_to_share_with(const IpAddress& address, const Endpoint& remote) {
  static int start = 0;  // not always the same one
  std::set<uint16_t> taken;
  std::vector<TcpSocket*> found;
  fds.for_each(0, fds.limit(), [&](int, File* file) {
    if (file->kind() != FileKind::kTcp || !file->carries_connection()) return;
    auto* s = static_cast<TcpSocket*>(file);
    const Endpoint local = s->local_endpoint();
    if (local.address != address) return;
    if (s->remote_endpoint() == remote)
      taken.insert(local.port);
    else if (s->shares_port())
      found.push_back(s);
  });
  std::erase_if(found, [&](TcpSocket* s) { return taken.contains(s->local_endpoint().port); });
  return found.empty() ? nullptr : found[static_cast<size_t>(++start) % found.size()];
}

/// Sockets may be bound to one port while all of them have SO_REUSEADDR (inet_csk_bind_conflict()).
Result<void> share_port(const Socket& s, const TcpSocket& with) {
  const int on = 1;
  const Endpoint name = with.local_endpoint();
  std::vector<int> were_off;  // shadows
  auto allow = [&](const Socket& one) {
    int before = 0;
    socklen_t size = sizeof before;
    real.getsockopt(one.shadow(), SOL_SOCKET, SO_REUSEADDR, &before, &size);
    if (before != 0) return;
    real.setsockopt(one.shadow(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    were_off.push_back(one.shadow());
  };
  allow(s);
  fds.for_each(0, fds.limit(), [&](int, File* file) {
    if (file->kind() != FileKind::kTcp || !file->carries_connection()) return;
    const auto* other = static_cast<TcpSocket*>(file);
    if (other->local_endpoint() == name) allow(*other);
  });
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  (void)to_sockaddr(name, s.domain(), reinterpret_cast<sockaddr*>(&address), &length);
  const Result<int> bound = from_libc(real.bind(s.shadow(), reinterpret_cast<sockaddr*>(&address), length));
  const int off = 0;
  for (const int shadow : were_off) real.setsockopt(shadow, SOL_SOCKET, SO_REUSEADDR, &off, sizeof off);
  if (!bound) return err(EADDRNOTAVAIL);
  return {};
}

/// A kernel socket gives an automatic port back when it stops listening, and only then.
void free_port(const Socket& s) {
  sockaddr none{};
  none.sa_family = AF_UNSPEC;
  if (real.listen(s.shadow(), 0) == 0) real.connect(s.shadow(), &none, sizeof none);
}

/// By a connection of the kernel's, which sees none in the shadow. A TIME-WAIT may be replaced
/// (tcp_twsk_unique()).
bool is_taken(const Endpoint& local, const Endpoint& remote) {
  const std::optional<uint8_t> state = kernel_tcp_state(local, remote);
  return state && *state != kKernelTimeWait;
}

}  // namespace

Result<int> TcpSocket::connect(Pass& pass, const sockaddr* address, socklen_t length) {
  if (state_ == State::kKernel) return kOnKernel;
  if (address == nullptr || length < sizeof address->sa_family) return kOnKernel;  // which refuses it
  if (family_of(address) == AF_UNSPEC) {
    forget_shut();
    if (state_ == State::kUndecided) return kOnKernel;
    if (state_ == State::kListening)
      stop_listening(pass);
    else
      disconnect(pass);
    return 0;
  }
  if (state_ == State::kConnected || state_ == State::kListening) return err(EISCONN);
  if (disconnecting_) return err(EINVAL);
  if (state_ == State::kConnecting && pass.stack().tcp().waits_for_text(*conn_)) return err(EISCONN);
  if (state_ == State::kConnecting) return finish_connect(pass, err(EALREADY));
  Result<Endpoint> remote = from_sockaddr(address, length, domain());
  if (!remote || shadow_connected(shadow())) return kOnKernel;
  if (!fast_open_ && wants_iwarp(pass, *remote)) return connect_as_iwarp(pass, address, length);
  return start_connect(pass, *remote, flowinfo_to_send(*this, address));
}

/// Whether the connection is to be tried as iWARP: where it is preferred a port's path comes first.
bool TcpSocket::wants_iwarp(Pass& pass, const Endpoint& remote) {
  const Iwarp wanted = config().iwarp_for(Role::kTcpClient, remote);
  if (wanted != Iwarp::kPrefer) return wanted == Iwarp::kRequire;
  if (decide_veto(pass) != Reason::accelerated) return false;
  if (shadow_option(SOL_SOCKET, SO_ZEROCOPY) != 0) return false;  // as for listener_iwarp()
  if (remote.address.is_loopback()) return true;
  return !pass.engine().choose(pass, flow_request(Role::kTcpClient, shadow_name(), remote)).accelerated();
}

Result<int> TcpSocket::connect_as_iwarp(Pass& pass, const sockaddr* address, socklen_t length) {
  auto* s = new (std::nothrow) SiwSocket(*this);
  if (s == nullptr) return err(ENOMEM);
  s->retain();
  fds.replace(this, s);
  state_ = State::kKernel;
  Result<int> r = s->connect(pass, address, length);
  s->release(&pass);
  return r;
}

/// The kernel makes the connection, which may be in shared memory later.
Errno TcpSocket::stay_on_host(Pass& pass, Reason reason) {
  const int fd = fds.first_of(this);
  const bool alone = descriptors == 1 && !elsewhere_too && !never_waits();
  const Errno left = detach_undecided(&pass, reason);
  if (left == kOnKernel && alone) candidates.add(fd);
  return left;
}

Result<int> TcpSocket::start_connect(Pass& pass, const Endpoint& remote, uint32_t flowinfo) {
  if (decide_veto(pass) != Reason::accelerated) return detach_undecided(&pass, veto);
  if (remote.address.is_any() || remote.address.is_loopback()) return stay_on_host(pass, Reason::loopback);
  if (remote.address.is_multicast()) return kOnKernel;  // ENETUNREACH
  // Nobody listens there, and a flow's key means any port by 0. The socket may go elsewhere afterwards.
  if (remote.port == 0) return kOnKernel;
  // Both processes shall have the connection. (A child may have made it one already.)
  if (others_have(this)) return detach_undecided(&pass, Reason::inherited);
  Endpoint local = shadow_name();
  if (connect_is_restricted()) return detach_undecided(&pass, Reason::connect_rules);
  const bool bound_v6 = v6() && local.port != 0 && !local.address.is_any() && !local.address.is_v4();
  if (v6() && remote.address.is_v4() && (bound_v6 || shadow_option(IPPROTO_IPV6, IPV6_V6ONLY) != 0))
    return kOnKernel;
  if (v6() && remote.address.is_link_local() && !remote.address.is_v4())
    return detach_undecided(&pass, Reason::route_unusual);

  choice = pass.engine().choose(pass, flow_request(Role::kTcpClient, local, remote));
  if (choice.reason == Reason::no_route) return kOnKernel;  // ENETUNREACH; the next connect() may find one
  if (!choice.accelerated() && pass.engine().has_address(pass, remote.address))
    return stay_on_host(pass, choice.reason);
  if (!choice.accelerated()) return detach_undecided(&pass, choice.reason);
  if (Result<void> r = check_required(); !r) return r.error();
  if (!may_send_flowinfo(*this, remote, flowinfo)) return err(EINVAL);
  if (Result<void> r = bind_implicitly(choice, local, remote); !r) {
    // Rules for bind(), which the kernel's connect() does not ask when it takes a port.
    const bool refused = r.is(EACCES) || r.is(EPERM);
    return refused ? detach_undecided(&pass, Reason::connect_rules) : r.error();
  }
  // A port that the kernel has picked is nobody else's.
  if (!bound_by_us_ && is_taken(local, remote)) return err(EADDRNOTAVAIL);

  flowinfo_ = flowinfo & ~0x00300000u;  // IP6_ECN_flow_init()
  TcpSettings settings = read_settings();
  settings.flow_label = flowinfo & kFlowLabelMask;
  if (fast_open_) settings.fast_open |= kFastOpenMessage;
  settings.replies_may_be_misdirected =
      pass.engine().replies_may_be_misdirected(pass, choice.route.interface) &&
      config().settings.require == Require::kOff;
  const PathChoice path = choice;
  std::optional<ShownSocket> shown(std::in_place, pass.engine(), shadow());
  Result<TcpConn*> conn = err(EADDRINUSE);
  std::optional<PortSearch> search;
  for (;;) {
    conn = pass.engine().connect(pass, choice, local, remote, settings, static_cast<File*>(this));
    // The kernel may give a port whose tuple our stack still has in TIME-WAIT: another one, where the choice
    // is ours.
    if (!conn.is(EADDRINUSE) || !bound_by_us_) break;
    choice = path;
    if (!search)
      search.emplace(shadow(), local.port, [&stack = pass.stack()](uint16_t port) {
        return stack.tcp().port_in_use(IpAddress::any_v4(), port);
      });
    if (Result<void> r = bind_elsewhere(*search, local, remote); !r) return r.error();
  }
  shown.reset();
  if (!conn) {
    if (conn.is(EADDRINUSE)) return err(EADDRNOTAVAIL);
    return choice.accelerated() ? conn.error() : detach_undecided(&pass, choice.reason);
  }
  conn_ = *conn;
  pending_error_ = 0;  // tcp_connect_init()
  pass.stack().tcp().connect_shut(*conn_, shut_read_, shut_write_);
  left_unacked_ = left_unsent_ = 0;
  left_name_ = {};
  set_state(State::kConnecting);
  if (pass.stack().tcp().waits_for_text(*conn_)) return 0;
  return finish_connect(pass, err(EINPROGRESS));
}

/// Gives the shadow an address and port where it has none, so that the kernel gives them to nobody else.
Result<void> TcpSocket::bind_implicitly(const PathChoice& path, Endpoint& local, const Endpoint& remote) {
  const IpAddress source = local.address.is_any() ? path.route.source : local.address;
  if (local.port == 0) {
    const bool v6_only = v6() && shadow_option(IPPROTO_IPV6, IPV6_V6ONLY) != 0;
    if (Result<void> r = bind_port(*this, source); !r) {
      const TcpSocket* other = r.is(EADDRNOTAVAIL) ? one_to_share_with(source, remote) : nullptr;
      if (other == nullptr) return r;
      if (r = share_port(*this, *other); !r) return r;
    }
    bound_by_us_ = true;
    v6_only_ = v6_only;
    local = shadow_name();
    if (local.port == 0) return err(EADDRNOTAVAIL);
  }
  local.address = source;
  return {};
}

/// Instead of a port whose tuple is taken.
Result<void> TcpSocket::bind_elsewhere(PortSearch& search, Endpoint& local, const Endpoint& remote) {
  release_port();
  while (search.next()) {
    local.port = 0;
    Result<void> r = bind_implicitly(choice, local, remote);
    if (r || !r.is(EADDRNOTAVAIL)) return r;
  }
  return err(EADDRNOTAVAIL);
}

bool TcpSocket::in_handshake(Stack& stack) const {
  const TcpState state = stack.tcp().state(*conn_);
  return state == TcpState::kSynSent || state == TcpState::kSynReceived;
}

/// `unfinished`: the answer while the handshake goes on and this call may not, or may no longer, wait.
Result<int> TcpSocket::finish_connect(Pass& pass, Errno unfinished) {
  Stack& stack = pass.stack();
  if (in_handshake(stack)) {
    if (nonblocking) return unfinished;
    auto ended = [&] { return state_ != State::kConnecting || !in_handshake(stack); };
    Result<Woke> woke = wait_for(pass, deadline_after(pass, send_timeout), ended);
    if (!woke) return woke.is(EAGAIN) ? unfinished : woke.error();
  }
  if (state_ == State::kConnected) return 0;  // another thread's connect() came first
  if (state_ == State::kKernel) return kOnKernel;
  if (state_ != State::kConnecting)
    return err(pending_error_ != 0 ? std::exchange(pending_error_, 0) : ECONNABORTED);
  if (stack.tcp().state(*conn_) == TcpState::kClosed) {
    const int error = stack.tcp().take_error(*conn_);
    disconnect(pass);
    return err(error != 0 ? error : ECONNABORTED);
  }
  set_state(State::kConnected);
  return 0;
}

/// tcp_disconnect(): back to an unconnected socket, with its name when the program chose it.
void TcpSocket::disconnect(Pass& pass) {
  pass.engine().send_kept(pass);
  const bool alive = pass.stack().tcp().state(*conn_) != TcpState::kClosed;
  const int untold = pass.stack().tcp().take_error(*conn_);
  const uint32_t jump = pass.stack().tcp().max_window(*conn_) + 2;
  left_unacked_ = static_cast<uint32_t>(pass.stack().tcp().unacked_bytes(*conn_)) + jump;
  left_unsent_ = static_cast<uint32_t>(pass.stack().tcp().unsent_bytes(*conn_)) + jump;
  left_mss_ = pass.stack().tcp().segment_size(*conn_);
  const bool accepted = std::exchange(accepted_, false);
  if (accepted && !renamed_) left_name_ = {inherited_name_, pass.stack().tcp().local(*conn_).port};
  const bool renamed = std::exchange(renamed_, false);
  pass.stack().tcp().close(conn_, alive, pass.now());
  conn_ = nullptr;
  pending_error_ = alive ? ECONNRESET : untold;
  write_inherited_options();
  release_port();
  if (!accepted && !renamed) give_up_automatic_port();
  leave_unsent_on_shadow();
  forget_shut();
  disconnecting_ = false;
  set_state(State::kUndecided);
  pass.engine().touch();
}

/// Undoes the implicit bind; an accepted connection's shadow gets the name that is left of the listener's.
void TcpSocket::release_port() {
  const bool accepted = !inherited_name_.is_any();
  if (!bound_by_us_ && !accepted) return;
  bound_by_us_ = false;
  free_port(*this);
  // bind() fixed the address for good, but another may follow: the next connection chooses its source anew.
  const IpAddress any = v6() ? IpAddress::any_v6() : IpAddress::any_v4();
  if (bind_port(*this, accepted ? std::exchange(inherited_name_, any) : any)) free_port(*this);
  const int v6_only = v6_only_;
  if (v6() && !accepted) real.setsockopt(shadow(), IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, sizeof v6_only);
}

/// One that the program's bind() was not asked for by number; the kernel knows which is which
/// (SOCK_BINDPORT_LOCK).
void TcpSocket::give_up_automatic_port() {
  if (shadow_name().port != 0) free_port(*this);
}

/// What tcp_disconnect() leaves counts against TCP_NOTSENT_LOWAT: the shadow, which is polled now, gets it.
void TcpSocket::leave_unsent_on_shadow() {
  if (left_unsent_ == 0 || shadow_option(IPPROTO_TCP, TCP_NOTSENT_LOWAT) == 0) return;
  const int reuse = shadow_option(SOL_SOCKET, SO_REUSEADDR);  // which TCP_REPAIR switches off
  auto set = [this](int level, int name, int value) {
    return real.setsockopt(shadow(), level, name, &value, sizeof value) == 0;
  };
  if (!set(IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_ON)) return;  // no privilege: the socket is writable
  set(IPPROTO_TCP, TCP_REPAIR_QUEUE, TCP_SEND_QUEUE);
  set(IPPROTO_TCP, TCP_QUEUE_SEQ, static_cast<int>(left_unsent_));
  set(IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_OFF_NO_WP);
  set(SOL_SOCKET, SO_REUSEADDR, reuse);
}

}  // namespace accel::posix
