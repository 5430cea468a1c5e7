// operator new and delete for libaccel-refusing.so: as src/operators, but the nothrow forms refuse what a
// test says.
#include <new>

#include "operators/operators.h"
#include "posix/refusal.h"

namespace {

using accel::memory::calls;

void* must_have(size_t size, size_t alignment) {
  if (void* block = calls.allocate(size == 0 ? 1 : size, alignment)) return block;
  throw std::bad_alloc();
}

void* unless_refused(size_t size, size_t alignment) {
  static posix_test::Refusal* const refusal = posix_test::map_refusal();
  if (refusal != nullptr && refusal->next()) return nullptr;
  return calls.try_allocate(size == 0 ? 1 : size, alignment);
}

}  // namespace

void* operator new(size_t size) { return must_have(size, 16); }
void* operator new(size_t size, std::align_val_t alignment) {
  return must_have(size, static_cast<size_t>(alignment));
}
void* operator new(size_t size, const std::nothrow_t&) noexcept { return unless_refused(size, 16); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return unless_refused(size, 16); }
void* operator new(size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return unless_refused(size, static_cast<size_t>(alignment));
}
void* operator new[](size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return unless_refused(size, static_cast<size_t>(alignment));
}
void operator delete(void* block) noexcept { calls.release(block); }
void operator delete(void* block, size_t) noexcept { calls.release(block); }
void operator delete(void* block, std::align_val_t) noexcept { calls.release(block); }
void operator delete(void* block, size_t, std::align_val_t) noexcept { calls.release(block); }
