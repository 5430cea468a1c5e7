#include "posix/guard.h"

#include "base/cancellation.h"
#include "base/mutex.h"
#include "base/put_off_signals.h"
#include "posix/calls.h"

namespace accel::posix {
namespace {

constinit Mutex early_lock;

}  // namespace

// The early lock is held until leave_early() where early_ says so.
Guard::Guard(Pass::Polling polling) ACCEL_LOCKS_UNCHECKED {
  if (Engine* engine = Engine::get()) {
    if (!Engine::inside() && !signal_brackets.files) pass_.emplace(*engine, polling);
    return;
  }
  if (signal_brackets.files) return;
  signal_brackets.files = true;  // before: a handler that comes in between must not try to take the lock
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
  signal_brackets.files = false;
  admit_if_outside();
}

void before_cancelling() { Guard until_all_have_left(Pass::Polling::kNo); }

bool Guard::inside() { return signal_brackets.files || Engine::inside(); }

Pass* Guard::open_engine(Reason* why, Engine::Opening opening) {
  if (pass_) return &*pass_;
  Engine* engine = posix::open_engine(why, opening);
  if (engine == nullptr) return nullptr;
  leave_early();
  pass_.emplace(*engine);
  return &*pass_;
}

}  // namespace accel::posix
