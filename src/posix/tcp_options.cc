// setsockopt() and getsockopt() of a TCP socket.
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/time.h>

#include <algorithm>

#include "base/real.h"
#include "base/user_memory.h"
#include "posix/option_name.h"
#include "posix/tcp_info.h"
#include "posix/tcp_option_table.h"
#include "posix/tcp_socket.h"

namespace accel::posix {
namespace {

using enum OptionEffect;

/// The value of SO_SNDBUF and SO_RCVBUF counts the kernel's own overhead: half of it is bytes (socket(7)). 0:
/// never set.
uint32_t buffer_bytes(const Socket& s, int name, int lock) {
  const int locked = s.shadow_option(SOL_SOCKET, SO_BUF_LOCK);
  if ((locked & lock) == 0) return 0;
  const auto bytes = static_cast<uint32_t>(s.shadow_option(SOL_SOCKET, name));
  return name == SO_RCVBUF ? bytes / 2 : bytes;
}

/// What do_tcp_setsockopt() refuses once there is a connection: the shadow has none. 0: not this one.
int refused_connected(int name, const void* value, socklen_t length) {
  if (static_cast<int>(length) < static_cast<int>(sizeof(int)) || !can_read(value, sizeof(int)))
    return 0;  // refused in any state
  switch (name) {
    case TCP_WINDOW_CLAMP:
      return *static_cast<const int*>(value) == 0 ? EINVAL : 0;
    case TCP_FASTOPEN:
    case TCP_FASTOPEN_CONNECT:
    case TCP_FASTOPEN_NO_COOKIE:
      return EINVAL;
    case TCP_QUEUE_SEQ:
      return EPERM;
    default:
      return 0;
  }
}

Result<int> put_timeout(Duration d, void* value, socklen_t* length) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(std::max(d, Duration{0})).count();
  const timeval t{us / 1000000, us % 1000000};
  return put_option(&t, sizeof t, value, length);
}

}  // namespace

void TcpSocket::option_was_set(int level, int name, const void* value, socklen_t /*length*/) {
  int number = 0;
  if (level == IPPROTO_TCP && name == TCP_MAXSEG && get_user(number, value))
    set_mss_ = static_cast<uint16_t>(number);
}

/// A shadow on which nothing is set shows TCP_MSS_DEFAULT, 536, as one does on which that was set. So this
/// process remembers what it sets; of what another has set (before exec) 536 passes for nothing.
uint16_t TcpSocket::maximum_segment() const {
  if (set_mss_) return *set_mss_;
  const int mss = shadow_option(IPPROTO_TCP, TCP_MAXSEG);
  return static_cast<uint16_t>(mss == 536 ? 0 : mss);
}

TcpSettings TcpSocket::read_settings() {
  TcpSettings s;
  for (const Option& o : tcp_options()) {
    if (o.effect != kMirror || (o.level == IPPROTO_IPV6 && !v6())) continue;
    int value = 0;
    socklen_t length = sizeof value;
    if (real.getsockopt(shadow(), o.level, o.name, &value, &length) == 0) o.apply(s, value);
  }
  s.max_segment = maximum_segment();
  s.receive_buffer = buffer_bytes(*this, SO_RCVBUF, kReceiveLock);
  s.send_buffer = buffer_bytes(*this, SO_SNDBUF, kSendLock);
  s.congestion = own_congestion(*this);
  s.max_pacing_rate = max_pacing_rate_of(*this);
  s.dont_fragment = discovers_mtu(*this);
  s.fast_open = fast_open_wishes(*this);
  s.defer_ack = shadow_option(IPPROTO_TCP, TCP_DEFER_ACCEPT) != 0;
  linger keep{};
  socklen_t length = sizeof keep;
  real.getsockopt(shadow(), SOL_SOCKET, SO_LINGER, &keep, &length);
  linger_ = keep.l_onoff != 0;
  linger_time_ = std::chrono::seconds(keep.l_linger);
  peek_offset_ = shadow_option(SOL_SOCKET, SO_PEEK_OFF, -1);
  inq_ = shadow_option(IPPROTO_TCP, TCP_INQ) != 0;
  if (state_ == State::kUndecided) refresh_from_shadow();
  return s;
}

