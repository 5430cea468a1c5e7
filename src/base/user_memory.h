// The program's memory, as the kernel would meet it: a pointer that leads nowhere is EFAULT, never a fault of
// ours.
//
// A check touches one byte of each page of the range, which is about to be read or written anyway. Where the
// touch faults, the handler of SIGSEGV and SIGBUS (posix/signals.cc) calls resume_after_fault(), and the
// check says false. So a good pointer costs one load or store a page and no system call. The handler is there
// once the table of descriptors is open; a thread that blocks SIGSEGV, or a program that installs its handler
// past libc, dies of a bad pointer as it does of one that it uses itself.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace accel {

/// `context` is a signal handler's third argument. True: a check faulted, and goes on with false when the
/// handler returns.
bool resume_after_fault(void* context);

/// The kernel's access_ok(): not an address of the kernel's half. The first thing that it checks of a buffer.
inline bool in_user_half(const void* p, size_t size) {
  const auto first = reinterpret_cast<uintptr_t>(p);
  return static_cast<intptr_t>(first | (first + size)) >= 0 && first + size >= first;
}

namespace touch {

// The table of touches: where the instruction is and where to go on, relative to the entry; in the function's
// own group of sections ("?"), since the linker keeps one copy of an inline function.
#define ACCEL_TOUCH(label, instruction, at)                                                       \
  asm goto(label ": " instruction "\n.pushsection accel_touches, \"a?\"\n.balign 4\n.long " label \
                 "b - ., %l[fault] - .\n.popsection" ::"r"(at)                                    \
           : "memory", "cc"                                                                       \
           : fault)

inline bool read(const char* at) {
#if defined(__x86_64__)
  ACCEL_TOUCH("1", "cmpb $0, (%0)", at);
#elif defined(__aarch64__)
  ACCEL_TOUCH("1", "ldrb wzr, [%0]", at);
#else
#error "user memory: write the touches for this machine"
#endif
  return true;
fault:
  return false;
}

inline bool zero(const char* at) {
#if defined(__x86_64__)
  ACCEL_TOUCH("1", "movb $0, (%0)", at);
#else
  ACCEL_TOUCH("1", "strb wzr, [%0]", at);
#endif
  return true;
fault:
  return false;
}

#undef ACCEL_TOUCH

inline constexpr uintptr_t kLowest = 4096;  // the first page is never there
inline constexpr uintptr_t kPage = 4096;    // the smallest; touching a larger one more than once is harmless

template <class Touch>
bool each_page(const void* p, size_t size, Touch one) {
  const auto first = reinterpret_cast<uintptr_t>(p);
  const uintptr_t last = first + size - 1;
  if (size == 0) return true;
  if (first < kLowest || last < first) return false;
  for (uintptr_t at = first;;) {
    if (!one(reinterpret_cast<const char*>(at))) return false;
    const uintptr_t next = (at | (kPage - 1)) + 1;
    if (next > last || next == 0) return true;
    at = next;
  }
}

template <class Touch>
bool each_page(std::span<const iovec> vector, size_t most, Touch one) {
  for (const iovec& v : vector) {
    const size_t n = std::min(v.iov_len, most);
    if (!each_page(v.iov_base, n, one)) return false;
    most -= n;
    if (most == 0) break;
  }
  return true;
}

}  // namespace touch

inline bool can_read(const void* p, size_t size) { return touch::each_page(p, size, touch::read); }
/// The first `most` bytes of the vector.
inline bool can_read(std::span<const iovec> vector, size_t most) {
  return touch::each_page(vector, most, touch::read);
}
/// Writes zero bytes here and there: for a range that the caller then writes, all of it.
inline bool can_overwrite(const void* p, size_t size) { return touch::each_page(p, size, touch::zero); }
inline bool can_overwrite(std::span<const iovec> vector, size_t most) {
  return touch::each_page(vector, most, touch::zero);
}

/// copy_from_user() and copy_to_user() of whole objects. False: EFAULT.
template <class T>
[[nodiscard]] bool get_user(T& to, const void* from) {
  if (!can_read(from, sizeof to)) return false;
  std::memcpy(&to, from, sizeof to);
  return true;
}
template <class T>
[[nodiscard]] bool put_user(void* to, const T& from) {
  if (!can_overwrite(to, sizeof from)) return false;
  std::memcpy(to, &from, sizeof from);
  return true;
}

}  // namespace accel
