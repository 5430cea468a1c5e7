// dlsym() on a handle of libc's (Python's ctypes, JNA, LuaJIT's ffi.load) finds the function behind ours.
// What it then does to a socket of ours the kernel would do to the shadow; so it gets ours.
#include "preload/linker/lookup.h"

#include <dlfcn.h>
#include <string.h>

#include <atomic>
#include <cerrno>

#include "preload/cancel.h"

using namespace accel::preload;  // NOLINT

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

void* look_behind_us(const char* name) {
  if (void* f = dlvsym(RTLD_NEXT, name, "GLIBC_2.34")) return f;
#if defined(__x86_64__)
  return dlvsym(RTLD_NEXT, name, "GLIBC_2.2.5");
#else
  return dlvsym(RTLD_NEXT, name, "GLIBC_2.17");
#endif
}

/// `found`: what an earlier call has found.
void* behind_us(const char* name, std::atomic<void*>& found) {
  void* f = found.load(std::memory_order_relaxed);
  if (f != nullptr) return f;
  const int before = errno;
  found.store(f = look_behind_us(name), std::memory_order_relaxed);
  errno = before;
  return f;
}

/// The dlsym() behind ours.
Lookup next() {
  static std::atomic<void*> found{nullptr};
  return reinterpret_cast<Lookup>(behind_us("dlsym", found));
}

/// Another library's function of such a name, or that of another namespace (dlmopen()), stays.
void* look_up(void* handle, const char* name) {
  const int before = errno;  // dlerror() tells what fails
  lead_deep_bound_here();
  void* found = next()(handle, name);
  void* ours = found != nullptr ? wrapper_of(name) : nullptr;
  void* answer = ours != nullptr && found != ours && found == libcs(name) ? ours : found;
  errno = before;
  return answer;
}

}  // namespace

namespace accel::preload {

void* wrapper_of(const char* name) {
  for (const Wrapper& w : kWrappers)
    if (strcmp(name, w.name) == 0) return w.ours;
  return nullptr;
}

void* looked_up_past_us(void* handle, const char* name) {
  void* found = next()(handle, name);
  if (found == nullptr) (void)dlerror();  // the program asked nothing that failed
  return found;
}

void* libcs(const char* name) {
  void* libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  if (libc == nullptr) return nullptr;
  void* its = looked_up_past_us(libc, name);
  dlclose(libc);
  return its;
}

}  // namespace accel::preload

/// Where dlsym goes. RTLD_NEXT and RTLD_DEFAULT are relative to the caller, which the real one knows by its
/// return address.
extern "C" Lookup accel_dlsym_target(void* handle, int) {
  return handle == RTLD_NEXT || handle == RTLD_DEFAULT ? next() : look_up;
}

/// Likewise: dlopen() looks where its caller says (DT_RUNPATH).
extern "C" void* accel_dlopen_target(const char*, int flags) {
  static std::atomic<void*> found{nullptr};
  if ((flags & RTLD_DEEPBIND) != 0) deferred(expect_deep_bound);
  return behind_us("dlopen", found);
}

// Asks the function `target`, with the same arguments, where to go, and goes there with the stack as it was.
#if defined(__x86_64__)
#define ACCEL_JUMP(name, target)    \
  asm("\n\
  .text\n\
  .globl " name                     \
      "\n\
  .type " name ", @function\n" name \
      ":\n\
  .cfi_startproc\n\
  endbr64\n\
  subq $24, %rsp\n\
  .cfi_adjust_cfa_offset 24\n\
  movq %rdi, (%rsp)\n\
  movq %rsi, 8(%rsp)\n\
  call " target                     \
      "\n\
  movq (%rsp), %rdi\n\
  movq 8(%rsp), %rsi\n\
  addq $24, %rsp\n\
  .cfi_adjust_cfa_offset -24\n\
  jmp *%rax\n\
  .cfi_endproc\n\
  .size " name ", .-" name "\n")
#elif defined(__aarch64__)
#define ACCEL_JUMP(name, target)    \
  asm("\n\
  .text\n\
  .globl " name                     \
      "\n\
  .type " name ", @function\n" name \
      ":\n\
  .cfi_startproc\n\
  stp x29, x30, [sp, -32]!\n\
  stp x0, x1, [sp, 16]\n\
  bl " target                       \
      "\n\
  mov x16, x0\n\
  ldp x0, x1, [sp, 16]\n\
  ldp x29, x30, [sp], 32\n\
  br x16\n\
  .cfi_endproc\n\
  .size " name ", .-" name "\n")
#else
#error "dlsym: write the jump for this machine"
#endif

ACCEL_JUMP("dlsym", "accel_dlsym_target");
ACCEL_JUMP("dlopen", "accel_dlopen_target");
