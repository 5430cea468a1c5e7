// Listening sockets that came by exec(). Programs that are started with some (by systemd, by nginx's old
// binary) use them without socket() or listen(), so nothing would tell us; they make a set or a socket at
// some time, or say LISTEN_FDS.
#include <netinet/in.h>

#include <atomic>

#include "base/real.h"
#include "posix/calls.h"
#include "posix/guard.h"
#include "posix/tcp_socket.h"

namespace accel::posix {
namespace {

/// Descriptors that are looked at; a descriptor that is not open costs 0.1 µs.
constexpr int kLooked = 128;

bool option_is(int fd, int name, int wanted, int* value = nullptr) {
  int got = -1;
  socklen_t size = sizeof(got);
  if (real.getsockopt(fd, SOL_SOCKET, name, &got, &size) != 0) return false;
  if (value != nullptr) *value = got;
  return value != nullptr || got == wanted;
}

}  // namespace

void adopt_listeners() {
  static std::atomic<bool> done{false};
  if (done.load(std::memory_order_relaxed) || sockets_stay_on_kernel.load(std::memory_order_relaxed)) return;
  const int saved = errno;
  Guard guard(Pass::Polling::kNo);
  if (!guard.ok() || done.exchange(true)) return;
  for (int fd = 0; fd < kLooked; ++fd) {
    int domain = 0;
    if (fds.owns(fd) || !option_is(fd, SO_ACCEPTCONN, 1) || !option_is(fd, SO_PROTOCOL, IPPROTO_TCP) ||
        !option_is(fd, SO_DOMAIN, 0, &domain) || (domain != AF_INET && domain != AF_INET6))
      continue;
    fds.open();
    TcpSocket* s = TcpSocket::from_exec(fd, domain);
    if (s != nullptr && !fds.insert(fd, s)) delete s;
  }
  errno = saved;
}

}  // namespace accel::posix
