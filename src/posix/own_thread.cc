#include "posix/own_thread.h"

#include <signal.h>

namespace accel::posix {

Result<void> start_own_thread(pthread_t* thread, void* (*run)(void*), void* argument) {
  constexpr size_t kStackSize = 512 * 1024;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackSize);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(thread, &attributes, run, argument);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  if (error != 0) return err(error);
  return {};
}

}  // namespace accel::posix
