// Sockets of the whole process become the kernel's: for io_uring, for waits that come past us, and when the
// library's threads are to end (posix/calls.h, retire()).
#include <sys/socket.h>

#include <atomic>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "base/real.h"
#include "base/socket_option.h"
#include "engine/stats.h"
#include "posix/calls.h"
#include "posix/control_thread.h"
#include "posix/detach.h"
#include "posix/epoll_set.h"
#include "posix/later_engine.h"
#include "posix/own_thread.h"
#include "posix/process.h"
#include "posix/published.h"
#include "posix/request_thread.h"
#include "posix/socket.h"

namespace accel::posix {
namespace {

void tell_of_stuck(const char* what) {
  log(LogLevel::kError,
      "a connection cannot be used with %s, since it could not be handed back to the kernel: %s", what,
      reason_text(Reason::no_privilege));
}

/// False: it could not follow. `what`: the use that the kernel has to serve, for the message about that.
bool leave(Guard& guard, File* file, Reason reason, const char* what) {
  const bool left = file->inherited == File::Inherited::kNo ? detach(guard.pass(), file, reason)
                                                            : detach_inherited(file, reason);
  if (!left) tell_of_stuck(what);
  return left;
}

/// All sockets of the process, and those that it makes from now on. False: one could not follow.
bool detach_all(Guard& guard, Reason reason, const char* what) {
  bool all = true;
  fds.for_each(0, fds.limit(), [&](int fd, File* file) {
    if (fds.find(fd) != file) return;
    const bool left = leave(guard, file, reason, what);
    all = all && left;
  });
  return all;
}

/// Sockets that are nobody's yet, and sets. A thread that waits in a set still has to find it, and a listener
/// stays that has connections to be accepted which its kernel socket does not know of.
void forget_idle() {
  fds.for_each(0, fds.limit(), [](int fd, File* file) {
    if (fds.find(fd) != file) return;
    const bool idle = file->kind() == FileKind::kEpoll
                          ? !file->waited_on_now()
                          : static_cast<Socket*>(file)->choice.reason == Reason::not_decided;
    if (idle) fds.forget(file);
  });
}

/// Bytes that came into the socket by TCP_REPAIR have woken nobody. Setting these options does, where there
/// is something to read (tcp_set_rcvlowat()) or room to write (sock_setsockopt()).
void wake_kernels_pollers(int fd) {
  const int low = int_option(fd, SOL_SOCKET, SO_RCVLOWAT, 1);
  real.setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low);
}

/// Listeners and UDP sockets get what is queued while they leave: the program's data has to be in the real
/// sets by then. A connection's shadow would report EPOLLHUP until the connection is there.
void end_memberships_of_receivers() {
  fds.for_each(0, fds.limit(), [](int, File* file) {
    if (file->kind() != FileKind::kEpoll) return;
    auto* set = static_cast<EpollSet*>(file);
    set->for_each_item([set](EpollItem& item) {
      if (item.file->bound_flow() != nullptr) set->end(item, true);
    });
  });
}

std::atomic<bool> is_retired{false};

}  // namespace

bool active() { return (fds.limit() > 0 || Engine::get() != nullptr) && !retired(); }

bool retired() { return is_retired.load(std::memory_order_relaxed); }

void io_uring_used() {
  if (sockets_stay_on_kernel.exchange(Reason::io_uring) != Reason::accelerated || !active() ||
      Guard::inside())
    return;
  Guard guard;
  if (guard.ok()) (void)detach_all(guard, Reason::io_uring, "io_uring");
}

void used_by_ring(int fd) {
  if (Guard::inside()) return;
  Guard guard;
  File* file = guard.ok() ? fds.find(fd) : nullptr;
  if (file != nullptr) (void)leave(guard, file, Reason::io_uring, "io_uring");
}

void detach_for_foreign_waits() {
  if (sockets_stay_on_kernel.exchange(Reason::foreign_wait) != Reason::accelerated || !active()) return;
  std::vector<int> sockets;
  Guard guard;
  if (!guard.ok()) return;
  fds.for_each(0, fds.limit(), [&](int fd, File* file) {
    if (file->kind() != FileKind::kEpoll) sockets.push_back(fd);
  });
  end_memberships_of_receivers();
  (void)detach_all(guard, Reason::foreign_wait, "system calls past libc");
  for (int fd : sockets) wake_kernels_pollers(fd);
}

bool only_own_threads_run() { return alone_but_for_own_threads(); }

bool retire(Reason reason) {
  sockets_stay_on_kernel = reason;
  if (!active()) return is_retired.exchange(true), true;
  if (Guard::inside()) return false;
  const bool alone = alone_but_for_own_threads();
  const char* use = reason == Reason::filter ? "a filter of system calls (seccomp)" : "unshare() or setns()";
  end_later_engine();
  {
    Guard guard;
    if (!guard.ok() || !detach_all(guard, reason, use)) return false;
    forget_idle();
    is_retired = true;
  }
  end_request_thread();
  if (Engine* engine = Engine::get()) {
    engine->retire(std::chrono::milliseconds(config().settings.exit_wait_ms));
    end_control_thread();
    Pass pass{*engine, Pass::Polling::kNo};
    publish_sockets(pass);
    stats::close();
  }
  if (alone) wait_until_alone();
  return true;
}

}  // namespace accel::posix