TcpSettings* TcpSocket::settings(Pass& pass) {
  if (live()) return &pass.stack().tcp().settings(*conn_);
  if (state_ == State::kListening && flow_ != nullptr)
    return &pass.stack().tcp().settings(*pass.engine().listener(*flow_));
  return nullptr;
}

void TcpSocket::settings_changed(Pass& pass) {
  if (live()) pass.stack().tcp().settings_changed(*conn_, pass.now());
}

Result<int> TcpSocket::setsockopt(Pass& pass, int level, int name, const void* value, socklen_t length) {
  if (state_ == State::kUndecided && left_unsent_ != 0 && level == IPPROTO_TCP && name == TCP_NOTSENT_LOWAT) {
    Result<int> r = from_libc(real.setsockopt(shadow(), level, name, value, length));
    leave_unsent_on_shadow();
    return r;
  }
  if (state_ == State::kUndecided || state_ == State::kKernel) return kOnKernel;
  if (live() && level == IPPROTO_TCP && (name == TCP_CORK || name == TCP_NODELAY) && length == sizeof(int) &&
      can_read(value, length))
    return set_later_on_shadow(pass, name, *static_cast<const int*>(value) != 0);
  write_inherited_options();
  // Numbered by the connection's bytes (sock_set_timestamping()), so it is the connection that must be asked,
  // not the shadow.
  const bool ended = live() && pass.stack().tcp().state(*conn_) == TcpState::kClosed;
  const bool connected = live() && !ended;
  if (connected && level == SOL_SOCKET && (name == SO_TIMESTAMPING || name == SO_TIMESTAMPING_NEW) &&
      vetoes(tcp_options(), level, name, value, length))
    return detach_for(pass, OptionName(level, name).text) ? kOnKernel : err(ENOPROTOOPT);
  if (live() && level == IPPROTO_IPV6 && name == IPV6_V6ONLY && v6()) {
    if (connected) return err(EINVAL);  // it has a port
    release_port();
  }
  if (connected && level == IPPROTO_TCP)
    if (const int refused = refused_connected(name, value, length)) return err(refused);
  if (state_ == State::kListening) options_change(pass);
  if (Result<int> r = from_libc(real.setsockopt(shadow(), level, name, value, length)); !r) {
    const bool to_v4 = level == IPPROTO_IPV6 && name == IPV6_ADDRFORM;
    const bool for_connections = to_v4 || (level == IPPROTO_TCP && name == TCP_ULP);
    if (!r.is(ENOTCONN) || !for_connections || !live()) return r;
    if (pass.stack().tcp().state(*conn_) != TcpState::kEstablished) return r;
    if (to_v4 && !pass.stack().tcp().remote(*conn_).address.is_v4()) return err(EADDRNOTAVAIL);
    return detach_for(pass, OptionName(level, name).text) ? kOnKernel : r.error();
  }
  option_was_set(level, name, value, length);
  const Option* option = find_option(tcp_options(), level, name);
  switch (option == nullptr ? kKernel : option->effect) {
    case kShadow:
      return 0;
    case kMirror: {
      TcpSettings* s = settings(pass);
      int set = 0;  // as the kernel has rounded it
      socklen_t size = sizeof set;
      if (s == nullptr || real.getsockopt(shadow(), level, name, &set, &size) != 0) return 0;
      const uint8_t tos = s->tos, traffic_class = s->traffic_class;
      option->apply(*s, set);
      if (live() && (s->tos != tos ||
                     s->traffic_class != traffic_class))  // the kernel forgets the route until it sends
        routeless_at_ = pass.stack().tcp().info(*conn_, pass.now()).segments_out;
      if (live() && level == IPPROTO_TCP && (name == TCP_NODELAY || name == TCP_CORK))
        pass.stack().tcp().settings_changed(*conn_, pass.now(), (set != 0) == (name == TCP_NODELAY));
      else
        settings_changed(pass);
      if (level == IPPROTO_TCP && name == TCP_NOTSENT_LOWAT && (!live() || (readiness() & EPOLLOUT) != 0))
        notify(kWritable);  // sk_write_space()
      // tcp_set_rcvlowat(): not where only this side has shut its reading down.
      if (level == SOL_SOCKET && name == SO_RCVLOWAT && live() &&
          pass.stack().tcp().has_text_for(*conn_, s->receive_low_water))
        notify(kReadable);
      return 0;
    }
    case kKeep:
      if (option->served == nullptr || option->served(*this)) {
        keep_option(pass, level, name);
        return 0;
      }
      break;
    case kRoute:
      if (ended) return 0;
      break;
    case kKernel:
      if (!vetoes(tcp_options(), level, name, value, length)) return 0;
      break;
  }
  if (ended) {  // there is nothing to move: it is for the next connection
    veto_for(OptionName(level, name).text);
    return 0;
  }
  Result<void> moved = detach_for(pass, OptionName(level, name).text);
  // The way there went through TCP_REPAIR.
  if (moved && level == IPPROTO_TCP && name == TCP_REPAIR)
    return from_libc(real.setsockopt(shadow(), level, name, value, length));
  if (moved) return 0;
  return err(ENOPROTOOPT);  // the connection cannot move (no CAP_NET_ADMIN) and we do not do this
}

