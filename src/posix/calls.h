// What intercepted calls mean. The preload layer calls these: the fd calls only when fds.owns(fd) was true a
// moment ago (a function that finds the descriptor gone or moved to the kernel by then calls base/real.h's
// function itself), the others always.
//
// Results are libc's: -1 and errno by to_libc() in the wrapper. Every function is a cancellation point where
// POSIX says so.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#include <atomic>

#include "base/result.h"
#include "base/user_memory.h"
#include "posix/file.h"

namespace accel::posix {

// ---- sockets (posix/sockets.cc, option_calls.cc, transfer.cc) ----
/// Always called. Creates the kernel's socket and, for AF_INET/AF_INET6 stream and datagram sockets, a File
/// in the table.
Result<int> socket(int domain, int type, int protocol);
Result<int> bind(int fd, const sockaddr* address, socklen_t length);
Result<int> connect(int fd, const sockaddr* address, socklen_t length);
/// There are connections that were handed back, of which connect() to AF_UNSPEC takes the name off.
extern std::atomic<bool> has_automatic_names;
/// connect() on one. kOnKernel (posix/socket.h): `fd` is none.
Result<int> disconnect_handed_back(int fd, const sockaddr* address, socklen_t length);
inline bool may_disconnect_handed_back(const sockaddr* address, socklen_t length) {
  sa_family_t family = AF_UNIX;
  return has_automatic_names.load(std::memory_order_relaxed) && length >= sizeof family &&
         get_user(family, address) && family == AF_UNSPEC;
}
Result<int> listen(int fd, int backlog);
Result<int> accept4(int fd, sockaddr* address, socklen_t* length, int flags);
Result<int> shutdown(int fd, int how);
Result<int> getsockname(int fd, sockaddr* address, socklen_t* length);
Result<int> getpeername(int fd, sockaddr* address, socklen_t* length);
Result<int> getsockopt(int fd, int level, int name, void* value, socklen_t* length);
Result<int> setsockopt(int fd, int level, int name, const void* value, socklen_t length);
Result<int> ioctl(int fd, unsigned long request, void* argument);
/// For commands that concern us (F_SETFL, F_GETFL, F_DUPFD, F_DUPFD_CLOEXEC, F_SETOWN ...); others go to
/// real.fcntl inside.
Result<int> fcntl(int fd, int command, void* argument);

// ---- bytes (posix/transfer.cc): every read/write/send/recv variant arrives as one of these ----
Result<ssize_t> recvmsg(int fd, msghdr* message, int flags);
Result<ssize_t> sendmsg(int fd, const msghdr* message, int flags);
/// The common cases without a msghdr; semantics of recv(2)/send(2) and read/write (flags 0).
Result<ssize_t> recv(int fd, void* data, size_t size, int flags);
Result<ssize_t> send(int fd, const void* data, size_t size, int flags);
Result<ssize_t> recvfrom(int fd, void* data, size_t size, int flags, sockaddr* from, socklen_t* from_length);
Result<ssize_t> sendto(int fd, const void* data, size_t size, int flags, const sockaddr* to,
                       socklen_t to_length);
/// `flags`: RWF_..., of preadv2() and pwritev2().
Result<ssize_t> readv(int fd, const iovec* vector, int count, int flags = 0);
Result<ssize_t> writev(int fd, const iovec* vector, int count, int flags = 0);
Result<int> recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout);
Result<int> sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags);
/// `out` is ours; `in` any descriptor (a file, a pipe).
Result<ssize_t> sendfile(int out, int in, off_t* offset, size_t count);
/// splice, tee, vmsplice, copy_file_range on a descriptor of ours: through a buffer of our own or by
/// hand-back, with the kernel's result.
Result<ssize_t> splice(int in, off64_t* in_offset, int out, off64_t* out_offset, size_t size, unsigned flags);

// ---- descriptors (posix/descriptors.cc) ----
Result<int> close(int fd);
/// Always called when any descriptor of ours lies in the range, or when flags ask for CLOEXEC/UNSHARE.
Result<int> close_range(unsigned first, unsigned last, int flags);
Result<int> dup(int fd);
/// Called when either is ours.
Result<int> dup2(int from, int to);
Result<int> dup3(int from, int to, int flags);

// ---- readiness (posix/epoll_calls.cc, poll_select.cc) ----
/// Always called; the set's File enters the table on epoll_create.
Result<int> epoll_create1(int flags);
Result<int> epoll_ctl(int set, int operation, int fd, epoll_event* event);
/// `timeout`: nullptr waits for ever.
Result<int> epoll_wait(int set, epoll_event* events, int size, const timespec* timeout, const sigset_t* mask);
/// After a look at a plain set by the real call, which gave `got`: it has become ours meanwhile.
Result<int> epoll_look_again(int set, epoll_event* events, int size, int got);
/// Called when one of the descriptors is ours (any_owned()); `timeout` nullptr: for ever.
Result<int> ppoll(pollfd* descriptors, nfds_t count, const timespec* timeout, const sigset_t* mask);
Result<int> pselect(int count, fd_set* read, fd_set* write, fd_set* except, const timespec* timeout,
                    const sigset_t* mask, timespec* left);
