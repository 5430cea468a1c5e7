#include "base/user_memory.h"

#include <ucontext.h>

namespace accel {
namespace {

struct Touch {
  int32_t instruction, landing;  ///< each relative to where it stands
};

uintptr_t target(const int32_t& offset) {
  return reinterpret_cast<uintptr_t>(&offset) + static_cast<uintptr_t>(static_cast<intptr_t>(offset));
}

}  // namespace

// The linker's names for the section's ends.
extern "C" [[gnu::weak, gnu::visibility("hidden")]] const Touch start_of_touches asm("__start_accel_touches");
extern "C" [[gnu::weak, gnu::visibility("hidden")]] const Touch end_of_touches asm("__stop_accel_touches");

bool resume_after_fault(void* context) {
  mcontext_t& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  auto& counter = machine.gregs[REG_RIP];
#else
  auto& counter = machine.pc;
#endif
  for (const Touch* t = &start_of_touches; t < &end_of_touches; ++t) {
    if (static_cast<uintptr_t>(counter) != target(t->instruction)) continue;
    counter = static_cast<std::remove_reference_t<decltype(counter)>>(target(t->landing));
    return true;
  }
  return false;
}

}  // namespace accel
