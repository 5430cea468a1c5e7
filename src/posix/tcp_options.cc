// Options of a TCP socket.
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/time.h>

#include <algorithm>
#include <string>

#include "base/proc.h"
#include "base/real.h"
#include "base/user_memory.h"
#include "posix/flow_label.h"
#include "posix/options.h"
#include "posix/tcp_socket.h"

namespace accel::posix {
namespace {

using enum OptionEffect;

/// "cubic", "reno", or nothing we have.
std::string congestion(const Socket& s) {
  char name[16] = {};
  socklen_t length = sizeof name;
  if (real.getsockopt(s.shadow(), IPPROTO_TCP, TCP_CONGESTION, name, &length) != 0) return "cubic";
  return {name, strnlen(name, sizeof name)};
}

bool has_congestion(const Socket& s) {
  const std::string algorithm = congestion(s);
  return algorithm == "cubic" || algorithm == "reno";
}

/// Path MTU discovery other than the normal one changes what is sent.
template <int level, int name>
bool usual_discovery(const Socket& s) {
  const int mode = s.shadow_option(level, name, IP_PMTUDISC_WANT);
  const bool off = level == IPPROTO_IP && mode == IP_PMTUDISC_DONT;
  return mode == IP_PMTUDISC_WANT || mode == IP_PMTUDISC_DO || off;
}

/// IP_PMTUDISC_DONT, which is the default where net.ipv4.ip_no_pmtu_disc is on.
bool discovers_mtu(const Socket& s) {
  return s.shadow_option(IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_WANT) != IP_PMTUDISC_DONT;
}

/// Without TFO_SERVER_ENABLE in net.ipv4.tcp_fastopen (the kernel's default) tcp_try_fastopen() gives no
/// cookie and takes no data, whatever the listener says: then it is a listener like another.
bool without_fast_open(const Socket& s) {
  constexpr int kServerEnable = 2;
  return s.shadow_option(IPPROTO_TCP, TCP_FASTOPEN) == 0 ||
         (sysctl("/proc/sys/net/ipv4/tcp_fastopen", 1) & kServerEnable) == 0;
}

// Level, name, effect, inherited by accepted connections, what changes in the protocol's settings.
constexpr Option kOptions[] = {
    {SOL_SOCKET, SO_DEBUG, kShadow, true},
    {SOL_SOCKET, SO_REUSEADDR, kMirror, true, [](TcpSettings& s, int v) { s.reuse_address = v != 0; }},
    {SOL_SOCKET, SO_REUSEPORT, kShadow, true},
    {SOL_SOCKET, SO_BROADCAST, kShadow, true},
    {SOL_SOCKET, SO_PRIORITY, kShadow, false},
    {SOL_SOCKET, SO_BUSY_POLL, kShadow, true},
    {SOL_SOCKET, SO_PREFER_BUSY_POLL, kShadow, true},
    {SOL_SOCKET, SO_BUSY_POLL_BUDGET, kShadow, true},
    {SOL_SOCKET, SO_INCOMING_CPU, kMirror, false, [](TcpSettings& s, int v) { s.incoming_cpu = v; }},
    {SOL_SOCKET, SO_PASSCRED, kShadow, true},
    {SOL_SOCKET, SO_BUF_LOCK, kShadow, false},
    {SOL_SOCKET, SO_TXREHASH, kMirror, true, [](TcpSettings& s, int v) { s.rehash = v != 0; }},
    {SOL_SOCKET, SO_RXQ_OVFL, kShadow, true},  // datagrams only
    {SOL_SOCKET, SO_NO_CHECK, kShadow, true},  // datagrams only
    {SOL_SOCKET, SO_BSDCOMPAT, kShadow, false},
    {SOL_SOCKET, SO_DETACH_FILTER, kShadow, false},
    {SOL_SOCKET, SO_DONTROUTE, kRoute, true},
    {SOL_SOCKET, SO_MARK, kRoute, true},
    {SOL_SOCKET, SO_BINDTODEVICE, kRoute, true},
    {SOL_SOCKET, SO_BINDTOIFINDEX, kRoute, false},  // SO_BINDTODEVICE's other face
    {SOL_SOCKET, SO_LINGER, kKeep, true},
    {SOL_SOCKET, SO_RCVTIMEO, kKeep, false},
    {SOL_SOCKET, SO_SNDTIMEO, kKeep, true},
    {SOL_SOCKET, SO_RCVTIMEO_NEW, kKeep, false},
    {SOL_SOCKET, SO_SNDTIMEO_NEW, kKeep, false},
    {SOL_SOCKET, SO_PEEK_OFF, kKeep, true},
    {SOL_SOCKET, SO_RCVBUF, kKeep, true},
    {SOL_SOCKET, SO_SNDBUF, kKeep, true},
    {SOL_SOCKET, SO_RCVBUFFORCE, kKeep, false},
    {SOL_SOCKET, SO_SNDBUFFORCE, kKeep, false},
    {SOL_SOCKET, SO_KEEPALIVE, kMirror, true, [](TcpSettings& s, int v) { s.keepalive = v != 0; }},
    {SOL_SOCKET, SO_OOBINLINE, kMirror, true, [](TcpSettings& s, int v) { s.oob_inline = v != 0; }},
    {SOL_SOCKET, SO_RCVLOWAT, kMirror, true,
     [](TcpSettings& s, int v) { s.receive_low_water = static_cast<uint32_t>(v); }},
    {SOL_SOCKET, SO_TIMESTAMP, kKernel, true},
    {SOL_SOCKET, SO_TIMESTAMPNS, kKernel, true},
    {SOL_SOCKET, SO_TIMESTAMPING, kKernel, true},
    {SOL_SOCKET, SO_ZEROCOPY, kShadow, true},  // without effect until a send has MSG_ZEROCOPY

    {IPPROTO_TCP, TCP_NODELAY, kMirror, true, [](TcpSettings& s, int v) { s.nodelay = v != 0; }},
    {IPPROTO_TCP, TCP_CORK, kMirror, true, [](TcpSettings& s, int v) { s.cork = v != 0; }},
    {IPPROTO_TCP, TCP_QUICKACK, kKeep, false},
    {IPPROTO_TCP, TCP_KEEPIDLE, kMirror, true,
     [](TcpSettings& s, int v) { s.keep_idle = std::chrono::seconds(v); }},
    {IPPROTO_TCP, TCP_KEEPINTVL, kMirror, true,
     [](TcpSettings& s, int v) { s.keep_interval = std::chrono::seconds(v); }},
    {IPPROTO_TCP, TCP_KEEPCNT, kMirror, true,
     [](TcpSettings& s, int v) { s.keep_count = static_cast<uint32_t>(v); }},
    {IPPROTO_TCP, TCP_SYNCNT, kMirror, true,
     [](TcpSettings& s, int v) { s.syn_retries = static_cast<uint32_t>(v); }},
    {IPPROTO_TCP, TCP_USER_TIMEOUT, kMirror, true,
     [](TcpSettings& s, int v) { s.user_timeout = std::chrono::milliseconds(v); }},
    {IPPROTO_TCP, TCP_LINGER2, kMirror, true,
     [](TcpSettings& s, int v) { s.fin_wait2 = std::chrono::seconds(v); }},
    {IPPROTO_TCP, TCP_WINDOW_CLAMP, kMirror, true,
     [](TcpSettings& s, int v) { s.window_clamp = static_cast<uint32_t>(v); }},
    {IPPROTO_TCP, TCP_MAXSEG, kKeep, true},
    {IPPROTO_TCP, TCP_NOTSENT_LOWAT, kMirror, true,
     [](TcpSettings& s, int v) { s.notsent_low_water = static_cast<uint32_t>(v); }},
    {IPPROTO_TCP, TCP_CONGESTION, kKeep, true, nullptr, 0, has_congestion},
    {IPPROTO_TCP, TCP_INQ, kKeep, true},
    {IPPROTO_TCP, TCP_DEFER_ACCEPT, kKeep, false},
    {IPPROTO_TCP, TCP_THIN_DUPACK, kShadow, false},  // without effect in the kernel
    {IPPROTO_TCP, TCP_FASTOPEN, kKeep, false, nullptr, 0, without_fast_open},
    {IPPROTO_TCP, TCP_FASTOPEN_CONNECT, kKernel, false},
    {IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, kKernel, true},
    {IPPROTO_TCP, TCP_ULP, kKernel, false},
    {IPPROTO_TCP, TCP_MD5SIG, kKernel, false},
    {IPPROTO_TCP, TCP_MD5SIG_EXT, kKernel, false},
    {IPPROTO_TCP, TCP_REPAIR, kKernel, false},
    {IPPROTO_TCP, TCP_SAVE_SYN, kKernel, false},
    {IPPROTO_TCP, TCP_TX_DELAY, kKernel, false},

    {IPPROTO_IP, IP_TOS, kMirror, true, [](TcpSettings& s, int v) { s.tos = static_cast<uint8_t>(v); }},
    {IPPROTO_IP, IP_TTL, kMirror, true, [](TcpSettings& s, int v) { s.ttl = static_cast<uint8_t>(v); }},
    {IPPROTO_IP, IP_MTU_DISCOVER, kKeep, true, nullptr, 0, usual_discovery<IPPROTO_IP, IP_MTU_DISCOVER>},
    {IPPROTO_IP, IP_FREEBIND, kShadow, true},
    {IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, kShadow, true},
    {IPPROTO_IP, IP_LOCAL_PORT_RANGE, kShadow, true},
    {IPPROTO_IP, IP_PKTINFO, kShadow, true},  // datagrams only, as the others here
    {IPPROTO_IP, IP_RECVTOS, kShadow, true},
    {IPPROTO_IP, IP_RECVTTL, kShadow, true},
    {IPPROTO_IP, IP_RECVOPTS, kShadow, false},
    {IPPROTO_IP, IP_RETOPTS, kShadow, false},
    {IPPROTO_IP, IP_MULTICAST_TTL, kShadow, false},
    {IPPROTO_IP, IP_MULTICAST_LOOP, kShadow, false},
    {IPPROTO_IP, IP_MULTICAST_IF, kShadow, false},
    {IPPROTO_IP, IP_MULTICAST_ALL, kShadow, false},
    {IPPROTO_IP, IP_ADD_MEMBERSHIP, kShadow, false},
    {IPPROTO_IP, IP_DROP_MEMBERSHIP, kShadow, false},
    {IPPROTO_IP, IP_RECVERR, kKernel, true},
    {IPPROTO_IP, IP_MINTTL, kKernel, true},
    {IPPROTO_IP, IP_OPTIONS, kKernel, true},
    {IPPROTO_IP, IP_TRANSPARENT, kKernel, true},
    {IPPROTO_IP, IP_UNICAST_IF, kKernel, true},

    {IPPROTO_IPV6, IPV6_TCLASS, kMirror, true,
     [](TcpSettings& s, int v) { s.traffic_class = static_cast<uint8_t>(std::max(v, 0)); }},
    {IPPROTO_IPV6, IPV6_UNICAST_HOPS, kMirror, true,
     [](TcpSettings& s, int v) { s.hop_limit = static_cast<uint8_t>(v < 0 ? 64 : v); }},
    {IPPROTO_IPV6, IPV6_V6ONLY, kShadow, true},
    {IPPROTO_IPV6, IPV6_MTU, kShadow, true},  // of fragments
    {IPPROTO_IPV6, IPV6_FREEBIND, kShadow, true},
    {IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, kMirror, true,
     [](TcpSettings& s, int v) { s.auto_flow_label = v != 0; }},
    {IPPROTO_IPV6, kFlowInfoSend, kShadow, true},
    {IPPROTO_IPV6, kFlowLabelManager, kKernel, false},
    {IPPROTO_IPV6, IPV6_RECVPKTINFO, kShadow, true},
    {IPPROTO_IPV6, IPV6_RECVHOPLIMIT, kShadow, true},
    {IPPROTO_IPV6, IPV6_RECVTCLASS, kShadow, true},
    {IPPROTO_IPV6, IPV6_MULTICAST_HOPS, kShadow, false},
    {IPPROTO_IPV6, IPV6_MULTICAST_LOOP, kShadow, false},
    {IPPROTO_IPV6, IPV6_MULTICAST_IF, kShadow, false},
    {IPPROTO_IPV6, IPV6_ADD_MEMBERSHIP, kShadow, false},
    {IPPROTO_IPV6, IPV6_DROP_MEMBERSHIP, kShadow, false},
    {IPPROTO_IPV6, IPV6_MTU_DISCOVER, kKeep, true, nullptr, 0,
     usual_discovery<IPPROTO_IPV6, IPV6_MTU_DISCOVER>},
    {IPPROTO_IPV6, IPV6_RECVERR, kKernel, true},
    {IPPROTO_IPV6, IPV6_TRANSPARENT, kKernel, true},
};

/// The value of SO_SNDBUF and SO_RCVBUF counts the kernel's own overhead: half of it is bytes (socket(7)). 0:
/// never set.
uint32_t buffer_bytes(const Socket& s, int name, int lock) {
  const int locked = s.shadow_option(SOL_SOCKET, SO_BUF_LOCK);
  if ((locked & lock) == 0) return 0;
  const auto bytes = static_cast<uint32_t>(s.shadow_option(SOL_SOCKET, name));
  return name == SO_RCVBUF ? bytes / 2 : bytes;
}

constexpr int kSendLock = 1, kReceiveLock = 2;  // SOCK_SNDBUF_LOCK, SOCK_RCVBUF_LOCK

/// The headers' tcp_info with what younger kernels have behind it.
struct LongTcpInfo : tcp_info {
  uint32_t tcpi_rcv_wnd;  // Linux 6.2
  uint32_t tcpi_rehash;   // and here
  uint8_t tcpi_younger[272];
};

void fill(LongTcpInfo& out, const TcpInfo& in) {
  out.tcpi_state = static_cast<uint8_t>(in.state);
  out.tcpi_ca_state = in.congestion_state;
  out.tcpi_retransmits = in.retransmits;
  out.tcpi_probes = in.probes;
  out.tcpi_backoff = in.backoff;
  out.tcpi_options =
      static_cast<uint8_t>((in.timestamps ? TCPI_OPT_TIMESTAMPS : 0) | (in.sack ? TCPI_OPT_SACK : 0) |
                           (in.window_scaling ? TCPI_OPT_WSCALE : 0));
  out.tcpi_snd_wscale = in.snd_wscale;
  out.tcpi_rcv_wscale = in.rcv_wscale;
  out.tcpi_rto = in.rto_us;
  out.tcpi_ato = in.ack_timeout_us;
  out.tcpi_snd_mss = in.snd_mss;
  out.tcpi_rcv_mss = in.rcv_mss;
  out.tcpi_unacked = in.unacked_segments;
  out.tcpi_sacked = in.sacked_segments;
  out.tcpi_lost = in.lost_segments;
  out.tcpi_retrans = in.resent_segments;
  out.tcpi_last_data_sent = in.last_data_sent_ms;
  out.tcpi_last_data_recv = in.last_data_received_ms;
  out.tcpi_last_ack_recv = in.last_ack_received_ms;
  out.tcpi_pmtu = in.pmtu;
  out.tcpi_rcv_ssthresh = in.window_clamp;
  out.tcpi_rtt = in.rtt_us;
  out.tcpi_rttvar = in.rttvar_us;
  out.tcpi_snd_ssthresh = in.snd_ssthresh_segments;
  out.tcpi_snd_cwnd = in.snd_cwnd_segments;
  out.tcpi_advmss = in.advertised_mss;
  out.tcpi_reordering = in.reordering;
  out.tcpi_rcv_space = in.receive_space;
  out.tcpi_rcv_rtt = in.receive_rtt_us;
  out.tcpi_total_retrans = in.total_retransmits;
  out.tcpi_bytes_acked = in.bytes_acked;
  out.tcpi_bytes_received = in.bytes_received;
  out.tcpi_segs_out = in.segments_out;
  out.tcpi_segs_in = in.segments_in;
  out.tcpi_notsent_bytes = in.notsent_bytes;
  out.tcpi_min_rtt = in.min_rtt_us;
  out.tcpi_data_segs_in = in.data_segments_in;
  out.tcpi_data_segs_out = in.data_segments_out;
  out.tcpi_pacing_rate = in.pacing_rate;
  out.tcpi_max_pacing_rate = ~0ull;
  out.tcpi_bytes_sent = in.bytes_sent;
  out.tcpi_bytes_retrans = in.bytes_retransmitted;
  out.tcpi_busy_time = in.busy_us;
  out.tcpi_rwnd_limited = in.window_limited_us;
  out.tcpi_sndbuf_limited = in.buffer_limited_us;
  out.tcpi_delivered = in.delivered;
  out.tcpi_dsack_dups = in.duplicates_reported;
  out.tcpi_reord_seen = in.reorderings;
  out.tcpi_rcv_ooopack = in.out_of_order_segments;
  out.tcpi_rehash = in.rehashes;
  out.tcpi_snd_wnd = in.snd_wnd;
  out.tcpi_rcv_wnd = in.rcv_wnd;
}

/// How long the running kernel's tcp_info is.
size_t kernels_info_size(const Socket& s) {
  static const size_t size = [&s] {
    LongTcpInfo info;
    socklen_t length = sizeof info;
    return real.getsockopt(s.shadow(), IPPROTO_TCP, TCP_INFO, &info, &length) == 0 ? length
                                                                                   : sizeof(tcp_info);
  }();
  return size;
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

std::span<const Option> tcp_options() { return kOptions; }

void TcpSocket::option_was_set(int level, int name, const void* value) {
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
  for (const Option& o : kOptions) {
    if (o.effect != kMirror || (o.level == IPPROTO_IPV6 && !v6())) continue;
    int value = 0;
    socklen_t length = sizeof value;
    if (real.getsockopt(shadow(), o.level, o.name, &value, &length) == 0) o.apply(s, value);
  }
  s.max_segment = maximum_segment();
  s.receive_buffer = buffer_bytes(*this, SO_RCVBUF, kReceiveLock);
  s.send_buffer = buffer_bytes(*this, SO_SNDBUF, kSendLock);
  s.newreno = congestion(*this) == "reno";
  s.dont_fragment = discovers_mtu(*this);
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
      vetoes(kOptions, level, name, value, length))
    return detach(pass, Reason::option) ? kOnKernel : err(ENOPROTOOPT);
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
    return detach(pass, Reason::option) ? kOnKernel : r.error();
  }
  option_was_set(level, name, value);
  const Option* option = find_option(kOptions, level, name);
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
      if (!vetoes(kOptions, level, name, value, length)) return 0;
      break;
  }
  if (ended) {  // there is nothing to move: it is for the next connection
    veto = Reason::option;
    return 0;
  }
  Result<void> moved = detach(pass, Reason::option);
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
      case TCP_CONGESTION:
        s.newreno = congestion(*this) == "reno";
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
    LongTcpInfo info{};
    fill(info, stack.tcp().info(*conn_, pass.now()));
    return put_option(&info, kernels_info_size(*this), value, length);
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

/// tcp_get_info(): a listener's tcpi_unacked is the length of its accept queue, which we have a part of.
Result<int> TcpSocket::listener_info(Pass& pass, void* value, socklen_t* length) {
  LongTcpInfo info{};
  socklen_t size = sizeof info;
  if (real.getsockopt(shadow(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return kOnKernel;
  info.tcpi_unacked += static_cast<uint32_t>(handed_off_.size());
  if (flow_ != nullptr)
    info.tcpi_unacked += pass.stack().tcp().accept_queue_length(*pass.engine().listener(*flow_));
  return put_option(&info, size, value, length);
}

/// What differs from a new socket: for a connection accepted from this listener what that inherits, else all
/// that setsockopt() has set. The connection itself has changed the three that are left out.
std::vector<SavedOption> TcpSocket::unusual_options(SavedFor purpose) const {
  auto left_out = [&](const Option& o) {
    if (purpose == SavedFor::kConnections) return !o.inherited || o.effect == kKernel;
    if (o.level == SOL_SOCKET) return o.name == SO_INCOMING_CPU;
    return o.level == IPPROTO_TCP && (o.name == TCP_MAXSEG || o.name == TCP_QUICKACK);
  };
  std::vector<SavedOption> saved;
  const int fresh = real.socket(domain(), SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
  if (fresh < 0) return saved;
  const int locked = shadow_option(SOL_SOCKET, SO_BUF_LOCK);
  for (const Option& o : kOptions) {
    if (left_out(o) || (o.level == IPPROTO_IPV6 && !v6())) continue;
    char mine[64] = {}, theirs[64] = {};
    socklen_t mine_size = sizeof mine, their_size = sizeof theirs;
    if (real.getsockopt(shadow(), o.level, o.name, mine, &mine_size) != 0) continue;
    if (real.getsockopt(fresh, o.level, o.name, theirs, &their_size) != 0) continue;
    if (mine_size == their_size && std::equal(mine, mine + mine_size, theirs)) continue;
    if (o.level == SOL_SOCKET && (o.name == SO_RCVBUF || o.name == SO_SNDBUF)) {
      // SO_RCVLOWAT, too, makes the buffer larger, but the kernel goes on tuning it.
      if ((locked & (o.name == SO_RCVBUF ? kReceiveLock : kSendLock)) == 0) continue;
      int bytes;
      std::memcpy(&bytes, mine, sizeof bytes);
      bytes /= 2;  // the kernel doubles what is set
      std::memcpy(mine, &bytes, sizeof bytes);
    }
    saved.push_back({o.level, o.name, {mine, mine + mine_size}});
  }
  real.close(fresh);
  return saved;
}

std::shared_ptr<const ListenerOptions> TcpSocket::options_now() {
  if (options_now_ == nullptr)
    options_now_ = std::make_shared<const ListenerOptions>(
        ListenerOptions{.options = unusual_options(SavedFor::kConnections),
                        .receive_timeout = receive_timeout,
                        .send_timeout = send_timeout,
                        .linger_time = linger_time_,
                        .peek_offset = peek_offset_,
                        .linger = linger_,
                        .inq = inq_});
  return options_now_;
}

void TcpSocket::begin_options() {
  past_options_.clear();
  options_now_ = nullptr;
  (void)options_now();
}

void TcpSocket::options_change(Pass& pass) {
  TcpLayer& tcp = pass.stack().tcp();
  TcpListener* listener = flow_ != nullptr ? pass.engine().listener(*flow_) : nullptr;
  if (listener == nullptr || tcp.accept_queue_length(*listener) == 0)
    past_options_.clear();
  else
    past_options_.push_back({tcp.end_options_generation(*listener), options_now()});
  options_now_ = nullptr;
}

std::shared_ptr<const ListenerOptions> TcpSocket::options_of(Pass& pass, const TcpConn& oldest) {
  const uint32_t generation = pass.stack().tcp().options_generation(oldest);
  std::erase_if(past_options_, [&](const PastOptions& past) {
    return static_cast<int32_t>(past.generation - generation) < 0;
  });
  const bool older = !past_options_.empty() && past_options_.front().generation == generation;
  return older ? past_options_.front().options : options_now();
}

/// Onto a new socket of the kernel's.
void TcpSocket::write_options(int fd, const ListenerOptions& options) {
  for (const SavedOption& o : options.options)
    real.setsockopt(fd, o.level, o.name, o.value.data(), static_cast<socklen_t>(o.value.size()));
  const int priority = 0;  // sk_clone_lock(); IP_TOS has just set another
  real.setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &priority, sizeof priority);
  if (options.receive_timeout != Duration{0}) set_timeout_of(fd, SO_RCVTIMEO, options.receive_timeout);
  if (options.send_timeout == kNoWait)
    set_timeout_of(fd, SO_SNDTIMEO, kNoWait);  // which its listener's shadow shows as none
}

void TcpSocket::write_inherited_options() {
  if (inherited_ != nullptr) {
    write_options(shadow(), *inherited_);
    inherited_ = nullptr;
  }
  auto write_late = [this](std::optional<bool>& late, int name) {
    if (!late) return;
    const int value = *late;
    real.setsockopt(shadow(), IPPROTO_TCP, name, &value, sizeof value);
    late.reset();
  };
  write_late(late_nodelay_, TCP_NODELAY);
  write_late(late_cork_, TCP_CORK);
}

}  // namespace accel::posix
