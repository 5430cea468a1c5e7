// Signals that are put off. No handler of the program's runs while its thread is inside one of the library's
// brackets: the handler's own socket calls would wait for the thread that it has interrupted. Such a signal
// is blocked and queued again, with its siginfo, so that the kernel delivers it once the thread is outside,
// exactly as if it had arrived then. All of this is async-signal-safe.
#pragma once

#include <signal.h>

#include <atomic>
#include <cstdint>

namespace accel {

/// The calling thread's brackets. Each is set by its owner, from before the lock is taken until it has been
/// let go, which then calls admit_if_outside().
struct SignalBrackets {
  bool worker = false;   ///< the worker's lock (engine/lock.h)
  bool files = false;    ///< the lock of files before there is an engine (posix/guard.h)
  bool memory = false;   ///< the lock of base/memory.h
  uint64_t put_off = 0;  ///< signals that wait, by signal_bit()
  bool inside() const { return worker || files || memory; }
};
extern thread_local SignalBrackets signal_brackets [[gnu::tls_model("initial-exec")]];

constexpr uint64_t signal_bit(int number) { return uint64_t{1} << (number - 1); }
/// Sets the calling thread's mask by the kernel's own call: libc's would leave out the signals that it keeps
/// for itself.
void change_signal_mask(int how, uint64_t set);

/// For a handler, with its own arguments. False: the signal could not be queued, it must run now.
bool put_off_signal(int number, siginfo_t* info, void* context);
/// The handlers of signals that were put off run here.
void admit_put_off_signals();
inline void admit_if_outside() {
  std::atomic_signal_fence(std::memory_order_seq_cst);  // a handler sees that the bracket is left
  if (signal_brackets.put_off != 0 && !signal_brackets.inside()) admit_put_off_signals();
}

}  // namespace accel
