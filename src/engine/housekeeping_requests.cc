#include "engine/housekeeping_requests.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

#include "base/private_fds.h"
#include "base/real.h"

namespace accel {

HousekeepingRequests::~HousekeepingRequests() {
  if (fd_ >= 0) close_private(fd_);
}

Result<void> HousekeepingRequests::open() {
  fd_ = keep_private(real.eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (fd_ < 0) return err(EMFILE);
  return {};
}

void HousekeepingRequests::abandon_in_child() {
  if (const int open = std::exchange(fd_, -1); open >= 0) close_private(open);
}

void HousekeepingRequests::wake() const {
  const uint64_t one = 1;
  (void)!real.write(fd_, &one, sizeof one);
}

void HousekeepingRequests::drain() {
  uint64_t count = 0;
  (void)!real.read(fd_, &count, sizeof count);
}

void HousekeepingRequests::ask(Request request) {
  wanted_[index(request)].store(true, std::memory_order_relaxed);
  wake();
}

void HousekeepingRequests::application_began() {
  set_idle(false);
  ask(Request::kTicks);
}

void HousekeepingRequests::watch() { ask(Request::kWatch); }

void HousekeepingRequests::end_trust() {
  trusting_ = false;
  ask(Request::kDoubt);
}

void HousekeepingRequests::ports_requested() { ask(Request::kPorts); }

void HousekeepingRequests::begin_look(Instant due, Instant now) {
  next_look_ = std::max(due, now + kLookLate);
  ask(Request::kLook);
}

bool HousekeepingRequests::set_ticks(bool trusting, bool ticks_look, Instant due, Instant now) {
  const Instant before = next_look_;
  trusting_ = trusting;
  if (ticks_look)
    next_look_ = kTicksLook;
  else if (next_look_ == kTicksLook)
    next_look_ = std::max(due, now + kLookLate);
  return next_look_ != before;
}

}  // namespace accel
