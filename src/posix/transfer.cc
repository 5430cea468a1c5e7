// Every way to read and write bytes, as recvmsg() and sendmsg().
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
#include "posix/wait.h"

namespace accel::posix {
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

bool leads_out(const msghdr& m, int domain) {
  if (m.msg_name == nullptr) return false;
  Result<Endpoint> to = from_sockaddr(static_cast<const sockaddr*>(m.msg_name), m.msg_namelen, domain);
  return to && !to->address.is_any() && !to->address.is_loopback() && !to->address.is_multicast();
}

/// MSG_FASTOPEN has the shadow connect, in plain TCP.
bool only_as_iwarp(const msghdr& m, int domain) {
  if (!config().wants_iwarp || m.msg_name == nullptr) return false;
  Result<Endpoint> to = from_sockaddr(static_cast<const sockaddr*>(m.msg_name), m.msg_namelen, domain);
  return to && config().iwarp_for(Role::kTcpClient, *to) == Iwarp::kRequire;
}

/// What copying in a message's name and control does: EFAULT for those that are not there.
bool can_read_parts(const msghdr& m) {
  const size_t name = m.msg_name == nullptr ? 0 : std::min<size_t>(m.msg_namelen, sizeof(sockaddr_storage));
  return can_read(m.msg_name, name) && can_read(m.msg_control, m.msg_controllen);
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
      const bool wants = !stream && call.pass() == nullptr && leads_out(*message, s->domain());
      if (stream && (flags & MSG_FASTOPEN) != 0) {
        if (only_as_iwarp(*message, s->domain())) return err(EOPNOTSUPP);  // as where tcp_fastopen is off
        s->veto = Reason::option;
      }
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

Result<ssize_t> send_message(int fd, const msghdr* message, int flags, Pass::Polling polling) {
  msghdr m;
  if (!get_user(m, message)) return from_libc(real.sendmsg(fd, message, flags));
  return transmit(
      fd, &m, flags, [&] { return real.sendmsg(fd, message, flags); }, polling);
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

/// What recvmmsg() does first (do_recvmmsg()): a pending error comes before what is queued, as recvmsg() on a
/// datagram socket has it anyway.
Result<void> pending_error(int fd, bool reads) {
  {
    SocketCall call(fd, Pass::Polling::kNo);
    if (reads && call.socket() != nullptr && call.socket()->kind() == FileKind::kUdp) return {};
  }
  int error = 0;
  socklen_t size = sizeof error;
  Result<int> r = posix::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (r && error != 0) return err(error);
  return {};
}

/// An error behind messages that were received.
void keep_error(int fd, Errno error) {
  SocketCall call(fd, Pass::Polling::kNo);
  if (call.socket() != nullptr && call.pass() != nullptr) call.socket()->keep_error(*call.pass(), error);
}

}  // namespace

Result<ssize_t> recvmsg(int fd, msghdr* message, int flags) {
  msghdr m;
  // Where it cannot be read, or its name has a negative size, the kernel says so.
  const bool sound = get_user(m, message) && (m.msg_name == nullptr || static_cast<int>(m.msg_namelen) >= 0);
  if (!sound) return from_libc(real.recvmsg(fd, message, flags));
  bool kernel = false;
  Result<ssize_t> r = receive(fd, &m, flags & ~MSG_CMSG_CLOEXEC, [&] {
    kernel = true;
    return real.recvmsg(fd, message, flags);
  });
  if (!r || kernel) return r;
  if ((flags & MSG_CMSG_CLOEXEC) != 0) m.msg_flags |= MSG_CMSG_CLOEXEC;  // as ____sys_recvmsg leaves it
  const bool named = m.msg_name == nullptr || put_user(&message->msg_namelen, m.msg_namelen);
  if (!named || !put_user(&message->msg_controllen, m.msg_controllen) ||
      !put_user(&message->msg_flags, m.msg_flags))
    return err(EFAULT);
  return r;
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

namespace {

/// What is left of `limit` since `begin`; nothing: {0, 0}.
timespec left_of(const timespec& limit, const timespec& begin) {
  timespec now{};
  real.clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t left = (limit.tv_sec - (now.tv_sec - begin.tv_sec)) * 1000000000 + limit.tv_nsec -
                       (now.tv_nsec - begin.tv_nsec);
  return left <= 0 ? timespec{} : timespec{left / 1000000000, left % 1000000000};
}

}  // namespace

/// do_recvmmsg(): the timeout is looked at, and told, behind datagrams only; an error behind some is the next
/// call's.
Result<int> recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout) {
  if (!fds.owns(fd)) return from_libc(real.recvmmsg(fd, messages, count, flags, timeout));
  timespec limit{}, begin{};
  if (timeout != nullptr && !get_user(limit, timeout)) return err(EFAULT);
  if (limit.tv_sec < 0 || limit.tv_nsec < 0 || limit.tv_nsec >= 1000000000) return err(EINVAL);
  if (timeout != nullptr) real.clock_gettime(CLOCK_MONOTONIC, &begin);
  timespec left = limit;
  if ((flags & MSG_ERRQUEUE) == 0)
    if (Result<void> r = pending_error(fd, count > 0); !r) return r.error();
  unsigned n = 0;
  int each = flags & ~MSG_WAITFORONE;
  while (n < count) {
    const MovedScope moved(n > 0);
    Result<ssize_t> r = posix::recvmsg(fd, &messages[n].msg_hdr, each);
    if (r && !put_user(&messages[n].msg_len, static_cast<unsigned>(*r))) r = err(EFAULT);
    if (!r && n == 0) return r.error();
    if (!r && !r.is(EAGAIN)) keep_error(fd, r.error());
    if (!r) break;
    ++n;
    if ((flags & MSG_WAITFORONE) != 0) each |= MSG_DONTWAIT;
    if (timeout != nullptr) left = left_of(limit, begin);
    const bool over = timeout != nullptr && left.tv_sec == 0 && left.tv_nsec == 0;
    if (over || (messages[n - 1].msg_hdr.msg_flags & MSG_OOB) != 0) break;
  }
  if (timeout != nullptr && n > 0 && !put_user(timeout, left)) return err(EFAULT);
  return static_cast<int>(n);
}

Result<int> sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  if (!fds.owns(fd)) return from_libc(real.sendmmsg(fd, messages, count, flags));
  if (count > IOV_MAX) count = IOV_MAX;  // UIO_MAXIOV
  unsigned n = 0;
  for (; n < count; ++n) {
    const MovedScope moved(n > 0);
    // What the last message brought, as a reset, is there on a short way, and stops the kernel.
    const auto polling = n > 0 ? Pass::Polling::kYes : Pass::Polling::kSeldom;
    Result<ssize_t> r = send_message(fd, &messages[n].msg_hdr, flags, polling);
    if (!r && n == 0) return r.error();
    if (!r) break;
    if (!put_user(&messages[n].msg_len, static_cast<unsigned>(*r)))
      return n > 0 ? Result<int>(static_cast<int>(n)) : err(EFAULT);
    const Result<size_t> whole = iov_bytes(messages[n].msg_hdr);
    if (whole && static_cast<size_t>(*r) < *whole) return static_cast<int>(n) + 1;  // no room for all of it
  }
  return static_cast<int>(n);
}

}  // namespace accel::posix
