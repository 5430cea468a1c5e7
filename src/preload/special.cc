// Wrappers that a row of the table cannot describe: variadic calls, new descriptors, streams on a socket,
// descriptors in messages.
#include <aio.h>
#include <linux/aio_abi.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>

#include "base/private_fds.h"
#include "base/user_memory.h"
#include "posix/rights.h"
#include "preload/candidates.h"
#include "preload/preload.h"

using namespace accel;           // NOLINT
using namespace accel::preload;  // NOLINT

// ---- sockets ----

Served<int> accel::preload::by_number::socket(int domain, int type, int protocol) {
  if (!internet(domain, type) || !on() || in_vfork_child() || ServedCall::inside()) return {};
  return {true, served([=] {
            before_first_socket();
            return to_libc(posix::socket(domain, type, protocol));
          })};
}

ACCEL_EXPORT(int, socket, (int domain, int type, int protocol)) {
  if (const auto s = by_number::socket(domain, type, protocol); s.done) return s.result;
  const int fd = real.socket(domain, type, protocol);
  return MakingPrivate::now() ? move_high(fd) : fd;
}

// ---- messages ----

namespace {

bool has_control(const msghdr* message) {
  return can_read(message, sizeof *message) && message->msg_controllen != 0;
}

}  // namespace

Served<ssize_t> accel::preload::by_number::sendmsg(int fd, const msghdr* message, int flags) {
  if (posix::fds.owns(fd)) [[unlikely]] {
    if (!ServedCall::inside())
      return {true, served<true>([=] { return to_libc(posix::sendmsg(fd, message, flags)); })};
  } else if (posix::active() && has_control(message) && !ServedCall::inside()) [[unlikely]] {
    if (served([=] { return to_libc(posix::before_passing(message)); }) != 0) return {true, -1};
  }
  return {};
}

ACCEL_EXPORT(ssize_t, sendmsg, (int fd, const msghdr* message, int flags)) {
  if (const auto s = by_number::sendmsg(fd, message, flags); s.done) return s.result;
  return on_kernel<CandidateUse::kTransfer>([=] { return real.sendmsg(fd, message, flags); },
                                            [=] { return by_number::sendmsg(fd, message, flags).result; },
                                            fd);
}

Served<int> accel::preload::by_number::sendmmsg(int fd, mmsghdr* messages, unsigned* count, int flags) {
  if (!posix::active() || ServedCall::inside()) [[likely]]
    return {};
  const unsigned all = *count;
  if (posix::fds.owns(fd))
    return {true, served<true>([=] { return to_libc(posix::sendmmsg(fd, messages, all, flags)); })};
  for (unsigned i = 0; i < std::min(*count, unsigned{IOV_MAX}); ++i) {
    if (!has_control(&messages[i].msg_hdr)) continue;
    if (served([=] { return to_libc(posix::before_passing(&messages[i].msg_hdr)); }) == 0) continue;
    if (i == 0) return {true, -1};
    *count = i;  // those before it go
  }
  return {};
}

ACCEL_EXPORT(int, sendmmsg, (int fd, mmsghdr* messages, unsigned count, int flags)) {
  if (const auto s = by_number::sendmmsg(fd, messages, &count, flags); s.done) return s.result;
  return on_kernel<CandidateUse::kTransfer>(
      [=] { return real.sendmmsg(fd, messages, count, flags); },
      [=]() mutable { return by_number::sendmmsg(fd, messages, &count, flags).result; }, fd);
}

void accel::preload::look_for_descriptors(const msghdr& message) {
  if (message.msg_controllen == 0) [[likely]]
    return;
  bool any = false;
  posix::each_descriptor_in(message, [&](int) { return !(any = true); });
  if (!any || !on() || in_vfork_child() || ServedCall::inside()) return;
  served([&message] {
    before_first_socket();
    posix::adopt_received(message);
  });
}

Served<ssize_t> accel::preload::by_number::recvmsg(int fd, msghdr* message, int flags) {
  if (!posix::fds.owns(fd) || ServedCall::inside()) [[likely]]
    return {};
  return {true, served<true>([=] { return to_libc(posix::recvmsg(fd, message, flags)); })};
}

ACCEL_EXPORT(ssize_t, recvmsg, (int fd, msghdr* message, int flags)) {
  if (const auto s = by_number::recvmsg(fd, message, flags); s.done) return s.result;
  const ssize_t got =
      on_kernel<CandidateUse::kTransfer>([=] { return real.recvmsg(fd, message, flags); },
                                         [=] { return by_number::recvmsg(fd, message, flags).result; }, fd);
  if (got >= 0) look_for_descriptors(*message);
  return got;
}

Served<int> accel::preload::by_number::recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags,
                                                timespec* timeout) {
  if (!posix::fds.owns(fd) || ServedCall::inside()) [[likely]]
    return {};
  return {true, served<true>([=] { return to_libc(posix::recvmmsg(fd, messages, count, flags, timeout)); })};
}

