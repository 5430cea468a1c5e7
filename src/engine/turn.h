// Turns of a program's event loop, whose frames may leave together.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/instant.h"

namespace accel {

/// A turn begins when epoll_wait() reports several sockets to a thread, and ends with that thread's next
/// wait. Each time that an AF_XDP device is told of frames costs a system call, and wakes the peer. So what
/// the calls of a turn send is kept until every socket that was reported has been answered, until the thread
/// waits, or until a call comes kLongest after the first of it. A turn of one socket keeps nothing.
///
/// Nobody can tell what the program does between two calls. Where frames were kept for more than kLate, the
/// next turns keep nothing, and twice as many each time. Frames that are kept when a program makes no
/// further call leave with housekeeping's next look. Under the worker's lock, but for what is said of
/// threads.
class Turns {
 public:
  static constexpr Duration kLongest = 50us, kLate = 200us;
  /// The program has left its loop for something else.
  static constexpr Duration kLongestTurn = 10ms;

  /// epoll_wait() gives the calling thread the events of so many sockets of ours; 0: no turn.
  void begin(size_t sockets, Instant now);
  /// The calling thread waits.
  static void over();
  /// The calling thread has sent by this socket.
  static void answered(const void* socket);
  /// Whether what the calling thread's call has to send may stay.
  bool keep(Instant now);
  /// What was kept leaves.
  void let_go(Instant now) {
    if (since_ != kNever) end(now);
  }
  bool keeping() const { return since_ != kNever; }
  /// When frames that are kept are overdue; before all else where there are none.
  Instant overdue() const { return keeping() ? since_ + kLate : Instant{}; }

 private:
  void end(Instant now);
  Instant since_ = kNever;  ///< of the oldest frame that is kept
  uint32_t barred_ = 0;     ///< turns that keep nothing, still
  uint32_t penalty_ = kFirstPenalty;
  uint32_t in_time_ = 0;  ///< ends since the last penalty
  uint32_t doubt_ = 0;    ///< more with each late end, less with each in time
  /// Another process may have had the CPU: one late end in kDoubt is nothing.
  static constexpr uint32_t kDoubt = 8, kMostDoubt = 5 * kDoubt;
  static constexpr uint32_t kFirstPenalty = 16, kLastPenalty = 1 << 16, kTrusted = 1024;
};

}  // namespace accel
