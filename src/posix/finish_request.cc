#include "posix/finish_request.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>

#include <atomic>

#include "base/real.h"

namespace accel::posix {
namespace {

std::atomic<int> taken_at{-1};  ///< -1: nobody takes requests
std::atomic<bool> wanted{false};
std::atomic<uint32_t> finished{0};
std::atomic<uint32_t> longest{0};  ///< ms; the configuration is not for handlers to read

}  // namespace

void request_finish() {
  const int fd = taken_at.load();
  if (fd < 0) return;
  wanted.store(true);
  const uint64_t one = 1;
  (void)!real.write(fd, &one, sizeof(one));
  const uint32_t milliseconds = longest.load();
  const timespec limit{milliseconds / 1000, static_cast<long>(milliseconds % 1000) * 1'000'000};
  real.syscall(SYS_futex, &finished, static_cast<long>(FUTEX_WAIT_PRIVATE), 0L, &limit, 0L, 0L);
}

void take_finish_requests(int wake_fd, uint32_t longest_ms) {
  wanted.store(false);
  finished.store(0);
  longest.store(longest_ms);
  taken_at.store(wake_fd);
}

void take_no_finish_requests() { taken_at.store(-1); }

bool finish_requested() { return wanted.load(); }

void answer_finish_request() {
  finished.store(1);
  real.syscall(SYS_futex, &finished, static_cast<long>(FUTEX_WAKE_PRIVATE), 0x7fffffffL, 0L, 0L, 0L);
  wanted.store(false);
}

}  // namespace accel::posix
