#include <stdlib.h>

#include "operators/operators.h"

namespace accel::memory {
namespace {

void* libc_allocate(size_t size, size_t alignment) {
  return alignment <= 16 ? malloc(size)
                         : aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

}  // namespace

Calls calls{&libc_allocate, &libc_allocate, &free};

}  // namespace accel::memory