/// What servers switch twice a request (nginx' tcp_nopush) and what cannot fail: two system calls saved each
/// time.
Result<int> TcpSocket::set_later_on_shadow(Pass& pass, int name, bool on) {
  TcpSettings& s = pass.stack().tcp().settings(*conn_);
  (name == TCP_CORK ? s.cork : s.nodelay) = on;
  (name == TCP_CORK ? late_cork_ : late_nodelay_) = on;
  pass.stack().tcp().settings_changed(*conn_, pass.now(), on == (name == TCP_NODELAY));
  return 0;
}

void TcpSocket::keep_option(Pass& pass, int level, int name) {
  TcpSettings unused;
  TcpSettings* current = settings(pass);
  TcpSettings& s = current != nullptr ? *current : unused;
  if (level == SOL_SOCKET) {
    switch (name) {
      case SO_RCVTIMEO:
      case SO_RCVTIMEO_NEW:
        receive_timeout = shadow_timeout(SO_RCVTIMEO);
        break;
      case SO_SNDTIMEO:
      case SO_SNDTIMEO_NEW:
        send_timeout = shadow_timeout(SO_SNDTIMEO);
        break;
      case SO_RCVBUF:
      case SO_RCVBUFFORCE:
        s.receive_buffer = buffer_bytes(*this, SO_RCVBUF, kReceiveLock);
        break;
      case SO_SNDBUF:
      case SO_SNDBUFFORCE:
        s.send_buffer = buffer_bytes(*this, SO_SNDBUF, kSendLock);
        if (live() && (readiness() & EPOLLOUT) != 0) notify(kWritable);  // sk_setsockopt()
        break;
      case SO_MAX_PACING_RATE:
        s.max_pacing_rate = max_pacing_rate_of(*this);
        break;
      case SO_PEEK_OFF:
        peek_offset_ = shadow_option(SOL_SOCKET, SO_PEEK_OFF, -1);
        break;
      case SO_LINGER: {
        linger keep{};
        socklen_t length = sizeof keep;
        real.getsockopt(shadow(), SOL_SOCKET, SO_LINGER, &keep, &length);
        linger_ = keep.l_onoff != 0;
        linger_time_ = std::chrono::seconds(keep.l_linger);
      }
    }
  } else if (level == IPPROTO_IP && name == IP_MTU_DISCOVER) {
    s.dont_fragment = discovers_mtu(*this);
  } else if (level == IPPROTO_TCP) {
    switch (name) {
      case TCP_QUICKACK:
        s.quickack = shadow_option(level, name) != 0;
        break;
      case TCP_INQ:
        inq_ = shadow_option(level, name) != 0;
        break;
      case TCP_MAXSEG:  // a connection's is settled by its handshake (mss_clamp)
        if (state_ == State::kListening) s.max_segment = maximum_segment();
        break;
      case TCP_DEFER_ACCEPT:
        if (state_ == State::kListening && flow_ != nullptr)
          pass.stack().tcp().set_defer_accept(*pass.engine().listener(*flow_),
                                              std::chrono::seconds(shadow_option(level, name)));
        break;
      case TCP_FASTOPEN:
      case TCP_FASTOPEN_KEY:
      case TCP_FASTOPEN_NO_COOKIE:
        if (state_ == State::kListening && flow_ != nullptr)
          pass.stack().tcp().set_fast_open(*pass.engine().listener(*flow_), fast_open_server_of(*this));
        break;
      case TCP_CONGESTION:
        s.congestion = own_congestion(*this);
    }
  }
  settings_changed(pass);
}

