// A worker: what a process may have several of. Each is behind a lock of its own; there is one so far.
//
// It does not know the process (engine/process.h), which has it, and does what takes both.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/instant.h"
#include "engine/lock.h"
#include "engine/sleepers.h"
#include "engine/turn.h"

namespace accel {

class Worker {
 public:
  Worker() = default;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void note_pass() ACCEL_REQUIRES(worker_lock) {
    if (thread_state.controls) return;
    passes.store(passes.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  WorkerLock lock;

  // ---- the pass that holds it, or that held it last ----
  Instant pass_now ACCEL_GUARDED_BY(worker_lock){};  ///< when it began, or polled last
  Instant last_poll ACCEL_GUARDED_BY(worker_lock){};
  bool cut_short ACCEL_GUARDED_BY(worker_lock) = false;  ///< the last poll left frames in a ring
  bool crowded ACCEL_GUARDED_BY(worker_lock) =
      false;  ///< a poll has found a whole burst; until housekeeping has looked
  bool poll_at_end ACCEL_GUARDED_BY(worker_lock) =
      false;  ///< frames of a connection handed back in it may have come
  bool telling_deferred ACCEL_GUARDED_BY(worker_lock) = false;  ///< Port::defer_telling()
  Changes untold ACCEL_GUARDED_BY(worker_lock);                 ///< that sleepers have not been told of
  Turns turns ACCEL_GUARDED_BY(worker_lock);

  // ---- read without the lock ----
  std::atomic<Instant> next_due{kNever};  ///< Process::due_uncovered() when the last pass ended
  std::atomic<uint64_t> passes{0};        ///< by the application's threads
};

}  // namespace accel
