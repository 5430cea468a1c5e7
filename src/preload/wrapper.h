// A wrapper: how a call comes in.
//
// A wrapper for `recv` is the C++ function accel_call_recv with the assembler name recv: so it clashes
// neither with the header's declaration (noexcept, nonnull) nor with a call of libc's by its plain name,
// which the layers do not make (base/real.h).
#pragma once

#include <atomic>

#define ACCEL_EXPORT(result, name, parameters)                                              \
  extern "C" [[gnu::visibility("default")]] result accel_call_##name parameters asm(#name); \
  extern "C" result accel_call_##name parameters

/// Another name for a wrapper of the same file.
#define ACCEL_ALIAS(alias_name, name)      \
  extern "C" [[gnu::visibility("default"), \
               gnu::alias(#name)]] decltype(accel_call_##name) accel_call_##alias_name asm(#alias_name);

namespace accel::preload {

/// The library takes part: our start-up is done, the process is not set-user-id, ACCEL_DISABLE is not set and
/// the end has not come. Otherwise everything is libc's. (Descriptors that posix owns stay served: only what
/// is new stays out.)
extern std::atomic<bool> taking_part;
inline bool on() { return taking_part.load(std::memory_order_relaxed); }

}  // namespace accel::preload
