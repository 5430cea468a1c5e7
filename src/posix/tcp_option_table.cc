// Table of a TCP socket's options.
#include "posix/tcp_option_table.h"

#include <linux/tcp.h>
#include <netinet/in.h>

#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

#include "base/proc.h"
#include "base/real.h"
#include "base/user_memory.h"
#include "posix/flow_label.h"

namespace accel::posix {
namespace {

/// nullopt: one that we have not.
std::optional<Congestion> congestion_of(const Socket& s) {
  char name[16] = {};
  socklen_t length = sizeof name;
  if (real.getsockopt(s.shadow(), IPPROTO_TCP, TCP_CONGESTION, name, &length) != 0) return Congestion::kCubic;
  const std::string_view algorithm(name, strnlen(name, sizeof name));
  if (algorithm == "cubic") return Congestion::kCubic;
  if (algorithm == "reno") return Congestion::kReno;
  return algorithm == "bbr" ? std::optional(Congestion::kBbr) : std::nullopt;
}

}  // namespace

bool has_congestion(const Socket& s) { return congestion_of(s).has_value(); }

Congestion own_congestion(const Socket& s) { return congestion_of(s).value_or(Congestion::kCubic); }

uint64_t max_pacing_rate_of(const Socket& s) {
  uint64_t rate = kNoPacing;
  socklen_t length = sizeof rate;
  return real.getsockopt(s.shadow(), SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &length) == 0 &&
                 length == sizeof rate
             ? rate
             : kNoPacing;
}

namespace {

/// The host's keys, as proc_tcp_fastopen_key() shows them: "%08x-%08x-%08x-%08x", with a comma and the older
/// one behind. All zero: there is none yet.
void read_host_keys(FastOpenServer& out) {
  const std::string text = read_proc("/proc/sys/net/ipv4/tcp_fastopen_key");
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end && out.key_count < out.keys.size()) {
    std::array<uint32_t, 4> words{};
    for (uint32_t& word : words) {
      const auto [next, error] = std::from_chars(at, end, word, 16);
      if (error != std::errc()) return;
      at = next < end ? next + 1 : end;
    }
    const FastOpenKey key{uint64_t{words[1]} << 32 | words[0], uint64_t{words[3]} << 32 | words[2]};
    if (key == FastOpenKey{}) return;
    out.keys[out.key_count++] = key;
  }
}

}  // namespace

FastOpenServer fast_open_server_of(const Socket& s) {
  FastOpenServer out;
  out.limit = static_cast<uint32_t>(s.shadow_option(IPPROTO_TCP, TCP_FASTOPEN));
  if (out.limit == 0) return out;
  out.no_cookie = s.shadow_option(IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE) != 0;
  socklen_t size = sizeof out.keys;
  if (real.getsockopt(s.shadow(), IPPROTO_TCP, TCP_FASTOPEN_KEY, out.keys.data(), &size) == 0)
    out.key_count = static_cast<uint8_t>(size / sizeof(FastOpenKey));
  if (out.key_count == 0) read_host_keys(out);
  return out;
}

uint8_t fast_open_wishes(const Socket& s) {
  return static_cast<uint8_t>(
      (s.shadow_option(IPPROTO_TCP, TCP_FASTOPEN_CONNECT) != 0 ? kFastOpenConnect : 0) |
      (s.shadow_option(IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE) != 0 ? kFastOpenNoCookie : 0));
}

bool discovers_mtu(const Socket& s) {
  return s.shadow_option(IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_WANT) != IP_PMTUDISC_DONT;
}

namespace {

using enum OptionEffect;

/// Path MTU discovery other than the normal one changes what is sent.
template <int level, int name>
bool usual_discovery(const Socket& s) {
  const int mode = s.shadow_option(level, name, IP_PMTUDISC_WANT);
  const bool off = level == IPPROTO_IP && mode == IP_PMTUDISC_DONT;
  return mode == IP_PMTUDISC_WANT || mode == IP_PMTUDISC_DO || off;
}

/// Without TFO_SERVER_ENABLE in net.ipv4.tcp_fastopen (the kernel's default) tcp_try_fastopen() gives no
/// cookie and takes no data, whatever the listener says: then it is a listener like another. With it we have
/// to know the key, since the kernel answers SYNs to the same listener.
bool serves_fast_open(const Socket& s) {
  constexpr int kServerEnable = 2;
  return s.shadow_option(IPPROTO_TCP, TCP_FASTOPEN) == 0 ||
         (sysctl("/proc/sys/net/ipv4/tcp_fastopen", 1) & kServerEnable) == 0 ||
         fast_open_server_of(s).key_count > 0;
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
    {SOL_SOCKET, SO_INCOMING_CPU, kMirror, false,
     [](TcpSettings& s, int v) { s.incoming_cpu = static_cast<int16_t>(v); }},
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
    {SOL_SOCKET, SO_MAX_PACING_RATE, kKeep, true},
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
     [](TcpSettings& s, int v) { s.keep_count = static_cast<uint8_t>(std::min(v, 255)); }},
    {IPPROTO_TCP, TCP_SYNCNT, kMirror, true,
     [](TcpSettings& s, int v) { s.syn_retries = static_cast<uint8_t>(std::min(v, 255)); }},
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
    {IPPROTO_TCP, TCP_FASTOPEN, kKeep, false, nullptr, 0, serves_fast_open},
    {IPPROTO_TCP, TCP_FASTOPEN_KEY, kKeep, false},
    {IPPROTO_TCP, TCP_FASTOPEN_CONNECT, kKeep, false},
    {IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE, kKeep, false},
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

}  // namespace

std::span<const Option> tcp_options() { return kOptions; }

bool concerns_bytes(int level, int name, const void* value, socklen_t length) {
  constexpr int kTcpInq = 36;  // TCP_INQ of linux/tcp.h, which does not go with netinet/tcp.h
  const int set = length >= sizeof(int) && can_read(value, sizeof(int)) ? *static_cast<const int*>(value) : 0;
  if (level == SOL_SOCKET && name == SO_PEEK_OFF) return set >= 0;
  if (level == IPPROTO_TCP && name == kTcpInq) return set != 0;
  if (level == SOL_SOCKET && name == SO_ZEROCOPY)
    return set != 0;  // only the kernel's TCP can tell of completions
  const Option* option = find_option(tcp_options(), level, name);
  const bool kernel_only = option != nullptr && option->effect == OptionEffect::kKernel;
  return kernel_only && vetoes(tcp_options(), level, name, value, length);
}

}  // namespace accel::posix
