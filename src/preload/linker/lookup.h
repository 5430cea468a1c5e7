// Functions that do not come by the program's own symbols: looked up in libc (lookup.cc), or bound past us
// (deep_bound.cc).
#pragma once

namespace accel::preload {

/// The wrapper of that name; nullptr: there is none.
void* wrapper_of(const char* name);
/// What libc has by that name; nullptr: nothing.
void* libcs(const char* name);
/// The real dlsym().
void* looked_up_past_us(void* handle, const char* name);

/// A library is about to be loaded with RTLD_DEEPBIND.
void expect_deep_bound();
/// Has what such libraries call lead here. Before the program looks a function up in one.
void lead_deep_bound_here();

}  // namespace accel::preload
