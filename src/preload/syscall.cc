// syscall(number, ...): the calls that concern us go the same way as by their names, the others on by their
// number: a function of libc's that another preloaded library stands in front of may be what calls here.
// Calls that differ from libc's in their arguments (the signal masks of ppoll, pselect6 and epoll_pwait are
// plain 8-byte sets, with their size) are translated.
#include <linux/bpf.h>
#include <linux/sched.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>

#include "posix/connect_rules.h"
#include "preload/preload.h"

using namespace accel;           // NOLINT
using namespace accel::preload;  // NOLINT

namespace {

struct Arguments {
  long values[6];
  int fd() const { return static_cast<int>(values[0]); }
  template <class T>
  T as(int i) const {
    if constexpr (std::is_pointer_v<T>)
      return reinterpret_cast<T>(values[i]);
    else
      return static_cast<T>(values[i]);
  }
  /// A signal mask as the kernel takes it, as libc has it.
  static const sigset_t* mask(const void* kernel, sigset_t* room) {
    if (kernel == nullptr) return nullptr;
    sigemptyset(room);
    memcpy(room, kernel, 8);
    return room;
  }
};

long by_number_itself(long number, const Arguments& a) {
  return real.syscall(number, a.values[0], a.values[1], a.values[2], a.values[3], a.values[4], a.values[5]);
}

/// A process made by number, with a copy of our memory.
template <class F>
long forking(F call) {
  vforked_from = 0;
  if (!posix::active()) return call();
  return served([=] {
    posix::prepare_fork();
    const long child = call();
    posix::after_fork(static_cast<pid_t>(child));
    return child;
  });
}

bool copies_memory(unsigned long flags) { return (flags & (CLONE_VM | CLONE_THREAD)) == 0; }

/// What is not served goes on by its number.
template <class T>
bool take(const Served<T>& s, long* result) {
  *result = s.result;
  return s.done;
}

/// The calls on one descriptor. False: the kernel's.
bool on_one(long number, const Arguments& a, long* result) {
  const int fd = a.fd();
  switch (number) {
#define ONE(name, ...) \
  case SYS_##name:     \
    return take(by_number::name(fd, ##__VA_ARGS__), result);
    ONE(bind, a.as<const sockaddr*>(1), a.as<socklen_t>(2))
    ONE(connect, a.as<const sockaddr*>(1), a.as<socklen_t>(2))
    ONE(listen, a.as<int>(1))
    ONE(accept, a.as<sockaddr*>(1), a.as<socklen_t*>(2))
    ONE(accept4, a.as<sockaddr*>(1), a.as<socklen_t*>(2), a.as<int>(3))
    ONE(shutdown, a.as<int>(1))
    ONE(getsockname, a.as<sockaddr*>(1), a.as<socklen_t*>(2))
    ONE(getpeername, a.as<sockaddr*>(1), a.as<socklen_t*>(2))
    ONE(getsockopt, a.as<int>(1), a.as<int>(2), a.as<void*>(3), a.as<socklen_t*>(4))
    ONE(setsockopt, a.as<int>(1), a.as<int>(2), a.as<const void*>(3), a.as<socklen_t>(4))
    ONE(ioctl, a.as<unsigned long>(1), a.as<void*>(2))
    ONE(fcntl, a.as<int>(1), a.as<void*>(2))
    ONE(read, a.as<void*>(1), a.as<size_t>(2))
    ONE(write, a.as<const void*>(1), a.as<size_t>(2))
    ONE(readv, a.as<const iovec*>(1), a.as<int>(2))
    ONE(writev, a.as<const iovec*>(1), a.as<int>(2))
    ONE(preadv2, a.as<const iovec*>(1), a.as<int>(2), a.as<off_t>(3), a.as<int>(5))
    ONE(pwritev2, a.as<const iovec*>(1), a.as<int>(2), a.as<off_t>(3), a.as<int>(5))
    ONE(recvfrom, a.as<void*>(1), a.as<size_t>(2), a.as<int>(3), a.as<sockaddr*>(4), a.as<socklen_t*>(5))
    ONE(sendto, a.as<const void*>(1), a.as<size_t>(2), a.as<int>(3), a.as<const sockaddr*>(4),
        a.as<socklen_t>(5))
    ONE(sendfile, a.as<int>(1), a.as<off_t*>(2), a.as<size_t>(3))
    ONE(close)
    ONE(dup)
#undef ONE
    default:
      return false;
  }
}

/// Waiting, and calls whose descriptor is not the first argument. False: the kernel's.
bool on_descriptors(long number, const Arguments& a, long* result) {
  sigset_t room;
  switch (number) {
    case SYS_splice:
      return take(by_number::splice(a.fd(), a.as<off64_t*>(1), a.as<int>(2), a.as<off64_t*>(3),
                                    a.as<size_t>(4), a.as<unsigned>(5)),
                  result);
    case SYS_close_range:
      return take(by_number::close_range(a.as<unsigned>(0), a.as<unsigned>(1), a.as<int>(2)), result);
    case SYS_io_submit:
      before_io_submit(a.as<long>(1), a.as<iocb* const*>(2));
      return false;
    case SYS_dup3:
      return take(by_number::dup3(a.fd(), a.as<int>(1), a.as<int>(2)), result);
    case SYS_epoll_ctl:
      return take(by_number::epoll_ctl(a.fd(), a.as<int>(1), a.as<int>(2), a.as<epoll_event*>(3)), result);
    case SYS_epoll_pwait:
      return take(by_number::epoll_pwait(a.fd(), a.as<epoll_event*>(1), a.as<int>(2), a.as<int>(3),
                                         Arguments::mask(a.as<void*>(4), &room)),
                  result);
    case SYS_epoll_pwait2:
      return take(by_number::epoll_pwait2(a.fd(), a.as<epoll_event*>(1), a.as<int>(2), a.as<timespec*>(3),
                                          Arguments::mask(a.as<void*>(4), &room)),
                  result);
#ifdef SYS_dup2  // and the others that newer machines do without
    case SYS_dup2:
      return take(by_number::dup2(a.fd(), a.as<int>(1)), result);
    case SYS_poll:
      return take(by_number::poll(a.as<pollfd*>(0), a.as<nfds_t>(1), a.as<int>(2)), result);
    case SYS_select:
      return take(
          by_number::select(a.fd(), a.as<fd_set*>(1), a.as<fd_set*>(2), a.as<fd_set*>(3), a.as<timeval*>(4)),
          result);
    case SYS_epoll_wait:
      return take(by_number::epoll_wait(a.fd(), a.as<epoll_event*>(1), a.as<int>(2), a.as<int>(3)), result);
#endif
    default:
      return false;
  }
}

/// These two write what is left of the timeout into it, unlike libc's functions; only what concerns us is
/// taken over.
bool on_timeout(long number, const Arguments& a, long* result) {
  sigset_t room;
  if (number == SYS_ppoll && owned(a.as<pollfd*>(0), a.as<nfds_t>(1))) {
    return take(by_number::ppoll(a.as<pollfd*>(0), a.as<nfds_t>(1), a.as<timespec*>(2),
                                 Arguments::mask(a.as<void*>(3), &room)),
                result);
  }
  if (number == SYS_pselect6 && owned(a.fd(), a.as<fd_set*>(1), a.as<fd_set*>(2), a.as<fd_set*>(3))) {
    struct Mask {
      const void* set;
      size_t size;
    };
    const Mask* mask = a.as<const Mask*>(5);
    timespec* timeout = a.as<timespec*>(4);
    timespec left = timeout != nullptr ? *timeout : timespec{};
    *result = served([&] {
      return to_libc(posix::pselect(a.fd(), a.as<fd_set*>(1), a.as<fd_set*>(2), a.as<fd_set*>(3), timeout,
                                    mask != nullptr ? Arguments::mask(mask->set, &room) : nullptr, &left));
    });
    if (timeout != nullptr) *timeout = left;
    return true;
  }
  return false;
}

/// Commands of bpf(2) whose result is a new descriptor.
bool gives_descriptor(int command) {
  static constexpr std::array kCommands{BPF_MAP_CREATE,          BPF_PROG_LOAD,        BPF_OBJ_GET,
                                        BPF_PROG_GET_FD_BY_ID,   BPF_BTF_LOAD,         BPF_LINK_CREATE,
                                        BPF_MAP_GET_FD_BY_ID,    BPF_BTF_GET_FD_BY_ID, BPF_ITER_CREATE,
                                        BPF_RAW_TRACEPOINT_OPEN, BPF_LINK_GET_FD_BY_ID};
  return std::find(kCommands.begin(), kCommands.end(), command) != kCommands.end();
}

/// Calls that concern the process: served here when the library takes part or owns something.
bool on_process(long number, const Arguments& a, long* result) {
  const auto libc = [&] { return by_number_itself(number, a); };
  switch (number) {
    case SYS_socket:
      if (take(by_number::socket(a.as<int>(0), a.as<int>(1), a.as<int>(2)), result)) return true;
      if (!MakingPrivate::now()) return false;
      *result = move_high(static_cast<int>(libc()));
      return true;
    case SYS_bpf:
      if (!MakingPrivate::now()) return false;
      *result = libc();
      if (gives_descriptor(a.as<int>(0))) *result = move_high(static_cast<int>(*result));
      return true;
    case SYS_epoll_create1:
      return take(by_number::epoll_create1(a.as<int>(0)), result);
#ifdef SYS_epoll_create
    case SYS_epoll_create:
      return take(by_number::epoll_create(a.as<int>(0)), result);
    case SYS_fork:
      *result = forking(libc);
      return true;
#endif
    case SYS_sendmsg:
      return take(by_number::sendmsg(a.fd(), a.as<const msghdr*>(1), a.as<int>(2)), result);
    case SYS_sendmmsg: {
      auto count = a.as<unsigned>(2);
      if (take(by_number::sendmmsg(a.fd(), a.as<mmsghdr*>(1), &count, a.as<int>(3)), result)) return true;
      Arguments shorter = a;
      shorter.values[2] = count;
      *result = by_number_itself(number, shorter);
      return true;
    }
    case SYS_recvmsg:
      if (take(by_number::recvmsg(a.fd(), a.as<msghdr*>(1), a.as<int>(2)), result)) return true;
      if ((*result = libc()) >= 0) look_for_descriptors(*a.as<const msghdr*>(1));
      return true;
    case SYS_recvmmsg:
      if (take(by_number::recvmmsg(a.fd(), a.as<mmsghdr*>(1), a.as<unsigned>(2), a.as<int>(3),
                                   a.as<timespec*>(4)),
               result))
        return true;
      *result = libc();
      for (long i = 0; i < *result; ++i) look_for_descriptors(a.as<const mmsghdr*>(1)[i].msg_hdr);
      return true;
    case SYS_chroot:
    case SYS_pivot_root:
      before_root_change();
      return false;
    case SYS_unshare:
      before_unshare(a.as<int>(0));
      return false;
    case SYS_setns:
      before_setns(a.fd(), a.as<int>(1));
      return false;
    case SYS_clone:
      if ((a.as<unsigned long>(0) & CLONE_NEWNS) != 0) before_root_change();
      if (!copies_memory(a.as<unsigned long>(0))) return false;
      *result = forking(libc);
      return true;
    case SYS_clone3:
      if (a.values[0] != 0 && (a.as<const clone_args*>(0)->flags & CLONE_NEWNS) != 0) before_root_change();
      if (a.values[0] == 0 || !copies_memory(a.as<const clone_args*>(0)->flags)) return false;
      *result = forking(libc);
      return true;
    case SYS_execve:
    case SYS_execveat:
      *result = replacing([&] { return static_cast<int>(libc()); });
      return true;
    case SYS_pidfd_getfd:
      return take(by_number::pidfd_getfd(a.fd(), a.as<int>(1), a.as<unsigned>(2)), result);
    case SYS_exit_group:
      if (!in_vfork_child()) served(end);
      return false;
    case SYS_seccomp:
    case SYS_prctl:
      before_filter({number, {a.as<int>(0), a.as<long>(1), a.as<long>(2)}});
      return false;
    case SYS_landlock_restrict_self:
      *result = libc();
      if (*result == 0) posix::connect_rules_change();
      return true;
    case SYS_io_uring_setup:
      *result = ring_setup(a.as<uint32_t>(0), a.as<io_uring_params*>(1));
      return true;
    case SYS_io_uring_enter: {
      Arguments looked_at = a;
      looked_at.values[1] = before_ring_enter(a.fd(), a.as<uint32_t>(1), a.as<uint32_t>(3));
      *result = by_number_itself(number, looked_at);
      return true;
    }
    case SYS_io_uring_register:
      before_ring_register(a.as<uint32_t>(1), a.as<const void*>(2), a.as<uint32_t>(3));
      return false;
    default:
      return false;
  }
}

bool on_descriptor(long number, const Arguments& a, long* result) {
  return on_one(number, a, result) || on_descriptors(number, a, result) || on_timeout(number, a, result);
}

/// Which numbers those functions know: asked first, so that another call costs one look.
constexpr size_t kNumbers = 512;
struct Numbers {
  std::array<bool, kNumbers> process{}, descriptor{};
};
constexpr Numbers kOurs = [] {
  Numbers n{};
  for (long number : {SYS_socket,
                      SYS_epoll_create1,
                      SYS_sendmsg,
                      SYS_sendmmsg,
                      SYS_recvmsg,
                      SYS_recvmmsg,
                      SYS_clone,
                      SYS_clone3,
                      SYS_execve,
                      SYS_execveat,
                      SYS_exit_group,
                      SYS_io_uring_setup,
                      SYS_io_uring_enter,
                      SYS_io_uring_register,
                      SYS_pidfd_getfd,
                      SYS_seccomp,
                      SYS_prctl,
                      SYS_chroot,
                      SYS_pivot_root,
                      SYS_unshare,
                      SYS_setns,
                      SYS_bpf,
                      SYS_landlock_restrict_self})
    n.process[static_cast<size_t>(number)] = true;
  for (long number :
       {SYS_bind,        SYS_connect,     SYS_listen,     SYS_accept,      SYS_accept4,      SYS_shutdown,
        SYS_getsockname, SYS_getpeername, SYS_getsockopt, SYS_setsockopt,  SYS_ioctl,        SYS_fcntl,
        SYS_read,        SYS_write,       SYS_readv,      SYS_writev,      SYS_preadv2,      SYS_pwritev2,
        SYS_recvfrom,    SYS_sendto,      SYS_sendfile,   SYS_close,       SYS_dup,          SYS_splice,
        SYS_close_range, SYS_dup3,        SYS_epoll_ctl,  SYS_epoll_pwait, SYS_epoll_pwait2, SYS_ppoll,
        SYS_pselect6,    SYS_io_submit})
    n.descriptor[static_cast<size_t>(number)] = true;
#ifdef SYS_dup2  // and the others that newer machines do without
  for (long number : {SYS_epoll_create, SYS_fork}) n.process[static_cast<size_t>(number)] = true;
  for (long number : {SYS_dup2, SYS_poll, SYS_select, SYS_epoll_wait})
    n.descriptor[static_cast<size_t>(number)] = true;
#endif
  return n;
}();

[[gnu::noinline]] long serve(bool (*ours)(long, const Arguments&, long*), long number, const Arguments& a) {
  long result = 0;
  if (!ServedCall::inside() && ours(number, a, &result)) return result;
  return by_number_itself(number, a);
}

}  // namespace

ACCEL_EXPORT(long, syscall, (long number, long a0, long a1, long a2, long a3, long a4, long a5)) {
  const auto n = static_cast<unsigned long>(number);
  if (n < kNumbers && kOurs.process[n]) [[unlikely]]
    return serve(&on_process, number, {{a0, a1, a2, a3, a4, a5}});
  if (n < kNumbers && kOurs.descriptor[n] && posix::active()) [[unlikely]]
    return serve(&on_descriptor, number, {{a0, a1, a2, a3, a4, a5}});
  return real.syscall(number, a0, a1, a2, a3, a4, a5);
}
