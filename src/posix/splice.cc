// sendfile() and splice() on sockets of ours, through a buffer, with the kernel's partial results: nothing is
// taken from the source that the other end did not take.
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "base/real.h"
#include "base/user_memory.h"
#include "posix/call.h"
#include "posix/calls.h"
#include "posix/iov_cursor.h"
#include "posix/wait.h"

namespace accel::posix {
namespace {

constexpr size_t kChunk = 64 * 1024;

bool is_pipe(int fd) {
  struct stat s {};
  return real.fstat(fd, &s) == 0 && S_ISFIFO(s.st_mode);
}

bool is_nonblocking(int fd) {
  const int flags = real.fcntl(fd, F_GETFL);
  return flags >= 0 && (flags & O_NONBLOCK) != 0;
}

bool is_socket(int fd) {
  Guard guard(Pass::Polling::kNo);
  if (guard.pass() != nullptr) guard.pass()->in_turn();
  return guard.ok() && find_socket(fd) != nullptr;
}

/// tee() copies what is in the pipe without taking it; what was sent is read off afterwards.
Result<ssize_t> pipe_to_socket(int in, int out, size_t size, bool nonblocking) {
  int scratch[2];
  if (real.pipe2(scratch, O_CLOEXEC) != 0) return err(errno);
  auto buffer = std::make_unique_for_overwrite<char[]>(kChunk);
  Result<ssize_t> r = from_libc(real.tee(in, scratch[1], std::min(size, kChunk),
                                         nonblocking || is_nonblocking(in) ? SPLICE_F_NONBLOCK : 0u));
  if (r && *r > 0) r = from_libc(real.read(scratch[0], buffer.get(), static_cast<size_t>(*r)));
  if (r && *r > 0)
    r = posix::send(out, buffer.get(), static_cast<size_t>(*r), nonblocking ? MSG_DONTWAIT : 0);
  for (ssize_t left = r && *r > 0 ? *r : 0; left > 0;) {
    const ssize_t n = real.read(in, buffer.get(), static_cast<size_t>(left));
    if (n <= 0) break;
    left -= n;
  }
  real.close(scratch[0]);
  real.close(scratch[1]);
  return r;
}

/// Peeks, moves to the pipe as much as it takes by way of a pipe of our own, then drops that from the socket.
Result<ssize_t> socket_to_pipe(int in, int out, size_t size, bool nonblocking) {
  auto buffer = std::make_unique_for_overwrite<char[]>(kChunk);
  Result<ssize_t> r =
      posix::recv(in, buffer.get(), std::min(size, kChunk), MSG_PEEK | (nonblocking ? MSG_DONTWAIT : 0));
  if (!r || *r == 0) return r;
  int scratch[2];
  if (real.pipe2(scratch, O_CLOEXEC | O_NONBLOCK) != 0) return err(errno);
  r = from_libc(real.write(scratch[1], buffer.get(), static_cast<size_t>(*r)));
  if (r)
    r = from_libc(real.splice(scratch[0], nullptr, out, nullptr, static_cast<size_t>(*r),
                              nonblocking || is_nonblocking(out) ? SPLICE_F_NONBLOCK : 0u));
  if (r && *r > 0) (void)posix::recv(in, buffer.get(), static_cast<size_t>(*r), MSG_DONTWAIT);
  real.close(scratch[0]);
  real.close(scratch[1]);
  return r;
}

}  // namespace

Result<ssize_t> sendfile(int out, int in, off_t* offset, size_t count) {
  if (!is_socket(out)) return from_libc(real.sendfile(out, in, offset, count));
  off_t at = 0;
  if (offset == nullptr)
    at = ::lseek(in, 0, SEEK_CUR);
  else if (!get_user(at, offset))
    return err(EFAULT);
  if (offset == nullptr && at < 0) return err(errno == ESPIPE ? EINVAL : errno);
  if (at < 0) return err(EINVAL);
  auto buffer = std::make_unique_for_overwrite<char[]>(std::min(count, kChunk) + 1);
  size_t done = 0;
  Errno error{};
  for (count = std::min(count, kMostBytes); done < count;) {
    const ssize_t n = real.pread(in, buffer.get(), std::min(count - done, kChunk), at);
    if (n < 0) error = err(errno == ESPIPE ? EINVAL : errno);
    if (n <= 0) break;
    const bool more = done + static_cast<size_t>(n) < count && static_cast<size_t>(n) == kChunk;
    const MovedScope moved(done > 0);
    Result<ssize_t> sent = posix::send(out, buffer.get(), static_cast<size_t>(n), more ? MSG_MORE : 0);
    if (!sent) error = sent.error();
    if (!sent) break;
    done += static_cast<size_t>(*sent);
    at += *sent;
    if (*sent < n) break;
  }
  if (done == 0 && error != Errno{}) return error;
  if (offset != nullptr && !put_user(offset, at)) return err(EFAULT);
  if (offset == nullptr && done > 0) ::lseek(in, at, SEEK_SET);
  return static_cast<ssize_t>(done);
}

Result<ssize_t> splice(int in, off64_t* in_offset, int out, off64_t* out_offset, size_t size,
                       unsigned flags) {
  const bool from_socket = is_socket(in), to_socket = is_socket(out);
  if (!from_socket && !to_socket)  // an epoll set, say: EINVAL
    return from_libc(real.splice(in, in_offset, out, out_offset, size, flags));
  if ((flags & ~static_cast<unsigned>(SPLICE_F_MOVE | SPLICE_F_NONBLOCK | SPLICE_F_MORE | SPLICE_F_GIFT)) !=
      0)
    return err(EINVAL);
  if (size == 0) return 0;
  // __do_splice(): a pipe has no offset; one for the other end says nothing without a pipe, nor for a socket.
  if ((in_offset != nullptr && is_pipe(in)) || (out_offset != nullptr && is_pipe(out))) return err(ESPIPE);
  if (in_offset != nullptr || out_offset != nullptr) return err(EINVAL);
  const bool nonblocking = (flags & SPLICE_F_NONBLOCK) != 0;
  if (to_socket) return is_pipe(in) ? pipe_to_socket(in, out, size, nonblocking) : err(EINVAL);
  return is_pipe(out) ? socket_to_pipe(in, out, size, nonblocking) : err(EINVAL);
}

}  // namespace accel::posix
