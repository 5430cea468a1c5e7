// A worker: what a process may have several of. Each is behind a lock of its own; there is one so far.
//
// It does not know the process (engine/process.h), which has it, and does what takes both.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/counters.h"
#include "base/instant.h"
#include "base/result.h"
#include "engine/frame_region.h"
#include "engine/leases.h"
#include "engine/lock.h"
#include "engine/port_slots.h"
#include "engine/sleepers.h"
#include "engine/turn.h"
#include "stack/frame_pool.h"
#include "stack/stack.h"

namespace accel {

class Worker {
 public:
  explicit Worker(PortSlots& slots) : slots_(slots) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  /// Memory for so many frames with buffers of `size` bytes, and the stack.
  Result<void> start(size_t frames, uint32_t size, bool huge_pages, const StackConfig& config);

  /// What has come is the stack's, as far as a poll takes it. False: nothing came.
  bool receive(Instant now) ACCEL_REQUIRES(worker_lock);
  /// What the stack has to send is the ports', as far as they take it. `contended`: other threads may want
  /// the lock, so devices are told without it (Port::defer_telling()).
  void transmit(bool contended) ACCEL_REQUIRES(worker_lock);
  bool tx_waiting() const ACCEL_REQUIRES(worker_lock);
  /// The ports whose devices are still to be told: by Port::tell(), once the lock is let go. Gives how many.
  size_t begin_telling(std::array<Port*, kMaxInterfaces>& ports) ACCEL_REQUIRES(worker_lock);
  /// Descriptors of the ports tell of frames from now on. False: some are there.
  bool arm() ACCEL_REQUIRES(worker_lock);
  bool bursts_pay() const ACCEL_REQUIRES(worker_lock);  ///< some port's PortInfo::told_by_call
  /// The handshake is over, and neither TIME-WAIT nor the end has come.
  bool is_open(const TcpConn& conn) const ACCEL_REQUIRES(worker_lock);

  void note_pass() ACCEL_REQUIRES(worker_lock) {
    if (thread_state.controls) return;
    passes.store(passes.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  WorkerLock lock;
  Counters counters;  ///< what is written for each frame; Process::count() has the sum
  FrameRegion region;
  std::unique_ptr<FramePool> pool;
  std::unique_ptr<Stack> stack ACCEL_POINTEE_GUARDED_BY(worker_lock);
  Leases leases;

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

 private:
  void transmit(InterfaceId id, bool contended) ACCEL_REQUIRES(worker_lock);

  PortSlots& slots_;
};

}  // namespace accel
