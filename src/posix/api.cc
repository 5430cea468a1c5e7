#include "posix/api.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/auxv.h>

#include <optional>

#include "base/private_fds.h"
#include "base/real.h"
#include "base/socket_option.h"
#include "engine/leases.h"
#include "engine/stats.h"
#include "posix/call.h"
#include "posix/lease.h"
#include "posix/published.h"
#include "posix/tcp_socket.h"

namespace accel::posix {
namespace {

constexpr char kNotNoted[] = "not noted: the socket came past libaccel, or the setting stats is off";

bool is_of_internet(int fd) {
  const int domain = int_option(fd, SOL_SOCKET, SO_DOMAIN);
  const int protocol = int_option(fd, SOL_SOCKET, SO_PROTOCOL);
  return (domain == AF_INET || domain == AF_INET6) && (protocol == IPPROTO_TCP || protocol == IPPROTO_UDP);
}

int ifindex_of(Pass& pass, const TcpConn* conn, const BoundFlow* flow) {
  if (conn != nullptr) return pass.engine().ifindex_of(pass, *conn);
  return flow != nullptr ? pass.engine().ifindex_of(pass, *flow) : 0;
}

Description of_path(PathKind path, std::optional<Reason> reason, uint8_t detail) {
  Description d;
  d.path = path;
  d.path_name = path_name(path);
  d.reason = reason ? reason_name(*reason) : "unknown";
  d.text = reason ? reason_text(*reason) : kNotNoted;
  if (reason && stats::has_detail(*reason)) d.detail = stats::detail_text(detail);
  return d;
}

Description describe_ours(Pass* pass, const Socket& s) {
  const PathChoice choice = path_of(pass, s);
  Description d = of_path(choice.shown(), choice.reason, choice.detail);
  if (pass == nullptr || !choice.accelerated()) return d;
  const bool tcp = s.kind() == FileKind::kTcp;
  const TcpConn* conn = tcp ? static_cast<const TcpSocket&>(s).conn() : nullptr;
  d.ifindex = ifindex_of(*pass, conn, s.bound_flow());
  d.listens = tcp && conn == nullptr;
  d.lends = !d.listens;
  return d;
}

Description describe_kernels(int fd, bool off) {
  if (!is_of_internet(fd)) return of_path(PathKind::kKernel, Reason::not_internet, 0);
  if (const auto note = stats::kernel_note(fd, fds.limit()))
    return of_path(PathKind::kKernel, note->reason, note->detail);
  std::optional<Reason> reason;
  if (sockets_stay())
    reason = sockets_stay_on_kernel.load(std::memory_order_relaxed);
  else if (off)
    reason = getauxval(AT_SECURE) != 0 ? Reason::secure : Reason::disabled;
  return of_path(PathKind::kKernel, reason, 0);
}

}  // namespace

Result<Description> describe(int fd, bool off) {
  if (is_private(fd) || real.fcntl(fd, F_GETFD) < 0) return err(EBADF);
  if (fds.owns(fd)) {
    Guard guard(Pass::Polling::kNo);
    if (!guard.ok()) return err(EAGAIN);
    if (const Socket* s = find_socket(fd)) return describe_ours(guard.pass(), *s);
  }
  return describe_kernels(fd, off);
}

Result<ssize_t> receive_lease(int fd, LeaseCall& call) {
  if ((call.flags & ~MSG_DONTWAIT) != 0 || call.room == 0) return err(EINVAL);
  {
    SocketCall on(fd);
    if (on.error() != Errno{}) return on.error();
    if (on.socket() != nullptr && on.pass() != nullptr) {
      Result<ssize_t> r = on.socket()->lend(*on.pass(), call);
      if (r.ok() || r.error() != kOnKernel) return r;
    }
  }
  if (is_private(fd) || real.fcntl(fd, F_GETFD) < 0) return err(EBADF);
  return int_option(fd, SOL_SOCKET, SO_TYPE, -1) < 0 ? err(ENOTSOCK) : err(EOPNOTSUPP);
}

Result<void> release_lease(uint64_t number) {
  Guard guard(Pass::Polling::kNo);
  if (!guard.ok()) return err(EAGAIN);
  Pass* pass = guard.pass();
  if (pass == nullptr || !pass->engine().leases(*pass).end(number)) return err(EINVAL);
  return {};
}

void set_thread_spin(int longest) { Engine::set_thread_spin(std::chrono::microseconds(longest)); }

int thread_spin() {
  return static_cast<int>(std::chrono::floor<std::chrono::microseconds>(Engine::thread_spin()).count());
}

}  // namespace accel::posix
