// Code that runs while a device is opened, and seldom afterwards: the pages of the libraries that have it.
#pragma once

namespace accel {

/// Takes those pages from the process that are still the files'; they come back at their next use. Without
/// /proc none. Not during fork(): the dynamic linker's lock is held.
void release_idle_code();

}  // namespace accel
