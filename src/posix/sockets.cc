// socket() to getpeername(): which calls go to a File, which need an engine, which are the kernel's.
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/ioctl.h>

#include <algorithm>

#include "base/config.h"
#include "base/real.h"
#include "base/user_memory.h"
#include "engine/lock.h"
#include "engine/stats.h"
#include "posix/call.h"
#include "posix/calls.h"
#include "posix/later_engine.h"
#include "posix/reuseport_programs.h"
#include "posix/same_host.h"
#include "posix/tcp_socket.h"
#include "posix/udp_port_claims.h"
#include "posix/udp_socket.h"

namespace accel::posix {
namespace {

constexpr int kTypeMask = 0xf;  // the kernel's SOCK_TYPE_MASK

bool is_ours(int domain, int type, int protocol) {
  if (domain != AF_INET && domain != AF_INET6) return false;
  if ((type & kTypeMask) == SOCK_STREAM) return protocol == 0 || protocol == IPPROTO_TCP;
  return (type & kTypeMask) == SOCK_DGRAM && (protocol == 0 || protocol == IPPROTO_UDP);
}

/// Whether the address is one that an engine could have a part in.
bool leads_out(const sockaddr* address, socklen_t length, int domain) {
  if (address == nullptr || length < sizeof address->sa_family) return false;
  Result<Endpoint> end = from_sockaddr(address, length, domain);
  return end && is_outside(end->address);
}

/// What the configuration says of iWARP for a connection to that address.
Iwarp iwarp_to(const sockaddr* address, socklen_t length, int domain) {
  if (!config().wants_iwarp || address == nullptr || length < sizeof address->sa_family) return Iwarp::kOff;
  Result<Endpoint> end = from_sockaddr(address, length, domain);
  return end ? config().iwarp_for(Role::kTcpClient, *end) : Iwarp::kOff;
}

/// bind() of a UDP socket is what makes it a receiver; any(): every interface. One that is bound to a group
/// joins it later, by an option, which opens no engine.
bool receives_from_outside(const sockaddr* address, socklen_t length, int domain) {
  if (address == nullptr || length < sizeof address->sa_family) return false;
  Result<Endpoint> end = from_sockaddr(address, length, domain);
  return end && !end->address.is_loopback();
}

/// It never enters the table.
Result<int> left_from_its_start(int fd, Reason reason) {
  if (Result<void> r = Socket::may_use_kernel(reason); !r) {
    real.close(fd);
    return r.error();
  }
  stats::note_kernel(fd, reason);
  return fd;
}

}  // namespace

Result<int> socket(int domain, int type, int protocol) {
  const int fd = real.socket(domain, type, protocol);
  if (fd < 0) return err(errno);
  if (!is_ours(domain, type, protocol)) return fd;
  if (sockets_stay()) return left_from_its_start(fd, sockets_stay_on_kernel.load(std::memory_order_relaxed));
  adopt_listeners();
  if (!in_handler()) find_libcs_clock();
  Guard guard(Pass::Polling::kNo);
  if (!guard.ok()) return fd;
  fds.open();
  fds.erase(fd, guard.pass());  // a descriptor that was closed past us
  Socket* s = nullptr;
  if ((type & kTypeMask) == SOCK_STREAM)
    s = new (std::nothrow) TcpSocket(fd, domain);
  else
    s = new (std::nothrow) UdpSocket(fd, domain);
  if (s == nullptr) return fd;
  s->nonblocking = (type & SOCK_NONBLOCK) != 0;
  if (!fds.insert(fd, s)) delete s;
  return fd;
}

Result<int> bind(int fd, const sockaddr* address, socklen_t length) {
  Result<int> r = serve_opening<int>(
      fd,
      [&](Socket& s) {
        return s.kind() == FileKind::kUdp && receives_from_outside(address, length, s.domain());
      },
      [&](Pass& pass, Socket& s) { return s.bind(pass, address, length); },
      [&] { return real.bind(fd, address, length); });
  if (r) {
    claim_udp_port(fd);
    socket_has_name(fd);
  }
  return r;
}

Result<int> connect(int fd, const sockaddr* address, socklen_t length) {
  if (!fds.owns(fd) && may_disconnect_handed_back(address, length)) {
    Result<int> r = disconnect_handed_back(fd, address, length);
    if (r.ok() || r.error() != kOnKernel) return r;
  }
  if (can_read(address, std::min<size_t>(length, sizeof(sockaddr_storage)))) {
    SocketCall call(fd);
    if (call.error() != Errno{}) return call.error();
    if (Socket* s = call.socket()) {
      const bool stream = s->kind() != FileKind::kUdp;
      const Iwarp iwarp = stream ? iwarp_to(address, length, s->domain()) : Iwarp::kOff;
      const bool out = iwarp != Iwarp::kOff || leads_out(address, length, s->domain());
      if (stream && out && iwarp == Iwarp::kOff && call.pass() == nullptr) {
        const Endpoint remote = *from_sockaddr(address, length, s->domain());
        if (const auto why = begin_engine_later(s->flow_request(Role::kTcpClient, {}, remote))) {
          if (const Errno left = s->detach_undecided(nullptr, *why); left != kOnKernel) return left;
          return from_libc(real.connect(fd, address, length));
        }
      }
      Result<Pass*> pass = call.engine(out);
      if (!pass && iwarp == Iwarp::kRequire) return err(EPROTONOSUPPORT);
      if (!pass && pass.error() != kOnKernel) return pass.error();
      if (pass && *pass != nullptr) {
        Result<int> r = s->connect(**pass, address, length);
        if (r.ok() || r.error() != kOnKernel) return r;
      } else if (pass && stream && is_unspecified(address, length)) {
        s->forget_shut();  // tcp_disconnect()
      } else if (pass && !out && from_sockaddr(address, length, s->domain())) {
        const bool alone = s->descriptors == 1 && !s->elsewhere_too && !s->never_waits();
        if (s->detach_undecided(nullptr, Reason::loopback) == kOnKernel && alone) candidates.add(fd);
      }
    }
  }
  return from_libc(real.connect(fd, address, length));
}

Result<int> listen(int fd, int backlog) {
  bool never_waits = false;
  Result<int> r = serve_opening<int>(
      fd,
      [&](Socket& s) {
        never_waits = s.never_waits();
        if (s.kind() != FileKind::kTcp || s.inherited != File::Inherited::kNo) return false;
        const Endpoint local = s.shadow_name();
        // The kernel answers while the engine starts, which takes milliseconds. Where it cannot listen no
        // engine is needed.
        if (!local.address.is_loopback()) return config().waits_for_ports() || real.listen(fd, backlog) == 0;
        if (config().iwarp_for(Role::kTcpServer, local) != Iwarp::kOff) return true;
        (void)s.detach_undecided(nullptr, Reason::loopback);  // no engine is needed to know that
        return false;
      },
      [&](Pass& pass, Socket& s) { return s.listen(pass, backlog); },
      [&] { return real.listen(fd, backlog); }, Use::kAside);
  if (r && !fds.owns(fd) && !never_waits) candidates.add_listener(fd);
  return r;
}

Result<int> accept4(int fd, sockaddr* address, socklen_t* length, int flags) {
  return serve<int>(
      fd, [&](Pass& pass, Socket& s) { return s.accept(pass, address, length, flags); },
      [&] { return real.accept4(fd, address, length, flags); });
}

Result<int> shutdown(int fd, int how) {
  {
    SocketCall call(fd, Pass::Polling::kYes, Use::kAside);
    if (call.error() != Errno{}) return call.error();
    Socket* s = call.socket();
    if (s != nullptr && call.pass() == nullptr && how >= SHUT_RD && how <= SHUT_RDWR) s->note_shut(how);
    if (s != nullptr && call.pass() != nullptr) {
      Result<int> r = s->shutdown(*call.pass(), how);
      if (r.ok() || r.error() != kOnKernel) return r;
    }
  }
  return from_libc(real.shutdown(fd, how));
}

Result<int> getsockname(int fd, sockaddr* address, socklen_t* length) {
  return serve<int>(
      fd, [&](Pass& pass, Socket& s) { return s.getsockname(pass, address, length); },
      [&] { return real.getsockname(fd, address, length); }, Use::kAside);
}

Result<int> getpeername(int fd, sockaddr* address, socklen_t* length) {
  return serve<int>(
      fd, [&](Pass& pass, Socket& s) { return s.getpeername(pass, address, length); },
      [&] { return real.getpeername(fd, address, length); }, Use::kAside);
}

}  // namespace accel::posix
