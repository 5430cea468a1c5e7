#include "posix/later_engine.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>

#include <atomic>
#include <chrono>

#include "base/config.h"
#include "base/instant.h"
#include "base/own_table.h"
#include "base/real.h"
#include "base/served_call.h"
#include "engine/lock.h"
#include "engine/stats.h"
#include "posix/guard.h"
#include "posix/own_thread.h"
#include "posix/signals.h"

namespace accel::posix {
namespace {

/// The port's own delay comes behind it (engine/port_opening.cc).
constexpr Duration kShortLife = 25ms;
/// A program that names descriptors all the time gets its engine all the same.
constexpr Duration kLongestPause = 500ms;
constexpr size_t kSecondStack = 256 * 1024;  ///< of which a few pages are touched

enum : uint32_t {
  kNone,
  kWaiting,  ///< the thread sleeps
  kOpening,
  kStopped,  ///< who said so may join the thread
  kOver,
};
constinit std::atomic<uint32_t> state{kNone};
constinit std::atomic<int64_t> due{0}, asked{0};  ///< as now_ns()
pthread_t thread;
FlowRequest first;  ///< of the connection whose device is to have a port
alignas(64) char second_stack[kSecondStack];

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch() / 1ns; }

void wait_while(uint32_t seen, const timespec* limit) {
  (void)real.syscall(SYS_futex, &state, static_cast<long>(FUTEX_WAIT_PRIVATE), static_cast<long>(seen), limit,
                     0L, 0L);
}

void wake_all() {
  (void)real.syscall(SYS_futex, &state, static_cast<long>(FUTEX_WAKE_PRIVATE), 0x7fffffffL, 0L, 0L, 0L);
}

/// False: it has been stopped.
bool sleep_until_due() {
  while (state.load(std::memory_order_acquire) == kWaiting) {
    const int64_t left = due.load(std::memory_order_relaxed) - now_ns();
    if (left <= 0) return true;
    const timespec limit{left / 1'000'000'000, left % 1'000'000'000};
    wait_while(kWaiting, &limit);
  }
  return false;
}

/// False: it has been postponed.
bool open_if_due() {
  Guard guard(Pass::Polling::kNo);
  if (due.load(std::memory_order_relaxed) > now_ns()) return false;
  uint32_t expected = kWaiting;
  if (!guard.ok() || !state.compare_exchange_strong(expected, kOpening, std::memory_order_acq_rel))
    return true;
  Reason why{};
  Pass* pass = guard.open_engine(&why);
  if (pass != nullptr) (void)pass->engine().choose(*pass, first);  // which has the port asked for
  return true;
}

void* run(void*) {
  ServedCall::for_ever();
  begin_own_tables(second_stack, sizeof second_stack);
  while (sleep_until_due() && !open_if_due()) {
  }
  // Who stopped it joins it, nobody else does.
  if (state.exchange(kOver, std::memory_order_acq_rel) != kStopped) detach_own_thread();
  wake_all();
  return nullptr;
}

}  // namespace

std::optional<Reason> begin_engine_later(const FlowRequest& request) {
  if (state.load(std::memory_order_relaxed) == kWaiting) return Reason::port_opening;
  if (state.load(std::memory_order_relaxed) != kNone || in_handler() || config().waits_for_ports() ||
      config().path_for(request.role, request.remote) == Path::kKernel)
    return {};
  Reason why{};
  if (!Engine::may_open(&why)) return why;
  first = request;
  // In this thread, whose signal() and sigaction() come before or after it.
  guard_fatal_signals();
  // Its high descriptor has the kernel enlarge the table: with a second thread that takes a grace period of
  // RCU (expand_fdtable()).
  stats::open();
  asked.store(now_ns(), std::memory_order_relaxed);
  due.store(now_ns() + kShortLife / 1ns, std::memory_order_relaxed);
  state.store(kWaiting, std::memory_order_release);
  if (start_own_thread(&thread, run, nullptr)) return Reason::port_opening;
  state.store(kNone, std::memory_order_relaxed);
  return {};
}

bool engine_comes_later() {
  const uint32_t now = state.load(std::memory_order_relaxed);
  return now == kWaiting || now == kOpening;
}

void postpone_engine() {
  {
    const Guard until_it_sleeps(Pass::Polling::kNo);
    const int64_t now = now_ns();
    const bool may_wait = now < asked.load(std::memory_order_relaxed) + kLongestPause / 1ns;
    due.store(may_wait ? now + kShortLife / 1ns : now, std::memory_order_relaxed);
    if (may_wait) return;
  }
  wake_all();
  for (uint32_t seen; (seen = state.load(std::memory_order_acquire)) == kWaiting || seen == kOpening;)
    wait_while(seen, nullptr);
}

void drop_later_engine() {
  uint32_t expected = kWaiting;
  state.compare_exchange_strong(expected, kStopped, std::memory_order_acq_rel);
}

void end_later_engine() {
  for (uint32_t seen = state.load(std::memory_order_acquire); seen == kWaiting || seen == kOpening;) {
    if (!state.compare_exchange_weak(seen, kStopped, std::memory_order_acq_rel)) continue;
    wake_all();
    join_own_thread(thread);
    return;
  }
}

void later_engine_after_fork_in_child() { state.store(kNone, std::memory_order_relaxed); }

}  // namespace accel::posix
