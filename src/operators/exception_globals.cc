// The C++ runtime's record of a thread's exceptions (Itanium C++ ABI: Exception Handling, 2.2.2), for
// libaccel.so and its modules, which have a runtime each.
//
// The runtime's own record is thread-local storage that the dynamic linker allocates for a library that
// dlopen() loads, at a thread's first exception. It ends the process where it finds no memory, and the first
// exception there is std::bad_alloc. Storage of the initial-exec model is part of every thread from the
// beginning.
#include <cxxabi.h>

namespace __cxxabiv1 {

struct __cxa_eh_globals {
  void* caught_exceptions;
  unsigned int uncaught_exceptions;
};

namespace {
constinit thread_local __cxa_eh_globals globals [[gnu::tls_model("initial-exec")]] = {};
}

extern "C" __cxa_eh_globals* __cxa_get_globals() noexcept { return &globals; }
extern "C" __cxa_eh_globals* __cxa_get_globals_fast() noexcept { return &globals; }

}  // namespace __cxxabiv1
