// Sockets that other processes have opened: listeners that came by exec(), listeners and bound UDP sockets
// that came in a message (SCM_RIGHTS). Programs use them without socket(), listen() or bind(), so nothing
// else would tell us. Programs that are started with some (by systemd, by nginx's old binary) make a set or a
// socket at some time, or say LISTEN_FDS.
#include <netinet/in.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <climits>

#include "base/real.h"
#include "base/socket_option.h"
#include "posix/calls.h"
#include "posix/guard.h"
#include "posix/process.h"
#include "posix/rights.h"
#include "posix/tcp_socket.h"
#include "posix/udp_socket.h"
#include "posix/unix_rendezvous.h"

namespace accel::posix {
namespace {

/// Descriptors that are looked at; a descriptor that is not open costs 0.1 µs.
constexpr int kLooked = 128;

bool internet(int fd, int* domain) {
  *domain = int_option(fd, SOL_SOCKET, SO_DOMAIN, AF_UNSPEC);
  return *domain == AF_INET || *domain == AF_INET6;
}

bool tcp_listener(int fd) {
  return int_option(fd, SOL_SOCKET, SO_ACCEPTCONN) == 1 &&
         int_option(fd, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP;
}

/// Bound by its program to receive from anybody.
bool udp_receiver(int fd) {
  sockaddr_storage peer;
  socklen_t size = sizeof peer;
  return int_option(fd, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_UDP &&
         real.getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0;
}

/// This process has passed some on, and may have them open still (under the lock).
bool has_passed = false;

/// What is the kernel's by one descriptor cannot be ours by another.
bool kernels_elsewhere(int fd, uint64_t cookie) {
  rlimit most{};
  if (!has_passed || getrlimit(RLIMIT_NOFILE, &most) != 0) return has_passed;
  for (int other = 0; other < static_cast<int>(std::min<rlim_t>(most.rlim_cur, INT_MAX)); ++other)
    if (other != fd && !fds.owns(other) && cookie_of(other) == cookie) return true;
  return false;
}

/// The file that has this socket by another descriptor: it came twice, or from this process's own child.
File* file_of(uint64_t cookie) {
  for (int fd = 0; fd < fds.limit(); ++fd) {
    File* file = fds.find(fd);
    const bool socket = file != nullptr && (file->kind() == FileKind::kTcp || file->kind() == FileKind::kUdp);
    if (socket && !file->carries_connection() && cookie_of(fd) == cookie) return file;
  }
  return nullptr;
}

void adopt_one(int fd, Guard& guard) {
  fds.erase(fd, guard.pass());  // one that was closed past us
  int domain = 0;
  if (!internet(fd, &domain)) return;
  const bool listens = tcp_listener(fd);
  if (!listens && !udp_receiver(fd)) return;
  const uint64_t cookie = cookie_of(fd);
  if (cookie == 0) return;
  fds.open();
  if (File* known = file_of(cookie)) return (void)fds.insert(fd, known);
  if (kernels_elsewhere(fd, cookie)) return;
  Socket* s = nullptr;
  if (listens)
    s = TcpSocket::received(fd, domain);
  else
    s = UdpSocket::received(fd, domain);
  if (s == nullptr) return;
  s->elsewhere_too = true;
  const Endpoint local = s->shadow_name();
  const bool wanted = local.port != 0 && !local.address.is_loopback() && !local.address.is_multicast();
  if (!wanted || !fds.insert(fd, s))
    delete s;
  else if (listens)
    static_cast<TcpSocket*>(s)->open_own_handoff_socket();  // whoever gave it may end before it is used
}

}  // namespace

void adopt_listeners() {
  static std::atomic<bool> done{false};
  if (done.load(std::memory_order_relaxed) || sockets_stay()) return;
  const int saved = errno;
  Guard guard(Pass::Polling::kNo);
  if (!guard.ok() || done.exchange(true)) return;
  for (int fd = 0; fd < kLooked; ++fd) {
    int domain = 0;
    if (fds.owns(fd) || !tcp_listener(fd) || !internet(fd, &domain)) continue;
    fds.open();
    TcpSocket* s = TcpSocket::received(fd, domain);
    if (s == nullptr) continue;
    s->elsewhere_too = true;
    s->came_by_exec();
    if (!fds.insert(fd, s)) delete s;
  }
  errno = saved;
}

void adopt_received(const msghdr& message) {
  each_descriptor_in(message, [](int fd) {
    adopt_received(fd);
    return true;
  });
}

void adopt_received(int fd) {
  if (sockets_stay()) return;
  const int saved = errno;
  Guard guard(Pass::Polling::kNo);
  if (guard.ok()) adopt_one(fd, guard);
  errno = saved;
}

void note_passed() { has_passed = true; }

}  // namespace accel::posix
