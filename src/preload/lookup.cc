// dlsym() on a handle of libc's (Python's ctypes, JNA, LuaJIT's ffi.load) finds the function behind ours.
// What it then does to a socket of ours the kernel would do to the shadow; so it gets ours.
#include <dlfcn.h>
#include <string.h>

#include <atomic>

namespace {

struct Wrapper {
  const char* name;
  void* ours;
};

// By their assembler names, whatever their types are.
#define DECLARE(name) extern "C" [[gnu::visibility("default")]] char accel_at_##name[] asm(#name);
#define FD_CALL(result, name, parameters, arguments, ours) DECLARE(name)
#define CALL(result, name, parameters, arguments, condition, ours) DECLARE(name)
#define HAND(name) DECLARE(name)
#define ALIAS(alias, name) DECLARE(alias)
#define HAND_ALIAS(alias, name) DECLARE(alias)
#define KERNEL(name, why)
#include "preload/symbols.def"
#undef FD_CALL
#undef CALL
#undef HAND
#undef ALIAS
#undef HAND_ALIAS
#undef DECLARE

#define FD_CALL(result, name, parameters, arguments, ours) {#name, accel_at_##name},
#define CALL(result, name, parameters, arguments, condition, ours) {#name, accel_at_##name},
#define HAND(name) {#name, accel_at_##name},
#define ALIAS(alias, name) {#alias, accel_at_##alias},
#define HAND_ALIAS(alias, name) {#alias, accel_at_##alias},
const Wrapper kWrappers[] = {
#include "preload/symbols.def"
};
#undef FD_CALL
#undef CALL
#undef HAND
#undef ALIAS
#undef HAND_ALIAS
#undef KERNEL

using Lookup = void* (*)(void*, const char*);

/// The dlsym() behind ours.
Lookup next() {
  static std::atomic<Lookup> found{nullptr};
  if (auto f = found.load(std::memory_order_relaxed)) return f;
  void* f = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
#if defined(__x86_64__)
  if (f == nullptr) f = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
#else
  if (f == nullptr) f = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17");
#endif
  found.store(reinterpret_cast<Lookup>(f), std::memory_order_relaxed);
  return reinterpret_cast<Lookup>(f);
}

/// Another library's function of such a name, or that of another namespace (dlmopen()), stays.
bool is_libcs(const char* name, const void* function) {
  void* libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  if (libc == nullptr) return false;
  const void* its = next()(libc, name);
  if (its == nullptr) (void)dlerror();  // the program asked nothing that failed
  dlclose(libc);
  return its == function;
}

void* look_up(void* handle, const char* name) {
  void* found = next()(handle, name);
  if (found == nullptr) return nullptr;
  for (const Wrapper& w : kWrappers)
    if (strcmp(name, w.name) == 0) return found != w.ours && is_libcs(name, found) ? w.ours : found;
  return found;
}

}  // namespace

/// Where dlsym goes. RTLD_NEXT and RTLD_DEFAULT are relative to the caller, which the real one knows by its
/// return address.
extern "C" Lookup accel_dlsym_target(void* handle) {
  return handle == RTLD_NEXT || handle == RTLD_DEFAULT ? next() : look_up;
}

#if defined(__x86_64__)
asm(R"(
  .text
  .globl dlsym
  .type dlsym, @function
dlsym:
  .cfi_startproc
  endbr64
  subq $24, %rsp
  .cfi_adjust_cfa_offset 24
  movq %rdi, (%rsp)
  movq %rsi, 8(%rsp)
  call accel_dlsym_target
  movq (%rsp), %rdi
  movq 8(%rsp), %rsi
  addq $24, %rsp
  .cfi_adjust_cfa_offset -24
  jmp *%rax
  .cfi_endproc
  .size dlsym, .-dlsym
)");
#elif defined(__aarch64__)
asm(R"(
  .text
  .globl dlsym
  .type dlsym, @function
dlsym:
  .cfi_startproc
  stp x29, x30, [sp, -32]!
  stp x0, x1, [sp, 16]
  bl accel_dlsym_target
  mov x16, x0
  ldp x0, x1, [sp, 16]
  ldp x29, x30, [sp], 32
  br x16
  .cfi_endproc
  .size dlsym, .-dlsym
)");
#else
#error "dlsym: write the jump for this machine"
#endif
