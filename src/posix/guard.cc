#include "posix/guard.h"

#include <pthread.h>

namespace accel::posix {
namespace {

pthread_mutex_t early_lock = PTHREAD_MUTEX_INITIALIZER;
thread_local bool inside_early [[gnu::tls_model("initial-exec")]] = false;

}  // namespace

Guard::Guard(Pass::Polling polling) {
  if (Engine* engine = Engine::get()) {
    if (!engine->inside() && !inside_early) pass_.emplace(*engine, polling);
    return;
  }
  if (inside_early) return;
  inside_early = true;  // before the lock: a signal handler that comes in between must not try to take it
  pthread_mutex_lock(&early_lock);
  early_ = true;
  if (Engine* engine = Engine::get()) {  // another thread opened it meanwhile
    leave_early();
    if (!engine->inside()) pass_.emplace(*engine, polling);
  }
}

Guard::~Guard() {
  pass_.reset();
  if (early_) leave_early();
}

void Guard::leave_early() {
  early_ = false;
  pthread_mutex_unlock(&early_lock);
  inside_early = false;
}

Pass* Guard::open_engine(Reason* why) {
  if (pass_) return &*pass_;
  Engine* engine = Engine::open(why);
  if (engine == nullptr) return nullptr;
  leave_early();
  pass_.emplace(*engine);
  return &*pass_;
}

}  // namespace accel::posix
