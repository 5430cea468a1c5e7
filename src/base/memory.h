// The library's own memory, apart from the program's malloc(): a signal's handler may have interrupted that,
// and its socket calls need memory too. Blocks of fixed sizes from chunks of address space; one lock. A
// signal that arrives inside is put off (base/put_off_signals.h).
//
// Two classes of allocation share it. What may be refused (a socket, a connection, a frame's copy) asks by
// try_allocate(), as the nothrow forms of `operator new` do, and its caller has an answer: ENOMEM, ENOBUFS, a
// counted drop, the kernel's path. What keeps the books of things that are there (containers) asks by
// allocate(). A reserve of address space, committed ahead, is for the second class alone: when memory is
// short (RLIMIT_DATA, RLIMIT_AS, vm.overcommit_memory = 2) the first class ends, and the second goes on.
#pragma once

#include <cstddef>

namespace accel::memory {

/// Like malloc() and free(), of any alignment up to a page. What is too large, or comes from here while the
/// calling thread is inside already (a handler of SIGSEGV), is libc's. release() takes either's.
void* allocate(size_t size, size_t alignment);
/// The same; nullptr where the reserve would be touched.
void* try_allocate(size_t size, size_t alignment);
void release(void* block);

/// Around fork(), on the thread that forks: nobody else is inside meanwhile. let_go() in parent and child.
void hold();
void let_go();

/// What `operator new` of the library and its modules (src/operators) calls; a module is told when it is
/// loaded.
struct Calls {
  void* (*allocate)(size_t size, size_t alignment);
  void* (*try_allocate)(size_t size, size_t alignment);
  void (*release)(void* block);
};
/// In a program that links the layers without src/operators: nullptr, and modules keep libc's.
extern const Calls* for_modules;

}  // namespace accel::memory
