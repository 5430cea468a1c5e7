// The worker's lock, and the thread's knowledge of being inside it.
#pragma once

#include <linux/futex.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <utility>

#include "base/instant.h"
#include "base/mutex.h"
#include "base/put_off_signals.h"
#include "base/real.h"

namespace accel {

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// A futex (as in Drepper, "Futexes are tricky", mutex 2). Uncontended, entering is one atomic. Not
/// recursive.
class ACCEL_CAPABILITY("worker lock") WorkerLock {
 public:
  void lock() ACCEL_ACQUIRE() {
    uint32_t expected = kFree;
    if (!word_.compare_exchange_strong(expected, kHeld, std::memory_order_acquire)) lock_slowly();
  }
  bool try_lock() ACCEL_TRY_ACQUIRE(true) {
    uint32_t expected = kFree;
    return word_.compare_exchange_strong(expected, kHeld, std::memory_order_acquire);
  }
  void unlock() ACCEL_RELEASE() {
    if (word_.exchange(kFree, std::memory_order_release) == kContended)
      real.syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }
  bool contended() const { return word_.load(std::memory_order_relaxed) == kContended; }

 private:
  static constexpr uint32_t kFree = 0, kHeld = 1, kContended = 2;
  static constexpr int kSpins = 200;

  /// The word is the lock, which the analysis cannot see.
  [[gnu::noinline]] void lock_slowly() ACCEL_LOCKS_UNCHECKED {
    for (int i = 0; i < kSpins; ++i) {
      pause_cpu();
      if (word_.load(std::memory_order_relaxed) == kFree && try_lock()) return;
    }
    // Whoever slept takes it as contended: others may sleep still, and one wake-up too many is harmless.
    while (word_.exchange(kContended, std::memory_order_acquire) != kFree)
      real.syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, kContended, nullptr, nullptr, 0);
  }

  std::atomic<uint32_t> word_{kFree};
};

/// The capability of a thread that is inside its worker's lock. A worker's parts are objects of their own,
/// and the analysis does not see that a reference of one leads to the lock of another: all of them name this
/// instead. A process has one worker.
class ACCEL_CAPABILITY("held worker lock") HeldWorkerLock {};
extern const HeldWorkerLock worker_lock;

/// What ends a thread's sleep.
struct Alarm {
  int fd;  ///< an eventfd; -1: it has none, and sleeps on the semaphore
  sem_t* semaphore;
  void ring() const;  ///< no cancellation point, and for handlers too
};

/// The thread's own state, which its signal handlers read. signal_brackets says whether it is inside.
struct ThreadState {
  bool waiting = false;           ///< in Engine::wait()
  bool signal_ran = false;        ///< a handler ran since the wait began
  bool all_restart = true;        ///< all those had SA_RESTART
  const void* handler = nullptr;  ///< frame of the program's innermost handler
  Alarm alarm{-1, nullptr};       ///< while `waiting`
  int retaining = 0;      ///< waits, those included that a handler has left, of calls with a reference
  bool controls = false;  ///< the control thread: its passes are not the application's
  Duration spin{-1};      ///< Engine::set_thread_spin(); negative: the setting holds
};
extern thread_local ThreadState thread_state [[gnu::tls_model("initial-exec")]];

/// The calling thread is in a program's handler, which may have interrupted malloc() or the dynamic linker:
/// what needs them, an engine or a port that has to be opened first, is not for it.
bool in_handler();

/// The calling thread's own socket calls, through our wrappers, go to the kernel.
class Inside {
 public:
  Inside() : before_(std::exchange(signal_brackets.worker, true)) {}
  ~Inside() { signal_brackets.worker = before_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  const bool before_;
};

}  // namespace accel