ACCEL_EXPORT(int, recvmmsg, (int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout)) {
  if (const auto s = by_number::recvmmsg(fd, messages, count, flags, timeout); s.done) return s.result;
  const int got = on_kernel<CandidateUse::kTransfer>(
      [=] { return real.recvmmsg(fd, messages, count, flags, timeout); },
      [=] { return by_number::recvmmsg(fd, messages, count, flags, timeout).result; }, fd);
  for (int i = 0; i < got; ++i) look_for_descriptors(messages[i].msg_hdr);
  return got;
}

Served<int> accel::preload::by_number::pidfd_getfd(int pidfd, int target, unsigned flags) {
  if (!on() || in_vfork_child() || ServedCall::inside()) return {};
  return {true, served([=] {
            before_first_socket();
            return to_libc(posix::pidfd_getfd(pidfd, target, flags));
          })};
}

ACCEL_EXPORT(int, pidfd_getfd, (int pidfd, int target, unsigned flags)) {
  if (const auto s = by_number::pidfd_getfd(pidfd, target, flags); s.done) return s.result;
  return static_cast<int>(real.syscall(SYS_pidfd_getfd, pidfd, target, flags, 0L, 0L, 0L));
}

// ---- readiness ----

Served<int> accel::preload::by_number::epoll_wait(int set, epoll_event* events, int size, int timeout) {
  if (!posix::fds.owns(set) || ServedCall::inside()) return {};
  return {true, served<true>([=] { return to_libc(epoll_ms(set, events, size, timeout, nullptr)); })};
}

ACCEL_EXPORT(int, epoll_wait, (int set, epoll_event* events, int size, int timeout)) {
  if (timeout == 0 && posix::fds.plain(set)) {
    const int got = real.epoll_wait(set, events, size, 0);
    if (got <= 0 || posix::fds.plain(set)) [[likely]]
      return got;
    return served<true>([=] { return to_libc(posix::epoll_look_again(set, events, size, got)); });
  }
  if (const auto s = by_number::epoll_wait(set, events, size, timeout); s.done) return s.result;
  return real.epoll_wait(set, events, size, timeout);
}

// ---- new descriptors ----

namespace {

int fresh(int fd) {
  if (posix::fds.owns(fd)) [[unlikely]]
    if (!ServedCall::inside()) served([=] { posix::reused(fd); });
  return fd;
}

int fresh(int result, const int* pair) {
  if (result == 0) {
    fresh(pair[0]);
    fresh(pair[1]);
  }
  return result;
}

}  // namespace

// The mode is there or is a register's leftovers, which libc does not look at either.
ACCEL_EXPORT(int, open, (const char* path, int flags, mode_t mode)) {
  return fresh(real.open(path, flags, mode));
}
ACCEL_ALIAS(open64, open)  // the same where off_t has 64 bits
ACCEL_ALIAS(__open, open)
ACCEL_ALIAS(__open64, open)
ACCEL_EXPORT(int, openat, (int directory, const char* path, int flags, mode_t mode)) {
  return fresh(real.openat(directory, path, flags, mode));
}
ACCEL_ALIAS(openat64, openat)
ACCEL_EXPORT(int, creat, (const char* path, mode_t mode)) { return fresh(real.creat(path, mode)); }
ACCEL_ALIAS(creat64, creat)
ACCEL_EXPORT(int, pipe, (int* pair)) { return fresh(real.pipe(pair), pair); }
ACCEL_ALIAS(__pipe, pipe)
ACCEL_EXPORT(int, pipe2, (int* pair, int flags)) { return fresh(real.pipe2(pair, flags), pair); }
ACCEL_EXPORT(int, socketpair, (int domain, int type, int protocol, int* pair)) {
  return fresh(real.socketpair(domain, type, protocol, pair), pair);
}
static_assert(sizeof(off_t) == 8);

ACCEL_EXPORT(void, closefrom, (int first)) {
  if (!posix::active() || ServedCall::inside()) return real.closefrom(first);
  if (first < 0) first = 0;
  served([=] {
    if (!posix::close_range(static_cast<unsigned>(settled(first)), ~0u, 0)) real.closefrom(first);
  });
}

// ---- streams ----

ACCEL_EXPORT(FILE*, fdopen, (int fd, const char* mode)) {
  posix::candidates.forget(fd);
  if (posix::fds.owns(fd)) [[unlikely]]
    if (served([=] { return posix::before_stdio(fd); }).is(EOPNOTSUPP)) {
      errno = EOPNOTSUPP;
      return nullptr;
    }
  return real.fdopen(fd, mode);
}
ACCEL_ALIAS(_IO_fdopen, fdopen)

