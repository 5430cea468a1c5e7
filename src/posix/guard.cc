#include "posix/guard.h"

#include <pthread.h>

#include "base/cancellation.h"
#include "posix/calls.h"
#include "posix/process.h"

namespace accel::posix {
namespace {

pthread_mutex_t early_lock = PTHREAD_MUTEX_INITIALIZER;
thread_local bool inside_early [[gnu::tls_model("initial-exec")]] = false;
std::atomic<void (*)()> after_unlock{nullptr};

}  // namespace

Guard::Guard(Pass::Polling polling) {
  if (Engine* engine = Engine::get()) {
    if (!Engine::inside() && !inside_early) pass_.emplace(*engine, polling);
    return;
  }
  if (inside_early) return;
  inside_early = true;  // before the lock: a signal handler that comes in between must not try to take it
  pthread_mutex_lock(&early_lock);
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

void Guard::leave_early() {
  early_ = false;
  pthread_mutex_unlock(&early_lock);
  admit_cancellation();
  inside_early = false;
  if (auto hook = after_unlock.load(std::memory_order_relaxed)) hook();
}

void before_cancelling() { Guard until_all_have_left(Pass::Polling::kNo); }

bool Guard::inside() { return inside_early || Engine::inside(); }

void Guard::set_after_unlock(void (*hook)()) { after_unlock.store(hook, std::memory_order_relaxed); }

Pass* Guard::open_engine(Reason* why) {
  if (pass_) return &*pass_;
  Engine* engine = Engine::open(why);
  if (engine == nullptr) return nullptr;
  attach_engine(*engine);
  leave_early();
  pass_.emplace(*engine);
  return &*pass_;
}

}  // namespace accel::posix