bool any_owned(const pollfd* descriptors, nfds_t count);
bool any_owned(int count, const fd_set* read, const fd_set* write, const fd_set* except);

// ---- processes (posix/fork.cc, programs.cc, engine_life.cc) ----
/// vfork() cannot be wrapped: the wrapper for it calls fork() when we own something, else jumps to the real
/// one.
bool must_fork_for_vfork();
/// What becomes a copy of the process (fork(), _Fork(), clone() without CLONE_VM): before it, and after it in
/// both (`child` is 0 in the child, -1 when it failed). Cheap when the process has no engine and no
/// descriptor of ours. No wait, no allocation, nothing of pthread_atfork.
void prepare_fork();
void after_fork(pid_t child);
/// after_fork() was told of a child, and there is none.
void fork_failed();
/// Listening sockets that this program was started with (systemd's LISTEN_FDS, nginx's new binary) become
/// ours. Once; cheap.
void adopt_listeners();
/// A message came that may have brought descriptors (SCM_RIGHTS): listeners and bound UDP sockets among them
/// become ours.
void adopt_received(const msghdr& message);
/// The same for a descriptor taken from another process.
void adopt_received(int fd);
/// Always called. EOPNOTSUPP: it is an iWARP connection, which cannot go to another process.
Result<int> pidfd_getfd(int pidfd, int target, unsigned flags);
/// Before exec: inherited descriptors (without CLOEXEC) are made fit for the next program, or kept from it
/// (iWARP connections), the rest is finished as at exit.
void before_exec();
/// exec came back with an error: carry on.
void after_failed_exec();
/// At exit(), _exit(), quick_exit(): nothing that send() accepted is lost.
void at_exit();
/// The program is about to cancel a thread for the first time, or again, and cancellation_used says so. When
/// this returns no thread is inside the lock that has not seen it.
void before_cancelling();
/// Descriptors that a spawned child is given become the kernel's: its standard streams, and what its file
/// actions (posix_spawn_file_actions_t, or nullptr) dup2(). Others it is not told of.
void before_spawn(const void* actions = nullptr);
/// File actions are libc's to read, so what they dup2() is noted as it is added.
void add_spawn_source(const void* actions, int fd);
void forget_spawn_sources(const void* actions);
/// SCM_RIGHTS: descriptors about to be passed away are handed to the kernel (called by sendmsg on AF_UNIX
/// sockets too). EOPNOTSUPP: there is an iWARP connection among them, which cannot go to another process.
Result<void> before_passing(const msghdr* message);
/// libc is about to use `fd` (one of ours) past us: fdopen()'s streams, dup2() to 0..2, bindresvport(). Hands
/// it to the kernel. Returns when the kernel serves it; without success the caller goes on all the same, but
/// for fdopen() of an iWARP connection (EOPNOTSUPP).
Result<void> before_stdio(int fd);
/// The kernel gave out `fd` for something new while the table names it still: it was closed past us. Takes
/// the entry out.
void reused(int fd);
/// Is anything of ours alive in this process? One load.
bool active();
/// A port is being opened, or about to be, which takes the lowest free numbers for moments. One load.
bool opens_ports();
/// Before calls that say which numbers they rely on: who closes a standard stream opens the next one at once,
/// who names a new number knows what is behind it. Waits for ports that are being opened.
void settle_numbers();

// ---- signals (posix/signals.cc) ----
Result<int> sigaction(int number, const struct sigaction* action, struct sigaction* old);

// ---- what takes every socket from us (posix/retire.cc) ----
/// A request of an io_uring is about to use `fd`, one of ours: it becomes the kernel's, of a set all members.
void used_by_ring(int fd);
/// There is an io_uring whose requests cannot be seen: sockets made from now on stay on the kernel, those
/// that exist are handed over.
void io_uring_used();

/// The same for a thread that waits past libc (posix/foreign_waits.h). On the request thread.
void detach_for_foreign_waits();
/// Everything is handed over, and the library's threads end. True: from then on it does nothing in this
/// process. False: there is a connection that could not follow. Reasons: `filter`, where the calling thread
/// is about to lose system calls (seccomp(2)), among them perhaps those that the library makes;
/// `single_thread`.
bool retire(Reason reason);
/// retire() has succeeded.
bool retired();
/// The process has no thread but the calling one and the library's.
bool only_own_threads_run();

}  // namespace accel::posix
