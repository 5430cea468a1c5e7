// operator new and delete of libaccel.so and of its modules, which hide them. The forms that are not here are
// the C++ runtime's, which call these. Its nothrow forms would throw and catch an exception, which needs
// memory itself. base/memory.h says which memory each form has.
#include "operators/operators.h"

#include <new>

namespace {

void* must_have(size_t size, size_t alignment) {
  if (void* block = accel::memory::calls.allocate(size == 0 ? 1 : size, alignment)) return block;
  throw std::bad_alloc();
}

}  // namespace

using accel::memory::calls;

void* operator new(size_t size) { return must_have(size, 16); }
void* operator new(size_t size, std::align_val_t alignment) {
  return must_have(size, static_cast<size_t>(alignment));
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return calls.try_allocate(size == 0 ? 1 : size, 16);
}
void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  return calls.try_allocate(size == 0 ? 1 : size, 16);
}
void* operator new(size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return calls.try_allocate(size == 0 ? 1 : size, static_cast<size_t>(alignment));
}
void* operator new[](size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return calls.try_allocate(size == 0 ? 1 : size, static_cast<size_t>(alignment));
}
void operator delete(void* block) noexcept { calls.release(block); }
void operator delete(void* block, size_t) noexcept { calls.release(block); }
void operator delete(void* block, std::align_val_t) noexcept { calls.release(block); }
void operator delete(void* block, size_t, std::align_val_t) noexcept { calls.release(block); }
