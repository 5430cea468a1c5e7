// Every way to read and write bytes, as recvmsg() and sendmsg().
#include "posix/transfer.h"

#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/config.h"
#include "base/real.h"
#include "base/user_memory.h"
#include "posix/call.h"
#include "posix/calls.h"
#include "posix/iov_cursor.h"
#include "posix/udp_socket.h"
#include "posix/wait.h"

namespace accel::posix {

bool can_read_parts(const msghdr& m) {
  const size_t name = m.msg_name == nullptr ? 0 : std::min<size_t>(m.msg_namelen, sizeof(sockaddr_storage));
  return can_read(m.msg_name, name) && can_read(m.msg_control, m.msg_controllen);
}

namespace {

/// What write() on a broken stream does besides EPIPE. Outside of the lock: the handler may use sockets.
void raise_sigpipe() { real.syscall(SYS_tgkill, getpid(), real.syscall(SYS_gettid), SIGPIPE); }

template <class Kernel>
Result<ssize_t> receive(int fd, msghdr* message, int flags, Kernel kernel) {
  return serve_opening<ssize_t>(
      fd,
      // A datagram socket that waits without a name may get one, and datagrams, by another thread's send().
      [&](Socket& s) {
        return s.kind() == FileKind::kUdp && (flags & (MSG_DONTWAIT | MSG_ERRQUEUE)) == 0 && !s.nonblocking &&
               s.shadow_name().port == 0;
      },
      [&](Pass& pass, Socket& s) { return s.recvmsg(pass, message, flags); }, kernel);
}

bool leads_out(const msghdr& m, const Socket& s) {
  if (m.msg_name == nullptr) return false;
  Result<Endpoint> to = from_sockaddr(static_cast<const sockaddr*>(m.msg_name), m.msg_namelen, s.domain());
  if (!to || !is_outside(to->address)) return false;
  if (!to->address.is_multicast()) return true;
  if (config().settings.require != Require::kOff) return true;  // the engine says whether it may be sent
  return s.kind() == FileKind::kUdp && static_cast<const UdpSocket&>(s).may_send_to_group(*to);
}

/// MSG_FASTOPEN connects in plain TCP.
bool only_as_iwarp(const msghdr& m, int domain) {
  if (!config().wants_iwarp || m.msg_name == nullptr) return false;
  Result<Endpoint> to = from_sockaddr(static_cast<const sockaddr*>(m.msg_name), m.msg_namelen, domain);
  return to && config().iwarp_for(Role::kTcpClient, *to) == Iwarp::kRequire;
}

template <class Kernel>
Result<ssize_t> transmit(int fd, const msghdr* message, int flags, Kernel kernel,
                         Pass::Polling polling = Pass::Polling::kSeldom) {
  bool stream = false;
  Result<ssize_t> r = kOnKernel;
  // An ACK that has come by now lets go what an earlier MSG_MORE held back, and not this call's.
  if ((flags & MSG_MORE) != 0) polling = Pass::Polling::kYes;
  {
    SocketCall call(fd, polling, Use::kSend);
    if (call.error() != Errno{}) return call.error();
    Socket* s = can_read_parts(*message) ? call.socket() : nullptr;
    if (s != nullptr) {
      stream = s->kind() != FileKind::kUdp;
      const bool opens = !stream || (flags & MSG_FASTOPEN) != 0;
      const bool wants = opens && call.pass() == nullptr && leads_out(*message, *s);
      if (stream && opens && only_as_iwarp(*message, s->domain()))
        return err(EOPNOTSUPP);  // as where tcp_fastopen is off
      Result<Pass*> pass = call.engine(wants);
      if (!pass)
        r = pass.error();
      else if (*pass != nullptr)
        r = s->sendmsg(**pass, message, flags);
    }
  }
  if (!r.ok() && r.error() == kOnKernel) return from_libc(kernel());
  if (r.is(EPIPE) && stream && (flags & MSG_NOSIGNAL) == 0) raise_sigpipe();
  return r;
}

msghdr one_buffer(iovec* v, sockaddr* name, socklen_t name_length) {
  msghdr m{};
  m.msg_name = name;
  m.msg_namelen = name_length;
  m.msg_iov = v;
  m.msg_iovlen = 1;
  return m;
}

/// What readv() and writev() move, in the order of vfs_readv(): no bytes are no call at all, not even an
/// empty datagram. Of the flags RWF_NOWAIT is MSG_DONTWAIT (`wait`), the others that are known mean nothing
/// to a socket (sock_read_iter()).
struct Vector {
  msghdr message{};
  Result<size_t> bytes = 0;
  int flags = 0;
  Vector(const iovec* vector, int count, int rw_flags) {
    message.msg_iov = const_cast<iovec*>(vector);
    message.msg_iovlen = static_cast<size_t>(count);
    bytes = count < 0 || count > IOV_MAX ? err(EINVAL) : iov_bytes(message);  // sendmsg() says EMSGSIZE
    constexpr int kKnown = RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_NOWAIT | RWF_APPEND;
    if (bytes && *bytes != 0 && (rw_flags & ~kKnown) != 0) bytes = err(EOPNOTSUPP);
    flags = (rw_flags & RWF_NOWAIT) != 0 ? MSG_DONTWAIT : 0;
  }
  bool moves() const { return bytes && *bytes != 0; }
  Result<ssize_t> nothing() const { return bytes ? Result<ssize_t>(0) : bytes.error(); }
};

}  // namespace

Result<ssize_t> send_message(int fd, const msghdr* message, int flags, Pass::Polling polling) {
  msghdr m;
  if (!get_user(m, message)) return from_libc(real.sendmsg(fd, message, flags));
  return transmit(
      fd, &m, flags, [&] { return real.sendmsg(fd, message, flags); }, polling);
}

bool take_header(msghdr& m, const msghdr* message) {
  return get_user(m, message) && (m.msg_name == nullptr || static_cast<int>(m.msg_namelen) >= 0);
}

bool give_header(msghdr& m, msghdr* message, int flags) {
  if ((flags & MSG_CMSG_CLOEXEC) != 0) m.msg_flags |= MSG_CMSG_CLOEXEC;  // as ____sys_recvmsg leaves it
  const bool named = m.msg_name == nullptr || put_user(&message->msg_namelen, m.msg_namelen);
  return named && put_user(&message->msg_controllen, m.msg_controllen) &&
         put_user(&message->msg_flags, m.msg_flags);
}

Result<ssize_t> recvmsg(int fd, msghdr* message, int flags) {
  msghdr m;
  if (!take_header(m, message)) return from_libc(real.recvmsg(fd, message, flags));
  bool kernel = false;
  Result<ssize_t> r = receive(fd, &m, flags & ~MSG_CMSG_CLOEXEC, [&] {
    kernel = true;
    return real.recvmsg(fd, message, flags);
  });
  if (!r || kernel) return r;
  return give_header(m, message, flags) ? r : err(EFAULT);
}

Result<ssize_t> recvfrom(int fd, void* data, size_t size, int flags, sockaddr* from, socklen_t* from_length) {
  iovec v{data, std::min(size, kMostBytes)};
  sockaddr_storage name;
  msghdr m = from == nullptr ? one_buffer(&v, nullptr, 0)
                             : one_buffer(&v, reinterpret_cast<sockaddr*>(&name), sizeof name);
  bool kernel = false;
  Result<ssize_t> r = receive(fd, &m, flags, [&] {
    kernel = true;
    return real.recvfrom(fd, data, size, flags, from, from_length);
  });
  if (!r || kernel || from == nullptr) return r;
  Result<void> named = put_address(&name, m.msg_namelen, from, from_length);
  return named ? r : named.error();
}

Result<ssize_t> recv(int fd, void* data, size_t size, int flags) {
  iovec v{data, std::min(size, kMostBytes)};
  msghdr m = one_buffer(&v, nullptr, 0);
  return receive(fd, &m, flags, [&] { return real.recv(fd, data, size, flags); });
}

Result<ssize_t> readv(int fd, const iovec* vector, int count, int flags) {
  Vector v(vector, count, flags);
  if (!v.moves()) return v.nothing();
  return receive(fd, &v.message, v.flags, [&] { return real.preadv2(fd, vector, count, -1, flags); });
}

Result<ssize_t> sendmsg(int fd, const msghdr* message, int flags) {
  return send_message(fd, message, flags, Pass::Polling::kSeldom);
}

Result<ssize_t> sendto(int fd, const void* data, size_t size, int flags, const sockaddr* to,
                       socklen_t to_length) {
  iovec v{const_cast<void*>(data), std::min(size, kMostBytes)};
  const msghdr m = one_buffer(&v, const_cast<sockaddr*>(to), to != nullptr ? to_length : 0);
  return transmit(fd, &m, flags, [&] { return real.sendto(fd, data, size, flags, to, to_length); });
}

Result<ssize_t> send(int fd, const void* data, size_t size, int flags) {
  iovec v{const_cast<void*>(data), std::min(size, kMostBytes)};
  const msghdr m = one_buffer(&v, nullptr, 0);
  return transmit(fd, &m, flags, [&] { return real.send(fd, data, size, flags); });
}

Result<ssize_t> writev(int fd, const iovec* vector, int count, int flags) {
  Vector v(vector, count, flags);
  if (!v.moves()) return v.nothing();
  return transmit(fd, &v.message, v.flags, [&] { return real.pwritev2(fd, vector, count, -1, flags); });
}

}  // namespace accel::posix
