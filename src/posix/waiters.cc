#include "posix/waiters.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/real.h"

namespace accel::posix {
namespace {

constexpr size_t kMostProcesses = 256;  ///< those beyond get nothing from the others

constexpr long kSecond = 1'000'000'000, kLongestTurn = 20'000'000;  ///< ns

struct alignas(64) Place {
  std::atomic<int32_t> process;  ///< 0: free
  std::atomic<int32_t> threads;  ///< that wait
  std::atomic<uint32_t> user;
};

struct Page {
  pthread_mutex_t turn;
  Place places[kMostProcesses];
};

Page* page = nullptr;  ///< MAP_SHARED
Place* own = nullptr;

bool lives(int32_t process) {
  return real.syscall(SYS_kill, static_cast<long>(process), 0L) == 0 || errno != ESRCH;
}

/// `from`: 0, or the number of a process that is gone.
bool take(Place& place, int32_t from) {
  if (!place.process.compare_exchange_strong(from, getpid())) return false;
  place.threads.store(0);
  place.user.store(geteuid());
  own = &place;
  return true;
}

Place* own_place() {
  for (size_t i = 0; own == nullptr && page != nullptr && i < kMostProcesses; ++i)
    if (!take(page->places[i], getpid())) take(page->places[i], 0);
  for (size_t i = 0; own == nullptr && page != nullptr && i < kMostProcesses; ++i)
    if (const int32_t process = page->places[i].process.load(); !lives(process))
      take(page->places[i], process);
  return own;
}

}  // namespace

void share_waiters() {
  if (page != nullptr) return;
  void* memory = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  page = static_cast<Page*>(memory);
  pthread_mutexattr_t shared;
  pthread_mutexattr_init(&shared);
  pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&page->turn, &shared);
  pthread_mutexattr_destroy(&shared);
}

void waiters_after_fork_in_child() { own = nullptr; }

bool waiters_are_shared() { return page != nullptr; }

bool others_wait_for_connections() {
  const uid_t user = geteuid();
  bool found = false;
  for (size_t i = 0; page != nullptr && i < kMostProcesses; ++i) {
    Place& place = page->places[i];
    int32_t process = place.process.load();
    if (process == 0 || &place == own) continue;
    if (!lives(process)) {
      place.process.compare_exchange_strong(process, 0);
      continue;
    }
    if (user != 0 && place.user.load() != user) return false;
    found = found || place.threads.load() > 0;
  }
  return found;
}

TimeoutTurn::TimeoutTurn() : granted_(true) {
  if (page == nullptr) return;
  timespec until{};
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += kLongestTurn;
  until.tv_sec += until.tv_nsec / kSecond;
  until.tv_nsec %= kSecond;
  const int error = pthread_mutex_timedlock(&page->turn, &until);
  if (error == EOWNERDEAD) pthread_mutex_consistent(&page->turn);  // killed: the next sets the timeout anew
  granted_ = error == 0 || error == EOWNERDEAD;
}

TimeoutTurn::~TimeoutTurn() {
  if (page != nullptr && granted_) pthread_mutex_unlock(&page->turn);
}

WaitsForConnections::WaitsForConnections(bool with_others) : noted_(with_others && own_place() != nullptr) {
  if (noted_) own->threads.fetch_add(1);
}

WaitsForConnections::~WaitsForConnections() {
  if (noted_ && own != nullptr) own->threads.fetch_sub(1);
}

}  // namespace accel::posix
