// Names of the system's headers that scripts use.
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <map>

#include "script.h"

namespace accel::scripts {
namespace {

#define NAME(x) \
  { #x, x }
const std::map<std::string, int64_t> kConstants = {NAME(AF_INET),
                                                   NAME(SOCK_STREAM),
                                                   NAME(SOCK_NONBLOCK),
                                                   NAME(SOCK_CLOEXEC),
                                                   NAME(IPPROTO_TCP),
                                                   NAME(IPPROTO_IP),
                                                   NAME(SOL_SOCKET),
                                                   NAME(SOL_TCP),
                                                   NAME(SO_REUSEADDR),
                                                   NAME(SO_KEEPALIVE),
                                                   NAME(SO_LINGER),
                                                   NAME(SO_SNDBUF),
                                                   NAME(SO_RCVBUF),
                                                   NAME(SO_ERROR),
                                                   NAME(SO_RCVLOWAT),
                                                   NAME(SO_OOBINLINE),
                                                   NAME(SO_MAX_PACING_RATE),
                                                   NAME(TCP_NODELAY),
                                                   NAME(TCP_CORK),
                                                   NAME(TCP_QUICKACK),
                                                   NAME(TCP_KEEPIDLE),
                                                   NAME(TCP_KEEPINTVL),
                                                   NAME(TCP_KEEPCNT),
                                                   NAME(TCP_SYNCNT),
                                                   NAME(TCP_USER_TIMEOUT),
                                                   NAME(TCP_LINGER2),
                                                   NAME(TCP_WINDOW_CLAMP),
                                                   NAME(TCP_MAXSEG),
                                                   NAME(TCP_NOTSENT_LOWAT),
                                                   NAME(TCP_CONGESTION),
                                                   NAME(TCP_DEFER_ACCEPT),
                                                   NAME(TCP_INFO),
                                                   NAME(TCP_FASTOPEN),
                                                   NAME(TCP_FASTOPEN_CONNECT),
                                                   NAME(TCP_FASTOPEN_NO_COOKIE),
                                                   NAME(SHUT_RD),
                                                   NAME(SHUT_WR),
                                                   NAME(SHUT_RDWR),
                                                   NAME(O_RDWR),
                                                   NAME(O_NONBLOCK),
                                                   NAME(F_GETFL),
                                                   NAME(F_SETFL),
                                                   NAME(MSG_OOB),
                                                   NAME(MSG_PEEK),
                                                   NAME(MSG_MORE),
                                                   NAME(MSG_EOR),
                                                   NAME(MSG_TRUNC),
                                                   NAME(MSG_DONTWAIT),
                                                   NAME(MSG_NOSIGNAL),
                                                   NAME(MSG_WAITALL),
                                                   NAME(MSG_FASTOPEN),
                                                   NAME(POLLIN),
                                                   NAME(POLLOUT),
                                                   NAME(POLLERR),
                                                   NAME(POLLHUP),
                                                   NAME(POLLRDHUP),
                                                   NAME(POLLPRI),
                                                   NAME(SIOCINQ),
                                                   NAME(SIOCOUTQ),
                                                   NAME(SIOCOUTQNSD),
                                                   NAME(FIONREAD),
                                                   NAME(SIOCATMARK),
                                                   NAME(TCP_ESTABLISHED),
                                                   NAME(TCP_SYN_SENT),
                                                   NAME(TCP_SYN_RECV),
                                                   NAME(TCP_FIN_WAIT1),
                                                   NAME(TCP_FIN_WAIT2),
                                                   NAME(TCP_TIME_WAIT),
                                                   NAME(TCP_CLOSE),
                                                   NAME(TCP_CLOSE_WAIT),
                                                   NAME(TCP_LAST_ACK),
                                                   NAME(TCP_LISTEN),
                                                   NAME(TCP_CLOSING),
                                                   NAME(TCP_CA_Open),
                                                   NAME(TCP_CA_Disorder),
                                                   NAME(TCP_CA_CWR),
                                                   NAME(TCP_CA_Recovery),
                                                   NAME(TCP_CA_Loss),
                                                   NAME(TCPI_OPT_TIMESTAMPS),
                                                   NAME(TCPI_OPT_ECN),
                                                   NAME(TCPI_OPT_ECN_SEEN),
                                                   NAME(TCPI_OPT_SACK),
                                                   NAME(TCPI_OPT_WSCALE),
                                                   NAME(TCPI_OPT_SYN_DATA),
                                                   {"TCPI_OPT_TFO_CHILD", 128},    // of Linux 6.14
                                                   {"TFO_COOKIE_UNAVAILABLE", 1},  // of linux/tcp.h
                                                   {"TFO_DATA_NOT_ACKED", 2},
                                                   {"TFO_SYN_RETRANSMITTED", 3},
                                                   NAME(INADDR_ANY),
                                                   {"TCP_INFINITE_SSTHRESH", 0x7fffffff}};
const std::map<std::string, int> kErrors = {
    NAME(EAGAIN),       NAME(EINPROGRESS), NAME(EALREADY),   NAME(EISCONN),       NAME(ECONNREFUSED),
    NAME(ECONNRESET),   NAME(ETIMEDOUT),   NAME(EPIPE),      NAME(ENOTCONN),      NAME(EINVAL),
    NAME(EHOSTUNREACH), NAME(ENETUNREACH), NAME(EADDRINUSE), NAME(EADDRNOTAVAIL), NAME(EBADF),
    NAME(ECONNABORTED), NAME(ENOPROTOOPT), NAME(EPROTO),     NAME(EMSGSIZE),      NAME(EACCES),
    NAME(EOPNOTSUPP),   NAME(EINTR)};
#undef NAME

}  // namespace

std::optional<int64_t> constant(const std::string& name) {
  if (auto found = kConstants.find(name); found != kConstants.end()) return found->second;
  if (auto found = kErrors.find(name); found != kErrors.end()) return found->second;
  return std::nullopt;
}

std::string errno_name(int number) {
  for (const auto& [name, value] : kErrors)
    if (value == number) return name;
  return std::to_string(number);
}

}  // namespace accel::scripts
