// Functions of shared libraries that are loaded at their first call. delay.def is made by delay_load.sh when
// the library is linked: DELAY_LIBRARY(soname) for each library, LATE_LIBRARY(soname) for those that only
// soft-iWARP needs, and DELAYED(name, library) for each function that the layers call. `library` counts
// those lines from 0.
//
// Why: as DT_NEEDED entries these libraries made every process that libaccel.so is preloaded into start a
// millisecond later; and Debian's static ones are not position independent.
#include <dlfcn.h>

#include <atomic>
#include <cstddef>

#include "base/libraries.h"
#include "base/start_paths.h"

extern "C" {
extern std::atomic<void*> accel_delay_slots[];
void* accel_delay_find(std::atomic<void*>* slot);
}

// Each function is a jump through its slot. A slot starts with the way to accel_delay_find, which puts the
// function there. The registers that carry arguments are kept across it.
asm(R"(
  .section .data.accel_delay, "aw", @progbits
  .balign 8
  .globl accel_delay_slots
  .hidden accel_delay_slots
accel_delay_slots:
  .text
)");
// Then what calls accel_delay_find, and what stands behind a function's name.
#if defined(__x86_64__)
asm(R"(
accel_delay_resolve:
  .cfi_startproc
  pushq %rbp
  .cfi_adjust_cfa_offset 8
  movq %rsp, %rbp
  pushq %rdi
  pushq %rsi
  pushq %rdx
  pushq %rcx
  pushq %r8
  pushq %r9
  pushq %rax
  subq $136, %rsp
  andq $-16, %rsp
  movups %xmm0, (%rsp)
  movups %xmm1, 16(%rsp)
  movups %xmm2, 32(%rsp)
  movups %xmm3, 48(%rsp)
  movups %xmm4, 64(%rsp)
  movups %xmm5, 80(%rsp)
  movups %xmm6, 96(%rsp)
  movups %xmm7, 112(%rsp)
  movq %r11, %rdi
  call accel_delay_find
  movq %rax, %r11
  movups (%rsp), %xmm0
  movups 16(%rsp), %xmm1
  movups 32(%rsp), %xmm2
  movups 48(%rsp), %xmm3
  movups 64(%rsp), %xmm4
  movups 80(%rsp), %xmm5
  movups 96(%rsp), %xmm6
  movups 112(%rsp), %xmm7
  leaq -56(%rbp), %rsp
  popq %rax
  popq %r9
  popq %r8
  popq %rcx
  popq %rdx
  popq %rsi
  popq %rdi
  popq %rbp
  jmp *%r11
  .cfi_endproc
)");
#define JUMP(name)                  \
  "  endbr64\n"                     \
  "  jmp *accel_delay_slot_" #name  \
  "(%rip)\n"                        \
  "1: leaq accel_delay_slot_" #name \
  "(%rip), %r11\n"                  \
  "  jmp accel_delay_resolve\n"
#elif defined(__aarch64__)
asm(R"(
accel_delay_resolve:
  .cfi_startproc
  stp x29, x30, [sp, -224]!
  .cfi_def_cfa_offset 224
  .cfi_offset 29, -224
  .cfi_offset 30, -216
  mov x29, sp
  stp x0, x1, [sp, 16]
  stp x2, x3, [sp, 32]
  stp x4, x5, [sp, 48]
  stp x6, x7, [sp, 64]
  str x8, [sp, 80]
  stp q0, q1, [sp, 96]
  stp q2, q3, [sp, 128]
  stp q4, q5, [sp, 160]
  stp q6, q7, [sp, 192]
  mov x0, x16
  bl accel_delay_find
  mov x16, x0
  ldp x0, x1, [sp, 16]
  ldp x2, x3, [sp, 32]
  ldp x4, x5, [sp, 48]
  ldp x6, x7, [sp, 64]
  ldr x8, [sp, 80]
  ldp q0, q1, [sp, 96]
  ldp q2, q3, [sp, 128]
  ldp q4, q5, [sp, 160]
  ldp q6, q7, [sp, 192]
  ldp x29, x30, [sp], 224
  .cfi_restore 29
  .cfi_restore 30
  .cfi_def_cfa_offset 0
  br x16
  .cfi_endproc
)");
// "hint 34" is BTI c, which older assemblers do not know by that name.
#define JUMP(name)                                 \
  "  hint 34\n"                                    \
  "  adrp x16, accel_delay_slot_" #name            \
  "\n"                                             \
  "  ldr x17, [x16, :lo12:accel_delay_slot_" #name \
  "]\n"                                            \
  "  br x17\n"                                     \
  "1: hint 34\n"                                   \
  "  adrp x16, accel_delay_slot_" #name            \
  "\n"                                             \
  "  add x16, x16, :lo12:accel_delay_slot_" #name  \
  "\n"                                             \
  "  b accel_delay_resolve\n"
