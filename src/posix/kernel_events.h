// What the kernel tells of one descriptor now, also where RLIMIT_NOFILE lets poll(2) ask for none (a sandbox
// sets it to nothing).
#pragma once

#include <cstdint>

namespace accel::posix {

/// Before the limit may fall: the means to ask beyond it. Under a Pass.
void prepare_kernel_events();
/// POLL* bits, of those in `events` and POLLERR and POLLHUP. Under a Pass.
uint32_t kernel_events(int fd, uint32_t events);

}  // namespace accel::posix
