// posix for the shim's own tests: every Internet socket and every epoll set is "ours", each function writes
// its name to the file $ACCEL_STUB_LOG and does what the kernel does. With $ACCEL_STUB_IDLE nothing is ever
// ours.
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/real.h"
#include "posix/api.h"
#include "posix/calls.h"
#include "posix/connect_rules.h"
#include "posix/lease.h"
#include "posix/privilege.h"
#include "posix/same_host.h"

namespace accel::posix {

FdTable fds;

namespace {

struct Kernel final : File {
  Kernel() : File(FileKind::kTcp) {}
  uint32_t readiness() override { return 0; }
  int kernel_fd() override { return -1; }
  void on_last_close(Pass*) override {}
};

std::atomic<int> owned_files{0};
bool forking_for_vfork = getenv("ACCEL_STUB_FORK") != nullptr;

/// Leaves an errno behind, as what is done for a call may: the wrapper is to put it right.
void log(const char* name) {
  if (const char* path = getenv("ACCEL_STUB_LOG")) {
    char line[64];
    const int n = snprintf(line, sizeof line, "%s\n", name);
    const int fd = real.open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd >= 0) {
      real.write(fd, line, static_cast<size_t>(n));
      real.close(fd);
    }
  }
  errno = ENOTBLK;
}

template <class T>
Result<T> answer(T value) {
  if (value < 0) return err(errno);
  return value;
}

int take(int fd) {
  static Kernel file;
  if (fd >= 0 && getenv("ACCEL_STUB_IDLE") == nullptr && fds.insert(fd, &file)) owned_files.fetch_add(1);
  return fd;
}

void drop(int fd) {
  if (!fds.owns(fd)) return;
  fds.erase(fd, nullptr);
  owned_files.fetch_sub(1);
}

}  // namespace

std::atomic<bool> has_automatic_names{false};

constinit Candidates candidates;  // never any
void Candidates::enter(int, uint32_t) {}
void Candidates::note_option(int, int, int, const void*, socklen_t) {}
void Candidates::closes(int) {}
void take_candidate(int) {}

