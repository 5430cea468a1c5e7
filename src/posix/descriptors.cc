// Descriptors come and go: close, dup, fcntl, ioctl. The kernel's number and the table's entry change
// together, under the lock.
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "base/private_fds.h"
#include "base/real.h"
#include "base/user_memory.h"
#include "posix/call.h"
#include "posix/calls.h"
#include "posix/engine_events.h"
#include "posix/later_engine.h"
#include "posix/same_host.h"

#ifndef F_DUPFD_QUERY
#define F_DUPFD_QUERY (F_LINUX_SPECIFIC_BASE + 3)
#endif

namespace accel::posix {
namespace {

/// Frames that have come since the program last looked stay in the ring: text that it cannot know of would
/// reset the connection (RFC 1122 section 4.2.2.13), which a server that closes idle ones does now and then.
constexpr Pass::Polling kClosing = Pass::Polling::kNo;

/// Before the kernel's descriptor goes: the shadow must stay reachable by another one, for the sets too.
void prepare_close(int fd) {
  if (File* file = fds.find(fd)) file->number_closes(fd);
  if (Socket* s = find_socket(fd)) s->keep_shadow(fd);
}

/// `fd` is a new descriptor of what `file` stands for.
void enter(int fd, File* file, Guard& guard) {
  fds.erase(fd, guard.pass());  // one that was closed past us
  if (file != nullptr) fds.insert(fd, file);
}

Socket* socket_of(File* file) {
  return file == nullptr || file->kind() == FileKind::kEpoll ? nullptr : static_cast<Socket*>(file);
}

/// The real close_range() on what lies between our own descriptors.
int close_others(unsigned first, unsigned last, int flags) {
  const auto known = static_cast<unsigned>(std::max(fds.size(), 1));
  for (unsigned fd = first; fd <= last && fd < known; ++fd) {
    if (!is_private(static_cast<int>(fd))) continue;
    if (fd > first && real.close_range(first, fd - 1, flags) != 0) return -1;
    first = fd + 1;
  }
  return first <= last ? real.close_range(first, last, flags) : 0;
}

/// The kernel is to serve `fd`, for what Socket::veto_for() has. Errors: as Socket::detach().
Result<void> hand_over(int fd, const char* what) {
  SocketCall call(fd, Pass::Polling::kYes, Use::kAside);
  if (call.socket() == nullptr) return {};
  if (call.pass() == nullptr) {
    call.socket()->veto_for(what);
    return {};
  }
  return call.socket()->detach_for(*call.pass(), what);
}

bool is_iwarp(int fd) {
  Guard guard(Pass::Polling::kNo);
  const Socket* s = guard.ok() ? find_socket(fd) : nullptr;
  return s != nullptr && s->kind() == FileKind::kIwarp;
}

/// Signals for the owner (SIGIO, SIGURG) are the kernel's to send. A live connection that it cannot have
/// would send none: EOPNOTSUPP. What carries an iWARP connection is the kernel's already.
Result<void> let_kernel_signal(int fd) {
  if (is_iwarp(fd)) return {};
  Result<void> r = hand_over(fd, "signals for the owner of a file");
  return r || r.is(ENOTCONN) ? Result<void>() : err(EOPNOTSUPP);
}

}  // namespace

bool opens_ports() { return Engine::opens_ports() || engine_comes_later(); }

void settle_numbers() {
  if (!opens_ports() || Guard::inside()) return;
  if (engine_comes_later()) postpone_engine();
  if (Engine* engine = Engine::get(); engine != nullptr && engine->settle_ports()) tell_ports_opened();
}

Result<int> close(int fd) {
  if (is_private(fd)) return err(EBADF);
  candidates.closes(fd);
  std::optional<Guard> guard(std::in_place, kClosing);
  if (guard->ok()) {
    if (Pass* pass = guard->pass()) pass->engine().give_up_abandoned(*pass);
    const Socket* s = find_socket(fd);
    const bool may_wait = s != nullptr && s->lingers_in_kernel();
    prepare_close(fd);
    fds.erase(fd, guard->pass());
    if (may_wait) guard.reset();  // the number is taken until the kernel's close() is done
  }
  return from_libc(real.close(fd));
}

Result<int> close_range(unsigned first, unsigned last, int flags) {
  if (first > last || (flags & ~(CLOSE_RANGE_CLOEXEC | CLOSE_RANGE_UNSHARE)) != 0)
    return from_libc(real.close_range(first, last, flags));
  if ((flags & CLOSE_RANGE_CLOEXEC) == 0) {
    candidates.forget_range(first, last);
    Guard guard(kClosing);
    const int end =
        static_cast<int>(std::min<unsigned>(last, static_cast<unsigned>(std::max(fds.size(), 1)) - 1));
    if (guard.ok() && first <= static_cast<unsigned>(end)) {
      fds.for_each(static_cast<int>(first), end, [&](int fd, File*) {
        prepare_close(fd);
        fds.erase(fd, guard.pass());
      });
    }
  }
  return from_libc(close_others(first, last, flags));
}

Result<int> dup(int fd) {
  Guard guard;
  const int copy = real.dup(fd);
  if (copy < 0) return err(errno);
  if (guard.ok()) enter(copy, fds.find(fd), guard);
  return copy;
}

Result<int> dup2(int from, int to) {
  if (is_private(from)) return err(EBADF);
  if (is_private(to)) return err(EBUSY);
  candidates.forget(from);
  candidates.forget(to);
  if (from == to) return from_libc(real.dup2(from, to));
  Guard guard(kClosing);
  if (!guard.ok() || real.fcntl(from, F_GETFD) < 0)
    return from_libc(real.dup2(from, to));  // EBADF closes nothing
  if (Pass* pass = guard.pass()) pass->engine().give_up_abandoned(*pass);
  prepare_close(to);
  Result<int> r = from_libc(real.dup2(from, to));
  if (r) enter(to, fds.find(from), guard);
  return r;
}

Result<int> dup3(int from, int to, int flags) {
  if (is_private(from)) return err(EBADF);
  if (is_private(to)) return err(EBUSY);
  candidates.forget(from);
  candidates.forget(to);
  Guard guard(kClosing);
  if (!guard.ok() || from == to || (flags & ~O_CLOEXEC) != 0 || real.fcntl(from, F_GETFD) < 0)
    return from_libc(real.dup3(from, to, flags));
  prepare_close(to);
  Result<int> r = from_libc(real.dup3(from, to, flags));
  if (r) enter(to, fds.find(from), guard);
  return r;
}

Result<int> fcntl(int fd, int command, void* argument) {
  switch (command) {
    case F_DUPFD:
    case F_DUPFD_CLOEXEC: {
      Guard guard;
      const int copy = real.fcntl(fd, command, argument);
      if (copy < 0) return err(errno);
      if (guard.ok()) enter(copy, fds.find(fd), guard);
      return copy;
    }
    case F_SETFL: {
      if ((reinterpret_cast<intptr_t>(argument) & O_ASYNC) != 0)
        if (Result<void> r = let_kernel_signal(fd); !r) return r.error();
      Guard guard(Pass::Polling::kNo);
      Result<int> r = from_libc(real.fcntl(fd, command, argument));
      Socket* s = guard.ok() ? socket_of(fds.find(fd)) : nullptr;
      if (r && s != nullptr) s->nonblocking = (reinterpret_cast<intptr_t>(argument) & O_NONBLOCK) != 0;
      return r;
    }
    case F_SETOWN:
    case F_SETOWN_EX:
      if (argument != nullptr)  // SIGURG needs no O_ASYNC
        if (Result<void> r = let_kernel_signal(fd); !r) return r.error();
      return from_libc(real.fcntl(fd, command, argument));
    default:
      return from_libc(real.fcntl(fd, command, argument));
  }
}

Result<int> ioctl(int fd, unsigned long request, void* argument) {
  switch (request) {
    case FIONBIO: {
      Guard guard(Pass::Polling::kNo);
      Result<int> r = from_libc(real.ioctl(fd, request, argument));
      Socket* s = guard.ok() ? socket_of(fds.find(fd)) : nullptr;
      if (r && s != nullptr) s->nonblocking = *static_cast<int*>(argument) != 0;
      return r;
    }
    case FIOASYNC:
    case FIOSETOWN:
    case SIOCSPGRP:
      if (int set = 0; get_user(set, argument) && set != 0)
        if (Result<void> r = let_kernel_signal(fd); !r) return r.error();
      return from_libc(real.ioctl(fd, request, argument));
    default:
      return serve<int>(
          fd, [&](Pass& pass, Socket& s) { return s.ioctl(pass, request, argument); },
          [&] { return real.ioctl(fd, request, argument); }, Use::kAside);
  }
}

Result<void> before_stdio(int fd) { return hand_over(fd, "fdopen()"); }

void reused(int fd) {
  Guard guard(Pass::Polling::kNo);
  if (guard.ok()) fds.erase(fd, guard.pass());
}

}  // namespace accel::posix
