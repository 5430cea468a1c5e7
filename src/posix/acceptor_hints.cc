#include "posix/acceptor_hints.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/private_fds.h"
#include "base/real.h"

namespace accel::posix {
namespace {

constexpr size_t kMostProcesses = 256;  ///< those beyond get nothing from the others

constexpr auto kLongestTurn = std::chrono::milliseconds(20);

struct alignas(64) Place {
  std::atomic<int32_t> process;  ///< 0: free
  std::atomic<int32_t> threads;  ///< that wait
  std::atomic<uint32_t> user;
};

/// Other processes may be of another user, so it holds numbers alone: no pointer, no lock of libc's (the list
/// of robust mutexes is in the mutexes). What a hostile one writes misleads the others for a while.
struct Page {
  std::atomic<uint32_t> turn;  ///< the process that has it, 0: nobody
  Place places[kMostProcesses];
};

struct Joined {
  Page* page;  ///< MAP_SHARED
  Place* own;
  int memfd;
  ino_t file;
};

/// Under the lock; others_wait_for_connections() reads without.
constexpr int kMostPages = 4;
Joined joined[kMostPages];
std::atomic<int> pages{0};

bool lives(int32_t process) {
  return real.syscall(SYS_kill, static_cast<long>(process), 0L) == 0 || errno != ESRCH;
}

/// `from`: 0, or the number of a process that is gone.
Place* take(Place& place, int32_t from) {
  if (!place.process.compare_exchange_strong(from, getpid())) return nullptr;
  place.threads.store(0);
  place.user.store(geteuid());
  return &place;
}

Place* find_place(Page& page) {
  for (Place& place : page.places)
    if (Place* own = take(place, getpid())) return own;
  for (Place& place : page.places)
    if (Place* own = take(place, 0)) return own;
  for (Place& place : page.places)
    if (const int32_t process = place.process.load(); !lives(process))
      if (Place* own = take(place, process)) return own;
  return nullptr;
}

Place* own_place(Joined& j) {
  if (j.own == nullptr) j.own = find_place(*j.page);
  return j.own;
}

/// Nobody can cut it off under those who have mapped it.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace

int join_acceptor_hints(int memfd) {
  struct stat s {};
  const int seals = real.fcntl(memfd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals || fstat(memfd, &s) != 0 || s.st_size != sizeof(Page))
    return -1;
  const int count = pages.load();
  for (int i = 0; i < count; ++i)
    if (joined[i].file == s.st_ino) {
      real.close(memfd);
      return i;
    }
  if (count == kMostPages) return -1;
  void* memory = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
  if (memory == MAP_FAILED) return -1;
  joined[count] = {static_cast<Page*>(memory), nullptr, keep_private(memfd), s.st_ino};
  pages.store(count + 1);
  return count;
}

int share_acceptor_hints() {
  if (pages.load() > 0) return 0;
  const int memfd = memfd_create("libaccel-acceptor-hints", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (memfd < 0) return -1;
  const bool made = ftruncate(memfd, sizeof(Page)) == 0 && real.fcntl(memfd, F_ADD_SEALS, kSeals) == 0;
  const int number = made ? join_acceptor_hints(memfd) : -1;
  if (number < 0) real.close(memfd);
  return number;
}

int acceptor_hints_memfd(int page) { return page >= 0 ? joined[page].memfd : -1; }

void acceptor_hints_after_fork_in_child() {
  for (Joined& j : joined) j.own = nullptr;
}

bool acceptor_hints_are_shared() { return pages.load() > 0; }

bool others_wait_for_connections(int page) {
  if (page < 0) return false;
  const uid_t user = geteuid();
  bool found = false;
  for (Place& place : joined[page].page->places) {
    int32_t process = place.process.load();
    if (process == 0 || &place == joined[page].own) continue;
    if (!lives(process)) {
      place.process.compare_exchange_strong(process, 0);
      continue;
    }
    if (user != 0 && place.user.load() != user) return false;
    found = found || place.threads.load() > 0;
  }
  return found;
}

bool others_wait_for_connections() {
  for (int i = 0; i < pages.load(); ++i)
    if (others_wait_for_connections(i)) return true;
  return false;
}

/// A futex. Of one that was killed in its turn the next sets the timeout anew.
TimeoutLock::TimeoutLock(int page) : page_(page), granted_(page < 0) {
  if (page_ < 0) return;
  const auto own = static_cast<uint32_t>(getpid());
  std::atomic<uint32_t>& turn = joined[page_].page->turn;
  const auto end = std::chrono::steady_clock::now() + kLongestTurn;
  for (uint32_t holder = 0; !turn.compare_exchange_strong(holder, own); holder = 0) {
    if (!lives(static_cast<int32_t>(holder)) && turn.compare_exchange_strong(holder, own)) break;
    const auto left = end - std::chrono::steady_clock::now();
    if (left <= left.zero()) return;
    const timespec most{0, std::chrono::duration_cast<std::chrono::nanoseconds>(left).count()};
    real.syscall(SYS_futex, &turn, static_cast<long>(FUTEX_WAIT), static_cast<long>(holder), &most, 0L, 0L);
  }
  granted_ = true;
}

TimeoutLock::~TimeoutLock() {
  if (page_ < 0 || !granted_) return;
  auto own = static_cast<uint32_t>(getpid());
  std::atomic<uint32_t>& turn = joined[page_].page->turn;
  if (turn.compare_exchange_strong(own, 0))
    real.syscall(SYS_futex, &turn, static_cast<long>(FUTEX_WAKE), 1L, 0L, 0L, 0L);
}

AcceptorHint::AcceptorHint(bool with_others) {
  for (int i = 0; with_others && i < pages.load(); ++i)
    if (Place* own = own_place(joined[i])) {
      own->threads.fetch_add(1);
      noted_ |= 1u << i;
    }
}

AcceptorHint::~AcceptorHint() {
  for (int i = 0; noted_ >> i != 0; ++i)
    if ((noted_ >> i & 1) != 0 && joined[i].own != nullptr) joined[i].own->threads.fetch_sub(1);
}

}  // namespace accel::posix
