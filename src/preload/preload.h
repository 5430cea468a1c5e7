// The wrappers' common ground. A wrapper asks posix whether the call concerns it and otherwise jumps to libc.
#pragma once

#include <cstdint>

#include "base/private_fds.h"
#include "base/real.h"
#include "base/result.h"
#include "base/trial_process.h"
#include "posix/calls.h"
#include "posix/file.h"
#include "preload/cancel.h"
#include "preload/ring_calls.h"
#include "preload/wrapper.h"

struct iocb;

namespace accel::preload {

/// The process ends. Calls may still come, from other libraries' destructors, quick_exit()'s handlers and
/// other threads: what exists stays served, by the kernel where that can be.
void end();

/// Has fork() hold the library's lock from behind the last of the program's pthread_atfork() handlers, which
/// take locks of their own and may use sockets, to before the first of those in parent and child. Such
/// handlers run in the order of their registration, before the fork in the opposite one: so before the
/// program's, but behind those of a malloc() that is not libc's, which is woken for that. What holds its
/// locks must not wait for ours.
void stand_first_at_fork();

/// Resolves libc's functions once: from here on signal handlers and threads may call at any moment, and none
/// should meet the dynamic linker's lock.
void before_first_socket();

/// The process that this thread has called vfork() in, until somebody asks whether its child is still about.
extern constinit thread_local pid_t vforked_from;
/// The child of a vfork(): it runs on its parent's memory until it execs, so nothing may be remembered of
/// what it does.
bool in_vfork_child();

/// The calling thread, or a child that it is about to make, gets another root or other mounts (root.cc).
void before_root_change();

/// The calling thread may be about to give itself a filter of its system calls (filter.cc), by seccomp(2) or
/// prctl(2).
void before_filter(const TrialCall& call);

/// The calling thread gets other namespaces (namespaces.cc).
void before_unshare(int flags);
void before_setns(int fd, int kind);

inline bool internet(int domain, int type) {
  const int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
  return (domain == AF_INET || domain == AF_INET6) && (kind == SOCK_STREAM || kind == SOCK_DGRAM);
}

// Is one of them ours? A process without a descriptor of ours has no table and answers at once.
inline bool owned(const pollfd* descriptors, nfds_t count) {
  return posix::fds.size() != 0 && posix::any_owned(descriptors, count);
}
inline bool owned(int count, const fd_set* read, const fd_set* write, const fd_set* except) {
  return posix::fds.size() != 0 && posix::any_owned(count, read, write, except);
}

// The forms of a call that differ from posix's only in their arguments (symbols.cc).
Result<int> at_mark(int fd);
Result<ssize_t> read_flags(int fd, const iovec* vector, int count, int flags);
Result<ssize_t> write_flags(int fd, const iovec* vector, int count, int flags);
/// posix::settle_numbers() has something to wait for. The child of a vfork() is not to open its parent's
/// ports.
inline bool settles() { return posix::opens_ports() && !in_vfork_child(); }
inline bool closes_stream(int fd) { return fd <= STDERR_FILENO && settles(); }
/// `number`, once it has run.
template <class T>
T settled(T number) {
  if (settles()) posix::settle_numbers();
  return number;
}
Result<int> for_stdio(int fd, Result<int> made);
Result<int> for_stdio(Result<int> made);
void before_io_submit(long count, iocb* const* requests);
int connecting_stdio(int fd);
int closing_ring(int fd);
Result<int> ppoll_ms(pollfd* descriptors, nfds_t count, int timeout);
Result<int> select_us(int count, fd_set* read, fd_set* write, fd_set* except, timeval* timeout);
Result<int> epoll_ms(int set, epoll_event* events, int size, int timeout, const sigset_t* mask);

}  // namespace accel::preload

// Every wrapper by its C++ name, for those that arrive by another way (syscall()).
#define FD_CALL(result, name, parameters, arguments, ours) CALL(result, name, parameters, arguments, , ours)
#define CALL(result, name, parameters, arguments, condition, ours) \
  extern "C" [[gnu::visibility("default")]] result accel_call_##name parameters asm(#name);
#define HAND(name)
#define ALIAS(alias, name)
#define HAND_ALIAS(alias, name)
#define KERNEL(name, why)
#include "preload/symbols.def"
#undef CALL

namespace accel::preload {

/// What a call that came by its number (syscall()) has got. Where it is not done it is to be made by number
/// as well: libc's function of its name would lead to other preloaded libraries, which may have made the
/// call.
template <class T>
struct Served {
  bool done = false;
  T result{};
};

namespace by_number {
#define CALL(result, name, parameters, arguments, condition, ours) Served<result> name parameters;
#include "preload/symbols.def"
#undef FD_CALL
#undef CALL
#undef HAND
#undef ALIAS
#undef HAND_ALIAS
#undef KERNEL

// Of the wrappers that are written by hand (special.cc).
Served<int> socket(int domain, int type, int protocol);
Served<ssize_t> sendmsg(int fd, const msghdr* message, int flags);
/// `count`: how many of them the kernel is to send where it is not done.
Served<int> sendmmsg(int fd, mmsghdr* messages, unsigned* count, int flags);
Served<ssize_t> recvmsg(int fd, msghdr* message, int flags);
Served<int> recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout);
Served<int> pidfd_getfd(int pidfd, int target, unsigned flags);
Served<int> epoll_wait(int set, epoll_event* events, int size, int timeout);
}  // namespace by_number

/// After messages that the kernel has just written.
void look_for_descriptors(const msghdr& message);

/// `exec` by whichever way; it comes back only with an error (process.cc).
int replacing(int (*exec)(const void* context), const void* context);
template <class F>
int replacing(F exec) {
  return replacing([](const void* f) { return (*static_cast<const F*>(f))(); }, &exec);
}

}  // namespace accel::preload
