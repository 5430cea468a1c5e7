// memory::try_allocate() of libaccel-refusing.so: as base/memory.cc's, but it refuses what a test says. The
// linker leads each use of the function here (--wrap).
#include <cstddef>

#include "posix/refusal.h"

extern "C" {

void* allocated(size_t size, size_t alignment) asm("__real__ZN5accel6memory12try_allocateEmm");
void* unless_refused(size_t size, size_t alignment) asm("__wrap__ZN5accel6memory12try_allocateEmm");

void* unless_refused(size_t size, size_t alignment) {
  static posix_test::Refusal* const refusal = posix_test::map_refusal();
  return refusal != nullptr && refusal->next() ? nullptr : allocated(size, alignment);
}

}  // extern "C"
