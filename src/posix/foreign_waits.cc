#include "posix/foreign_waits.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include "base/own_table.h"
#include "base/proc.h"
#include "posix/calls.h"
#include "posix/epoll_set.h"
#include "posix/guard.h"
#include "posix/request_thread.h"
#include "posix/socket.h"

namespace accel::posix {
namespace {

/// While the application is at work (a tick is 10 ms or more).
constexpr int kBusyTicks = 100;
constexpr size_t kMostPolled = 1024;
/// At most so much of the time goes into looking: a process may have thousands of threads.
constexpr int kOneOf = 20;

uint64_t seen_epoch = 0;  ///< of readiness_epoch; under the lock
int busy_ticks = 0;       ///< the control thread's

/// The system call in which a thread sleeps.
struct Sleep {
  long number = -1;
  std::array<uint64_t, 3> arguments{};
  bool operator==(const Sleep&) const = default;
};

std::optional<Sleep> sleep_of(const std::string& thread) {
  const std::string text = read_proc("/proc/self/task/" + thread + "/syscall");
  Sleep s;
  const int read = std::sscanf(text.c_str(), "%ld 0x%" SCNx64 " 0x%" SCNx64 " 0x%" SCNx64, &s.number,
                               &s.arguments[0], &s.arguments[1], &s.arguments[2]);
  if (read != 4) return std::nullopt;  // "running", or on its way
  return s;
}

bool is_epoll(long number) {
#ifdef SYS_epoll_wait
  if (number == SYS_epoll_wait) return true;
#endif
  return number == SYS_epoll_pwait || number == 441;  // epoll_pwait2, on all machines
}

bool is_poll(long number) {
#ifdef SYS_poll
  if (number == SYS_poll) return true;
#endif
  return number == SYS_ppoll;
}

bool is_select(long number) {
#ifdef SYS_select
  if (number == SYS_select) return true;
#endif
  return number == SYS_pselect6;
}

/// The thread may return, and its memory go, while this reads it.
bool read_memory(void* to, uint64_t from, size_t size) {
  const iovec local{to, size};
  const iovec remote{reinterpret_cast<void*>(from), size};  // NOLINT: an address of this process
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == static_cast<ssize_t>(size);
}

/// A set that is waited on, though nobody waits by libc's functions.
bool foreign_on_set(int fd) {
  const EpollSet* set = find_set(fd);
  return set != nullptr && set->has_items() && set->waiters == 0 && !set->waited_on_by_libc();
}

/// A listener or UDP socket likewise. The shadow of a connection is not connected: poll() on it returns at
/// once, so nobody sleeps there.
bool foreign_on_socket(int fd) {
  File* file = fds.find(fd);
  if (file == nullptr || file->inherited != File::Inherited::kNo) return false;
  if (file->kind() == FileKind::kEpoll) return foreign_on_set(fd);
  return file->bound_flow() != nullptr && file->waiters == 0;
}

std::vector<int> polled_by(const Sleep& s) {
  std::vector<pollfd> polled(std::min<uint64_t>(s.arguments[1], kMostPolled));
  if (!read_memory(polled.data(), s.arguments[0], polled.size() * sizeof(pollfd))) return {};
  std::vector<int> found;
  for (const pollfd& p : polled) found.push_back(p.fd);
  return found;
}

std::vector<int> selected_by(const Sleep& s) {
  constexpr size_t kWord = 8 * sizeof(unsigned long);
  const auto count = std::min<size_t>(s.arguments[0], kMostPolled);
  std::vector<int> found;
  for (size_t which : {1u, 2u}) {
    std::array<unsigned long, kMostPolled / kWord> bits{};
    if (s.arguments[which] == 0) continue;
    if (!read_memory(bits.data(), s.arguments[which], (count + kWord - 1) / kWord * sizeof(bits[0])))
      continue;
    for (size_t fd = 0; fd < count; ++fd)
      if ((bits[fd / kWord] >> (fd % kWord) & 1) != 0) found.push_back(static_cast<int>(fd));
  }
  return found;
}

/// The descriptors that the thread sleeps on. Empty: none that counts here.
std::vector<int> descriptors_of(const Sleep& s) {
  if (is_epoll(s.number)) return {static_cast<int>(s.arguments[0])};
  if (is_poll(s.number)) return polled_by(s);
  return is_select(s.number) ? selected_by(s) : std::vector<int>{};
}

/// Under the lock: threads that wait by libc's functions are noted there before they sleep.
bool foreign(const Sleep& s) {
  const std::vector<int> descriptors = descriptors_of(s);
  return std::any_of(descriptors.begin(), descriptors.end(), foreign_on_socket);
}

/// Without the lock, which the program's threads want: whether any is ours. Threads of the library's own
/// sleep on descriptors that are not.
bool worth_a_look(const Sleep& s) {
  const std::vector<int> descriptors = descriptors_of(s);
  return std::any_of(descriptors.begin(), descriptors.end(),
                     [](int fd) { return fds.owns(fd) && !fds.plain(fd); });
}

void find_sleeping_threads(std::vector<std::pair<std::string, Sleep>>& found) {
  const std::unique_ptr<DIR, int (*)(DIR*)> tasks(opendir("/proc/self/task"),
                                                  [](DIR* d) { return closedir(d); });
  while (const dirent* task = tasks ? readdir(tasks.get()) : nullptr) {
    if (task->d_name[0] == '.' || std::atoi(task->d_name) == gettid()) continue;
    if (const auto s = sleep_of(task->d_name); s && worth_a_look(*s)) found.emplace_back(task->d_name, *s);
  }
}

std::vector<std::pair<std::string, Sleep>> sleeping_threads() {
  std::vector<std::pair<std::string, Sleep>> found;
  in_own_table([&] { find_sleeping_threads(found); });
  return found;
}

/// Something may be ready that nobody hears of.
bool look_wanted(bool absent) {
  std::atomic<int>& looks_left = EpollSet::looks_for_first_wait;
  const bool first_wait = looks_left.load(std::memory_order_relaxed) > 0;
  if (first_wait) looks_left.fetch_sub(1, std::memory_order_relaxed);
  if (!first_wait && !absent && ++busy_ticks < kBusyTicks) return false;
  busy_ticks = 0;
  Guard guard(Pass::Polling::kNo);
  if (guard.pass() == nullptr || sockets_stay()) return false;
  return std::exchange(seen_epoch, readiness_epoch) != readiness_epoch || first_wait;
}

bool find_foreign_wait() {
  for (const auto& [thread, before] : sleeping_threads()) {
    Guard guard(Pass::Polling::kNo);
    if (guard.pass() == nullptr) return false;
    // Waits on a set that was plain end without the lock, and none begins any more. So their count is read
    // before the sleep: a thread that wakes in between is no foreign one. What it polls is read once more.
    if (foreign(before) && sleep_of(thread) == before && foreign(before)) return true;
  }
  return false;
}

}  // namespace

void look_for_foreign_waits(bool absent) {
  using Clock = std::chrono::steady_clock;
  static Clock::time_point next{};
  const Clock::time_point begin = Clock::now();
  if (begin < next || !look_wanted(absent)) return;
  const bool found = find_foreign_wait();
  next = begin + kOneOf * (Clock::now() - begin);
  if (found) request_thread_detach_for_foreign_waits();
}

}  // namespace accel::posix