// A table without files' lives.
void FdTable::open() {
  if (slots_ != nullptr) return;
  slots_ = static_cast<std::atomic<File*>*>(
      mmap(nullptr, 4096 * sizeof(*slots_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  size_ = 4096;
}
bool FdTable::insert(int fd, File* file) {
  open();
  if (fd < 0 || static_cast<unsigned>(fd) >= size_) return false;
  slots_[fd].store(file);
  return true;
}
void FdTable::erase(int fd, Pass*) { slots_[fd].store(nullptr); }

Result<int> socket(int domain, int type, int protocol) {
  log("socket");
  return answer(take(real.socket(domain, type, protocol)));
}
Result<int> epoll_create1(int flags) {
  log("epoll_create1");
  return answer(take(real.epoll_create1(flags)));
}
Result<int> accept4(int fd, sockaddr* address, socklen_t* length, int flags) {
  log("accept4");
  return answer(take(real.accept4(fd, address, length, flags)));
}
Result<int> dup(int fd) {
  log("dup");
  return answer(take(real.dup(fd)));
}
Result<int> dup2(int from, int to) {
  log("dup2");
  return answer(take(real.dup2(from, to)));
}
Result<int> dup3(int from, int to, int flags) {
  log("dup3");
  return answer(take(real.dup3(from, to, flags)));
}
Result<int> close(int fd) {
  log("close");
  drop(fd);
  return answer(real.close(fd));
}
Result<int> close_range(unsigned first, unsigned last, int flags) {
  log("close_range");
  fds.for_each(static_cast<int>(first), last > 4095 ? 4095 : static_cast<int>(last),
               [](int fd, File*) { drop(fd); });
  return answer(real.close_range(first, last, flags));
}

// The rest passes on: SAME(result, name, parameters, arguments).
#define SAME(result, name, parameters, arguments) \
  Result<result> name parameters {                \
    log(#name);                                   \
    return answer<result>(real.name arguments);   \
  }
SAME(int, bind, (int fd, const sockaddr* a, socklen_t n), (fd, a, n))
SAME(int, connect, (int fd, const sockaddr* a, socklen_t n), (fd, a, n))
SAME(int, listen, (int fd, int backlog), (fd, backlog))
SAME(int, shutdown, (int fd, int how), (fd, how))
SAME(int, getsockname, (int fd, sockaddr* a, socklen_t* n), (fd, a, n))
SAME(int, getpeername, (int fd, sockaddr* a, socklen_t* n), (fd, a, n))
SAME(int, getsockopt, (int fd, int level, int name, void* v, socklen_t* n), (fd, level, name, v, n))
SAME(int, setsockopt, (int fd, int level, int name, const void* v, socklen_t n), (fd, level, name, v, n))
SAME(int, ioctl, (int fd, unsigned long request, void* argument), (fd, request, argument))
SAME(int, fcntl, (int fd, int command, void* argument), (fd, command, argument))
SAME(ssize_t, recvmsg, (int fd, msghdr* m, int flags), (fd, m, flags))
SAME(ssize_t, sendmsg, (int fd, const msghdr* m, int flags), (fd, m, flags))
SAME(ssize_t, recv, (int fd, void* d, size_t n, int flags), (fd, d, n, flags))
SAME(ssize_t, send, (int fd, const void* d, size_t n, int flags), (fd, d, n, flags))
SAME(ssize_t, recvfrom, (int fd, void* d, size_t n, int flags, sockaddr* a, socklen_t* l),
     (fd, d, n, flags, a, l))
SAME(ssize_t, sendto, (int fd, const void* d, size_t n, int flags, const sockaddr* a, socklen_t l),
     (fd, d, n, flags, a, l))
Result<ssize_t> readv(int fd, const iovec* v, int n, int flags) {
  log("readv");
  return answer(real.preadv2(fd, v, n, -1, flags));
}
Result<ssize_t> writev(int fd, const iovec* v, int n, int flags) {
  log("writev");
  return answer(real.pwritev2(fd, v, n, -1, flags));
}
SAME(int, recvmmsg, (int fd, mmsghdr* m, unsigned n, int flags, timespec* t), (fd, m, n, flags, t))
SAME(int, sendmmsg, (int fd, mmsghdr* m, unsigned n, int flags), (fd, m, n, flags))
SAME(ssize_t, sendfile, (int out, int in, off_t* o, size_t n), (out, in, o, n))
SAME(ssize_t, splice, (int in, off64_t* io, int out, off64_t* oo, size_t n, unsigned flags),
     (in, io, out, oo, n, flags))
SAME(int, epoll_ctl, (int set, int op, int fd, epoll_event* e), (set, op, fd, e))
SAME(int, ppoll, (pollfd * d, nfds_t n, const timespec* t, const sigset_t* m), (d, n, t, m))
SAME(int, sigaction, (int number, const struct sigaction* a, struct sigaction* old), (number, a, old))
#undef SAME

Result<int> epoll_look_again(int, epoll_event*, int, int got) { return got; }
Result<int> epoll_wait(int set, epoll_event* events, int size, const timespec* t, const sigset_t* m) {
  log("epoll_wait");
  return answer(real.epoll_pwait2(set, events, size, t, m));
}
Result<int> pselect(int n, fd_set* r, fd_set* w, fd_set* e, const timespec* t, const sigset_t* m,
                    timespec* left) {
  log("pselect");
  if (left != nullptr && left->tv_sec > 0) --left->tv_sec;  // to see that select() passes it on
  return answer(real.pselect(n, r, w, e, t, m));
}
bool any_owned(const pollfd* descriptors, nfds_t count) {
  for (nfds_t i = 0; i < count; ++i)
    if (fds.owns(descriptors[i].fd)) return true;
  return false;
}
bool any_owned(int count, const fd_set* read, const fd_set* write, const fd_set* except) {
  for (int fd = 0; fd < count; ++fd)
    for (const fd_set* set : {read, write, except})
      if (set != nullptr && FD_ISSET(fd, set) && fds.owns(fd)) return true;
  return false;
}

void prepare_fork() { log("prepare_fork"); }
void fork_failed() { log("fork_failed"); }
void after_fork(pid_t child) { log(child == 0 ? "after_fork child" : "after_fork parent"); }
bool must_fork_for_vfork() {
  errno = ENOTBLK;
  return forking_for_vfork;
}
void before_exec() { log("before_exec"); }
void after_failed_exec() { log("after_failed_exec"); }
void at_exit() { log("at_exit"); }
void before_cancelling() { log("before_cancelling"); }
bool retire(Reason) {
  errno = ENOTBLK;
  return false;
}
bool only_own_threads_run() { return false; }
void before_privileges_go(bool) { log("before_privileges_go"); }
void before_root_changes() { log("before_root_changes"); }
void connect_rules_change() { log("connect_rules_change"); }
void after_privileges_changed() { log("after_privileges_changed"); }
void before_spawn(const void*) { log("before_spawn"); }
void add_spawn_source(const void*, int) { errno = ENOTBLK; }
void forget_spawn_sources(const void*) { errno = ENOTBLK; }
Result<void> before_passing(const msghdr*) {
  log("before_passing");
  return {};
}
Result<void> before_stdio(int fd) {
  log("before_stdio");
  drop(fd);
  return {};
}
bool opens_ports() { return false; }
void settle_numbers() {}
void reused(int fd) {
  log("reused");
  drop(fd);
}
bool active() { return owned_files.load(std::memory_order_relaxed) > 0; }
void io_uring_used() { log("io_uring_used"); }
void used_by_ring(int) { log("used_by_ring"); }
void adopt_listeners() { log("adopt_listeners"); }
void adopt_received(const msghdr&) { log("adopt_received"); }
Result<Description> describe(int, bool) {
  log("describe");
  return Description{};
}
Result<ssize_t> receive_lease(int, LeaseCall&) {
  log("receive_lease");
  return err(EOPNOTSUPP);
}
Result<void> release_lease(uint64_t) {
  log("release_lease");
  return {};
}
void set_thread_spin(int) {}
int thread_spin() { return -1; }
Result<int> pidfd_getfd(int, int, unsigned) {
  log("pidfd_getfd");
  return 7;
}

}  // namespace accel::posix
