#include "posix/attendant.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <vector>

#include "base/config.h"
#include "base/poll.h"
#include "base/private_fds.h"
#include "base/real.h"
#include "base/served_call.h"
#include "posix/calls.h"
#include "posix/process.h"
#include "posix/process_door.h"
#include "posix/signals.h"

namespace accel::posix {
namespace {

constexpr size_t kStackSize = 512 * 1024;

constexpr int kNoMemoryPause = 100;  // ms

std::atomic<int> wake_fd{-1};
std::atomic<int> process_door{-1};  ///< posix/process_door.h
std::atomic<bool> running{false};
std::atomic<bool> finish_wanted{false};
std::atomic<bool> end_wanted{false};
std::atomic<bool> leave_wanted{false};
pthread_t thread;
std::atomic<uint32_t> finished{0};
std::atomic<uint32_t> longest_finish{0};  ///< ms; the configuration is not for handlers to read

void wake() {
  const uint64_t one = 1;
  (void)!real.write(wake_fd.load(), &one, sizeof(one));
}

/// False: the thread is to end.
bool attend_once() {
  std::vector<pollfd> watched{{wake_fd.load(), POLLIN, 0}};
  const int most = add_process_door(process_door.load(), watched);
  const size_t doors = watched.size();
  add_doors(watched);
  const timespec limit{most / 1000, most % 1000 * 1'000'000L};
  if (poll_beyond_limit(watched, most < 0 ? nullptr : &limit, nullptr) < 0) return true;
  serve_process_door(process_door.load(), {watched.data() + 1, doors - 1});
  for (size_t i = doors; i < watched.size(); ++i)
    if ((watched[i].revents & POLLIN) != 0) serve_door(watched[i].fd);
  if (watched[0].revents == 0) return true;
  uint64_t count = 0;
  // It fails where the program has closed every descriptor that it does not know.
  if (real.read(wake_fd.load(), &count, sizeof(count)) < 0 || end_wanted.load()) return false;
  serve_claims();
  if (leave_wanted.exchange(false)) leave_for_foreign_waits();
  if (!finish_wanted.load()) return true;
  deliver_all();
  finished.store(1);
  real.syscall(SYS_futex, &finished, static_cast<long>(FUTEX_WAKE_PRIVATE), 0x7fffffffL, 0L, 0L, 0L);
  finish_wanted.store(false);
  return true;
}

void* attend(void*) {
  ServedCall::for_ever();
  for (bool goes_on = true; goes_on;) {
    try {
      goes_on = attend_once();
    } catch (const std::bad_alloc&) {
      real.poll(nullptr, 0, kNoMemoryPause);  // nothing says when there is memory again
    }
  }
  running = false;
  return nullptr;
}

/// In the handler of a fatal signal.
void finish_by_attendant() {
  if (!running.load() || Engine::get() == nullptr) return;
  finish_wanted.store(true);
  wake();
  const uint32_t milliseconds = longest_finish.load();
  const timespec limit{milliseconds / 1000, static_cast<long>(milliseconds % 1000) * 1'000'000};
  real.syscall(SYS_futex, &finished, static_cast<long>(FUTEX_WAIT_PRIVATE), 0L, &limit, 0L, 0L);
}

}  // namespace

void start_attendant() {
  if (running.exchange(true)) return;
  finish_wanted = leave_wanted = false;
  finished = 0;
  longest_finish = config().settings.exit_wait_ms + 1000;
  const int fd = keep_private(real.eventfd(0, EFD_CLOEXEC));
  wake_fd.store(fd);
  process_door.store(open_process_door());
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackSize);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const bool started = fd >= 0 && pthread_create(&thread, &attributes, attend, nullptr) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  if (!started) {
    running = false;
    return;
  }
  pthread_setname_np(thread, "accel-attendant");
  set_fatal_hook(&finish_by_attendant);
}

void end_attendant() {
  if (!running.load()) return;
  end_wanted.store(true);
  wake();
  pthread_join(thread, nullptr);
  if (const int door = process_door.exchange(-1); door >= 0) close_private(door);
}

void attendant_look_again() {
  if (running.load()) wake();
}

void attendant_leave_for_foreign_waits() {
  if (!running.load()) return leave_for_foreign_waits();
  leave_wanted.store(true);
  wake();
}

int attendant_wake_fd() { return running.load() ? wake_fd.load() : -1; }

void attendant_after_fork_in_child(bool keep) {
  running = false;
  forget_process_visitors();
  if (const int door = process_door.exchange(-1); door >= 0) close_private(door);
  const int fd = wake_fd.exchange(-1);
  if (fd >= 0 && !keep) close_private(fd);
}

}  // namespace accel::posix