Result<int> TcpSocket::getsockopt(Pass& pass, int level, int name, void* value, socklen_t* length) {
  pass.engine().send_kept(pass);
  if (state_ == State::kListening && level == SOL_SOCKET && name == SO_RCVTIMEO)
    return put_timeout(receive_timeout, value, length);
  if (level == SOL_SOCKET && name == SO_ERROR && pending_error_ != 0) {
    const int error = std::exchange(pending_error_, 0);
    return put_option(&error, sizeof error, value, length);
  }
  int answer = 0;
  if (state_ == State::kUndecided && left_mss_ != 0 && level == IPPROTO_TCP && name == TCP_MAXSEG &&
      maximum_segment() == 0) {
    answer = left_mss_;
    return put_option(&answer, sizeof answer, value, length);
  }
  if (state_ == State::kListening && level == IPPROTO_TCP && name == TCP_INFO)
    return listener_info(pass, value, length);
  const bool ours = live() || (state_ == State::kListening && flow_ != nullptr);
  if (ours && level == IPPROTO_TCP && name == TCP_CONGESTION) {
    write_inherited_options();
    if (has_congestion(*this)) return kOnKernel;
    const char runs[16] = "cubic";  // the host's default is another, and nobody has asked for that
    return put_option(runs, sizeof runs, value, length);
  }
  if (!live()) return kOnKernel;
  Stack& stack = pass.stack();
  write_inherited_options();
  if (level == SOL_SOCKET && name == SO_ERROR) {
    answer = stack.tcp().take_error(*conn_);
    if (answer == 0) answer = stack.tcp().take_soft_error(*conn_);  // sk_err_soft
  } else if (level == IPPROTO_TCP && name == TCP_INFO) {
    return put_tcp_info(*this, stack.tcp().info(*conn_, pass.now()), value, length);
  } else if (level == IPPROTO_TCP && name == TCP_CC_INFO) {
    if (const auto bbr = stack.tcp().bbr_info(*conn_)) return put_bbr_info(*bbr, value, length);
    if (has_congestion(*this)) return kOnKernel;
    return put_option(nullptr, 0, value, length);  // cubic runs in the place of the host's, and tells nothing
  } else if (level == IPPROTO_TCP && name == TCP_MAXSEG) {
    const uint16_t set = maximum_segment();
    if (set != 0 && stack.tcp().state(*conn_) == TcpState::kClosed) return kOnKernel;
    answer = static_cast<int>(stack.tcp().info(*conn_, pass.now()).snd_mss);
  } else if (level == IPPROTO_TCP && name == TCP_WINDOW_CLAMP) {
    answer = static_cast<int>(stack.tcp().info(*conn_, pass.now()).window_clamp);
  } else if (level == IPPROTO_TCP && name == TCP_ZEROCOPY_RECEIVE) {
    return map_received(pass, value, length);
  } else if (level == SOL_SOCKET && name == SO_PEERNAME) {
    return peer_name(pass, value, length);
  } else if (level == IPPROTO_IP && name == IP_MTU) {
    if (renamed_ || routeless_at_ == stack.tcp().info(*conn_, pass.now()).segments_out) return err(ENOTCONN);
    answer = static_cast<int>(stack.tcp().info(*conn_, pass.now()).pmtu);
  } else if (level == IPPROTO_IPV6 && name == IPV6_MTU && v6()) {
    // Unlike inet_bind(), __inet6_bind() keeps the route of a connection that has ended.
    if (routeless_at_ == stack.tcp().info(*conn_, pass.now()).segments_out) return err(ENOTCONN);
    answer = static_cast<int>(stack.tcp().info(*conn_, pass.now()).pmtu);
    return put_option(&answer, sizeof answer, value, length, NegativeSize::kIsLarge);
  } else if (level == IPPROTO_IPV6 && name == IPV6_PATHMTU && v6()) {
    socklen_t room;
    ip6_mtuinfo path{};
    if (!get_user(room, length)) return err(EFAULT);
    if (room < sizeof path) return err(EINVAL);
    path.ip6m_mtu = stack.tcp().info(*conn_, pass.now()).pmtu;
    return put_option(&path, sizeof path, value, length, NegativeSize::kIsLarge);
  } else if (level == IPPROTO_IPV6 && name == IPV6_ADDRFORM && v6() &&
             stack.tcp().state(*conn_) == TcpState::kEstablished) {
    answer = AF_INET6;
    return put_option(&answer, sizeof answer, value, length, NegativeSize::kIsLarge);
  } else if (level == IPPROTO_IPV6 && name == IPV6_V6ONLY && v6() && bound_by_us_) {
    answer = v6_only_;
    return put_option(&answer, sizeof answer, value, length, NegativeSize::kIsLarge);
  } else if (level == SOL_SOCKET && name == SO_PEEK_OFF) {
    answer = peek_offset_;
  } else if (level == SOL_SOCKET && name == SO_INCOMING_CPU && stack.tcp().has_received(*conn_)) {
    answer = pass.engine().receiving_cpu(pass);
  } else {
    return kOnKernel;
  }
  return put_option(&answer, sizeof answer, value, length);
}

