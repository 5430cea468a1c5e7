// A mutex and its guard as clang's analysis of locks knows them (-Wthread-safety): what a lock protects, and
// which functions want it held, is said in declarations that `./test` has clang check.
#pragma once

#include <pthread.h>

#if defined(__clang__)
#define ACCEL_LOCK_ATTRIBUTE(x) __attribute__((x))
#else
#define ACCEL_LOCK_ATTRIBUTE(x)
#endif

#define ACCEL_CAPABILITY(kind) ACCEL_LOCK_ATTRIBUTE(capability(kind))
#define ACCEL_SCOPED_CAPABILITY ACCEL_LOCK_ATTRIBUTE(scoped_lockable)
#define ACCEL_GUARDED_BY(lock) ACCEL_LOCK_ATTRIBUTE(guarded_by(lock))
#define ACCEL_POINTEE_GUARDED_BY(lock) ACCEL_LOCK_ATTRIBUTE(pt_guarded_by(lock))
#define ACCEL_REQUIRES(...) ACCEL_LOCK_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define ACCEL_EXCLUDES(...) ACCEL_LOCK_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define ACCEL_ACQUIRE(...) ACCEL_LOCK_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define ACCEL_RELEASE(...) ACCEL_LOCK_ATTRIBUTE(release_capability(__VA_ARGS__))
#define ACCEL_ASSERTS_HELD(...) ACCEL_LOCK_ATTRIBUTE(assert_capability(__VA_ARGS__))
#define ACCEL_TRY_ACQUIRE(...) ACCEL_LOCK_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
/// A function whose way with a lock the analysis cannot follow; its comment says why.
#define ACCEL_LOCKS_UNCHECKED ACCEL_LOCK_ATTRIBUTE(no_thread_safety_analysis)

namespace accel {

/// pthread_mutex_t: ready before any constructor has run, and never destroyed.
class ACCEL_CAPABILITY("mutex") Mutex {
 public:
  constexpr Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void lock() ACCEL_ACQUIRE() { pthread_mutex_lock(&mutex_); }
  void unlock() ACCEL_RELEASE() { pthread_mutex_unlock(&mutex_); }
  bool try_lock() ACCEL_TRY_ACQUIRE(true) { return pthread_mutex_trylock(&mutex_) == 0; }

 private:
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

/// Holds a lock for the length of a scope, which an exception ends as well.
template <class Lock>
class ACCEL_SCOPED_CAPABILITY ScopedLock {
 public:
  explicit ScopedLock(Lock& lock) ACCEL_ACQUIRE(lock) : lock_(lock) { lock.lock(); }
  ~ScopedLock() ACCEL_RELEASE() { lock_.unlock(); }
  ScopedLock(const ScopedLock&) = delete;
  ScopedLock& operator=(const ScopedLock&) = delete;

 private:
  Lock& lock_;
};
using MutexLock = ScopedLock<Mutex>;

}  // namespace accel