namespace {

/// vdprintf() on a descriptor of ours. libc's would write past us.
int print(int fd, const char* format, va_list list) {
  const int before = errno;
  char* text = nullptr;
  const int length = vasprintf(&text, format, list);
  for (int sent = 0; sent < length;) {
    const ssize_t n = accel_call_send(fd, text + sent, static_cast<size_t>(length - sent), 0);
    if (n < 0) {
      free(text);
      return -1;
    }
    sent += static_cast<int>(n);
  }
  if (length >= 0) {
    free(text);
    errno = before;
  }
  return length;
}

int vprint(int fd, const char* format, va_list list) {
  static std::atomic<int (*)(int, const char*, va_list)> libc{nullptr};
  if (posix::fds.owns(fd)) [[unlikely]]
    return print(fd, format, list);
  posix::candidates.forget(fd);
  auto f = libc.load(std::memory_order_relaxed);
  if (f == nullptr)
    libc.store(f = reinterpret_cast<decltype(f)>(find_real("vdprintf")), std::memory_order_relaxed);
  return f(fd, format, list);
}

/// The checked forms also watch for %n in writable memory: kept for kernel descriptors.
int vprint_checked(int fd, int check, const char* format, va_list list) {
  static std::atomic<int (*)(int, int, const char*, va_list)> libc{nullptr};
  if (posix::fds.owns(fd)) [[unlikely]]
    return print(fd, format, list);
  posix::candidates.forget(fd);
  auto f = libc.load(std::memory_order_relaxed);
  if (f == nullptr)
    libc.store(f = reinterpret_cast<decltype(f)>(find_real("__vdprintf_chk")), std::memory_order_relaxed);
  return f(fd, check, format, list);
}

}  // namespace

ACCEL_EXPORT(int, vdprintf, (int fd, const char* format, va_list list)) { return vprint(fd, format, list); }
ACCEL_EXPORT(int, __vdprintf_chk, (int fd, int check, const char* format, va_list list)) {
  return vprint_checked(fd, check, format, list);
}
ACCEL_EXPORT(int, dprintf, (int fd, const char* format, ...)) {
  va_list list;
  va_start(list, format);
  const int r = vprint(fd, format, list);
  va_end(list);
  return r;
}
ACCEL_EXPORT(int, __dprintf_chk, (int fd, int check, const char* format, ...)) {
  va_list list;
  va_start(list, format);
  const int r = vprint_checked(fd, check, format, list);
  va_end(list);
  return r;
}

// ---- asynchronous I/O: libc's threads, and the kernel's, read and write past us ----

namespace {

void before_aio(int fd) {
  posix::candidates.forget(fd);
  if (posix::fds.owns(fd)) (void)served([=] { return posix::before_stdio(fd); });
}

void before_aio(const aiocb* request) {
  if (posix::active() && can_read(request, sizeof *request)) before_aio(request->aio_fildes);
}

int next_aio(const char* name, aiocb* request) {
  before_aio(request);
  return reinterpret_cast<int (*)(aiocb*)>(find_real(name))(request);
}

}  // namespace

ACCEL_EXPORT(int, aio_read, (aiocb * request)) { return next_aio("aio_read", request); }
ACCEL_ALIAS(aio_read64, aio_read)  // the same where off_t has 64 bits
ACCEL_EXPORT(int, aio_write, (aiocb * request)) { return next_aio("aio_write", request); }
ACCEL_ALIAS(aio_write64, aio_write)
ACCEL_EXPORT(int, lio_listio, (int mode, aiocb* const* requests, int count, sigevent* event)) {
  for (int i = 0; i < count && can_read(&requests[i], sizeof *requests); ++i) before_aio(requests[i]);
  using Call = int (*)(int, aiocb* const*, int, sigevent*);
  return reinterpret_cast<Call>(find_real("lio_listio"))(mode, requests, count, event);
}
ACCEL_ALIAS(lio_listio64, lio_listio)

void accel::preload::before_io_submit(long count, iocb* const* requests) {
  for (long i = 0; i < count && can_read(&requests[i], sizeof *requests); ++i)
    if (can_read(requests[i], sizeof **requests)) before_aio(static_cast<int>(requests[i]->aio_fildes));
}

// libaio's, which makes the system call itself and answers with a negative errno number.
ACCEL_EXPORT(int, io_submit, (aio_context_t context, long count, iocb** requests)) {
  if (posix::active()) before_io_submit(count, requests);
  using Call = int (*)(aio_context_t, long, iocb**);
  auto libaio = reinterpret_cast<Call>(find_real("io_submit"));
  return libaio != nullptr ? libaio(context, count, requests) : -ENOSYS;
}

ACCEL_EXPORT(int, bindresvport, (int fd, void* address)) {
  if (posix::fds.owns(fd)) (void)served([=] { return posix::before_stdio(fd); });
  auto libc = reinterpret_cast<int (*)(int, void*)>(find_real("bindresvport"));
  return libc(fd, address);
}