/// SO_PEERNAME: unlike getpeername() of connections that have ended too, and not cut but refused when there
/// is more room than name (sk_getsockopt()).
Result<int> TcpSocket::peer_name(Pass& pass, void* value, socklen_t* length) {
  socklen_t room, size = sizeof(sockaddr_storage);
  if (!get_user(room, length)) return err(EFAULT);
  sockaddr_storage name{};
  (void)to_sockaddr(pass.stack().tcp().remote(*conn_), domain(), reinterpret_cast<sockaddr*>(&name), &size,
                    scope_of(pass, *conn_));
  if (static_cast<int>(room) >= 0 && room > size) return err(EINVAL);
  return put_option(&name, size, value, length);
}

/// TCP_ZEROCOPY_RECEIVE: nothing of what has come lies in pages that could be mapped, so it is all for recv()
/// (tcp_zerocopy_receive()). The shadow, where nothing ever comes, checks the arguments.
Result<int> TcpSocket::map_received(Pass& pass, void* value, socklen_t* length) {
  Result<int> r = from_libc(real.getsockopt(shadow(), IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, value, length));
  if (!r) return r;
  auto* zc = static_cast<tcp_zerocopy_receive*>(value);
  const auto queued = static_cast<uint32_t>(pass.stack().tcp().readable_bytes(*conn_));
  if (queued == 0 && (readiness() & (EPOLLRDHUP | EPOLLHUP)) != 0) return err(EIO);
  zc->recv_skip_hint = queued;
  if (*length >= offsetof(tcp_zerocopy_receive, err)) zc->inq = queued;
  if (*length >= offsetof(tcp_zerocopy_receive, copybuf_address)) zc->err = 0;
  return r;
}

}  // namespace accel::posix