#else
#error "delay_load.cc: write the jump for this machine"
#endif
#define DELAYED(name, library)                            \
  asm("  .section .data.accel_delay, \"aw\", @progbits\n" \
      "accel_delay_slot_" #name                           \
      ": .quad 1f\n"                                      \
      "  .text\n"                                         \
      "  .globl " #name "\n  .hidden " #name              \
      "\n"                                                \
      "  .type " #name ", @function\n" #name ":\n" JUMP(name));
#define DELAY_LIBRARY(soname)
#define LATE_LIBRARY(soname)
#include "delay.def"
#undef DELAYED
#undef DELAY_LIBRARY
#undef LATE_LIBRARY

namespace accel {
namespace {

struct Library {
  const char* name;
  bool late;
  std::atomic<void*> handle{nullptr};
};

#define DELAYED(name, library)
#define DELAY_LIBRARY(soname) {soname, false, nullptr},
#define LATE_LIBRARY(soname) {soname, true, nullptr},
Library libraries[] = {
#include "delay.def"
    {nullptr, false, nullptr}};
#undef DELAYED
#undef DELAY_LIBRARY
#undef LATE_LIBRARY

struct Function {
  const char* name;
  size_t library;  ///< of libraries[]
};

#define DELAYED(name, library) {#name, library},
#define DELAY_LIBRARY(soname)
#define LATE_LIBRARY(soname)
constexpr Function kFunctions[] = {
#include "delay.def"
    {nullptr, 0}};
#undef DELAYED
#undef DELAY_LIBRARY
#undef LATE_LIBRARY

/// For a function of a library that is not installed, should it be called against load_libraries()'s word.
long nothing() { return 0; }

bool load(bool late, const char** missing) {
  for (Library& library : libraries) {
    if (library.name == nullptr || library.late != late ||
        library.handle.load(std::memory_order_acquire) != nullptr)
      continue;
    // Not RTLD_DEEPBIND: in a program with an allocator of its own (redis with jemalloc) their free() would
    // be libc's for memory that libc's getline() took from the program's malloc. Not RTLD_NOW: a thousand
    // functions would be looked up in the program's first listen(), most of which nobody calls.
    void* handle = start_paths_changed() == nullptr
                       ? dlopen(library.name, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE)
                       : nullptr;
    if (handle == nullptr) {
      dlerror();  // not left for the program to find
      if (missing != nullptr) *missing = library.name;
      return false;
    }
    library.handle.store(handle, std::memory_order_release);
  }
  if (missing != nullptr) *missing = nullptr;
  return true;
}

}  // namespace

bool load_libraries(const char** missing) { return load(false, missing); }
bool load_iwarp_libraries(const char** missing) { return load(true, missing); }

}  // namespace accel

void* accel_delay_find(std::atomic<void*>* slot) {
  using namespace accel;  // NOLINT
  const Function& wanted = kFunctions[slot - accel_delay_slots];
  load_libraries(nullptr);  // one that is missing leaves those before it
  void* handle = libraries[wanted.library].handle.load(std::memory_order_acquire);
  void* function = handle != nullptr ? dlsym(handle, wanted.name) : nullptr;
  if (function == nullptr) function = reinterpret_cast<void*>(&nothing);
  slot->store(function, std::memory_order_release);
  return function;
}
