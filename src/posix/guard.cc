#include "posix/guard.h"

#include "base/cancellation.h"
#include "base/mutex.h"
#include "posix/calls.h"

namespace accel::posix {
namespace {

constinit Mutex early_lock;
thread_local bool inside_early [[gnu::tls_model("initial-exec")]] = false;
std::atomic<void (*)()> after_unlock{nullptr};

}  // namespace

// The early lock is held until leave_early() where early_ says so.
Guard::Guard(Pass::Polling polling) ACCEL_LOCKS_UNCHECKED {
  if (Engine* engine = Engine::get()) {
    if (!Engine::inside() && !inside_early) pass_.emplace(*engine, polling);
    return;
  }
  if (inside_early) return;
  inside_early = true;  // before the lock: a signal handler that comes in between must not try to take it
  early_lock.lock();
  early_ = true;
  bar_cancellation();
  if (Engine* engine = Engine::get()) {  // another thread opened it meanwhile
    leave_early();
    if (!Engine::inside()) pass_.emplace(*engine, polling);
  }
}

Guard::~Guard() {
  pass_.reset();
  if (early_) leave_early();
}

void Guard::leave_early() ACCEL_LOCKS_UNCHECKED {
  early_ = false;
  early_lock.unlock();
  admit_cancellation();
  inside_early = false;
  if (auto hook = after_unlock.load(std::memory_order_relaxed)) hook();
}

void before_cancelling() { Guard until_all_have_left(Pass::Polling::kNo); }

bool Guard::inside() { return inside_early || Engine::inside(); }

void Guard::set_after_unlock(void (*hook)()) { after_unlock.store(hook, std::memory_order_relaxed); }

Pass* Guard::open_engine(Reason* why) {
  if (pass_) return &*pass_;
  Engine* engine = posix::open_engine(why);
  if (engine == nullptr) return nullptr;
  leave_early();
  pass_.emplace(*engine);
  return &*pass_;
}

}  // namespace accel::posix
