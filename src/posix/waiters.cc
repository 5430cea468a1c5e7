#include "posix/waiters.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/real.h"

namespace accel::posix {
namespace {

constexpr size_t kMostProcesses = 256;  ///< those beyond get nothing from the others

struct alignas(64) Place {
  std::atomic<int32_t> process;  ///< 0: free
  std::atomic<int32_t> threads;  ///< that wait
  std::atomic<uint32_t> user;
};

Place* places = nullptr;  ///< MAP_SHARED
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
  for (size_t i = 0; own == nullptr && places != nullptr && i < kMostProcesses; ++i)
    if (!take(places[i], getpid())) take(places[i], 0);
  for (size_t i = 0; own == nullptr && places != nullptr && i < kMostProcesses; ++i)
    if (const int32_t process = places[i].process.load(); !lives(process)) take(places[i], process);
  return own;
}

}  // namespace

void share_waiters() {
  if (places != nullptr) return;
  void* memory = mmap(nullptr, kMostProcesses * sizeof(Place), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory != MAP_FAILED) places = static_cast<Place*>(memory);
}

void waiters_after_fork_in_child() { own = nullptr; }

bool waiters_are_shared() { return places != nullptr; }

bool others_wait_for_connections() {
  const uid_t user = geteuid();
  bool found = false;
  for (size_t i = 0; places != nullptr && i < kMostProcesses; ++i) {
    Place& place = places[i];
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

WaitsForConnections::WaitsForConnections(bool with_others) : noted_(with_others && own_place() != nullptr) {
  if (noted_) own->threads.fetch_add(1);
}

WaitsForConnections::~WaitsForConnections() {
  if (noted_ && own != nullptr) own->threads.fetch_sub(1);
}

}  // namespace accel::posix
