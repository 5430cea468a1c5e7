// recvmmsg() and sendmmsg(). Datagrams of one call are moved under one lock, as far as they need not wait:
// what a sendmmsg() sends goes to the device together.
#include <errno.h>

#include "base/real.h"
#include "base/user_memory.h"
#include "posix/call.h"
#include "posix/calls.h"
#include "posix/iov_cursor.h"
#include "posix/transfer.h"
#include "posix/wait.h"

namespace accel::posix {
namespace {

/// The first step of recvmmsg() (do_recvmmsg()): a pending error comes before what is queued, as recvmsg() on
/// a datagram socket has it anyway.
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

/// What is left of `limit` since `begin`; nothing: {0, 0}.
timespec left_of(const timespec& limit, const timespec& begin) {
  timespec now{};
  real.clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t left = (limit.tv_sec - (now.tv_sec - begin.tv_sec)) * 1000000000 + limit.tv_nsec -
                       (now.tv_nsec - begin.tv_nsec);
  return left <= 0 ? timespec{} : timespec{left / 1000000000, left % 1000000000};
}

/// So many at once: other threads want the lock.
constexpr unsigned kBatch = 64;

struct Batch {
  unsigned moved = 0;  ///< messages
  Errno error{};  ///< of the one behind them. 0: that one is for the call for one message, if there is one.
  bool kernels = false;  ///< The socket has given the one behind them to the kernel. It is not asked again.
};

/// The UDP socket of ours, as one that moves datagrams now.
Socket* datagrams_of(SocketCall& call) {
  Socket* s = call.socket();
  return call.error() == Errno{} && call.pass() != nullptr && s != nullptr && s->kind() == FileKind::kUdp
             ? s
             : nullptr;
}

/// Polling before the message behind so many of the call: a reset that the last one brought is there on a
/// short way, and stops the kernel.
Pass::Polling polling_behind(unsigned sent) {
  return sent > 0 ? Pass::Polling::kYes : Pass::Polling::kSeldom;
}

/// `before`: messages of the call that have been sent.
Batch send_batch(int fd, mmsghdr* messages, unsigned before, unsigned count, int flags) {
  SocketCall call(fd, polling_behind(before), Use::kSend);
  Socket* s = datagrams_of(call);
  Batch batch;
  for (; s != nullptr && batch.moved < std::min(count, kBatch); ++batch.moved) {
    const MovedScope moved(before + batch.moved > 0);
    mmsghdr& to = messages[batch.moved];
    msghdr m;
    if (!get_user(m, &to.msg_hdr) || !can_read_parts(m)) break;
    Result<ssize_t> r = s->sendmsg(*call.pass(), &m, flags);
    if (r && !put_user(&to.msg_len, static_cast<unsigned>(*r))) r = err(EFAULT);
    if (r) continue;
    batch.kernels = r.error() == kOnKernel;
    if (!batch.kernels) batch.error = r.error();
    break;
  }
  return batch;
}

Batch receive_batch(int fd, mmsghdr* messages, unsigned count, int flags) {
  SocketCall call(fd);
  Socket* s = datagrams_of(call);
  const bool waits = (flags & MSG_DONTWAIT) == 0 && s != nullptr && !s->nonblocking;
  Batch batch;
  for (; s != nullptr && batch.moved < std::min(count, kBatch); ++batch.moved) {
    mmsghdr& into = messages[batch.moved];
    msghdr m;
    if (!take_header(m, &into.msg_hdr)) break;
    Result<ssize_t> r = s->recvmsg(*call.pass(), &m, (flags & ~MSG_CMSG_CLOEXEC) | MSG_DONTWAIT);
    if (r && !(give_header(m, &into.msg_hdr, flags) && put_user(&into.msg_len, static_cast<unsigned>(*r))))
      r = err(EFAULT);
    if (r) continue;
    if (r.error() != kOnKernel && !(waits && r.is(EAGAIN))) batch.error = r.error();
    break;
  }
  return batch;
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
    if (timeout == nullptr) {
      const Batch batch = receive_batch(fd, messages + n, count - n, each);
      n += batch.moved;
      if (batch.error != Errno{}) {
        if (n == 0) return batch.error;
        if (batch.error != Errno{EAGAIN}) keep_error(fd, batch.error);
        break;
      }
      if (n == count) break;
      if (n > 0 && (flags & MSG_WAITFORONE) != 0) each |= MSG_DONTWAIT;
    }
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
  while (n < count) {
    const Batch batch = send_batch(fd, messages + n, n, count - n, flags);
    n += batch.moved;
    if (batch.error != Errno{} && n == 0) return batch.error;
    if (batch.error != Errno{} || n == count) break;
    if (batch.moved == kBatch) continue;
    const MovedScope moved(n > 0);
    msghdr* message = &messages[n].msg_hdr;
    Result<ssize_t> r = batch.kernels ? from_libc(real.sendmsg(fd, message, flags))
                                      : send_message(fd, message, flags, polling_behind(n));
    if (!r && n == 0) return r.error();
    if (!r) break;
    if (!put_user(&messages[n].msg_len, static_cast<unsigned>(*r)))
      return n > 0 ? Result<int>(static_cast<int>(n)) : err(EFAULT);
    const Result<size_t> whole = iov_bytes(messages[n].msg_hdr);
    ++n;
    if (whole && static_cast<size_t>(*r) < *whole) break;  // no room for all of it
  }
  return static_cast<int>(n);
}

}  // namespace accel::posix
