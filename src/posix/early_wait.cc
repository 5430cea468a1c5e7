#include "posix/early_wait.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "base/poll.h"
#include "base/private_fds.h"
#include "base/real.h"

namespace accel::posix {
namespace {

// One eventfd for each sleeper: -1 is a free place. More sleepers than places look again every kUnwoken. A
// place whose sleeper left by siglongjmp() stays taken, with an eventfd that nobody reads: no harm.
constexpr size_t kPlaces = 64;
constexpr timespec kUnwoken{0, 10'000'000};
constexpr long kMillisecond = 1'000'000;  // ns
std::atomic<int> places[kPlaces] = {};    // descriptor + 1: zero-initialised means free
std::atomic<int> sleepers{0};

class SleepersPlace {
 public:
  SleepersPlace() {
    sleepers.fetch_add(1);
    fd_ = keep_private(real.eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    for (size_t i = 0; fd_ >= 0 && i < kPlaces; ++i) {
      int free = 0;
      if (!places[i].compare_exchange_strong(free, fd_ + 1)) continue;
      place_ = &places[i];
      return;
    }
  }
  ~SleepersPlace() {  // also when the thread is cancelled in ppoll()
    if (place_ != nullptr) place_->store(0);
    if (fd_ >= 0) close_private(fd_);
    sleepers.fetch_sub(1);
  }
  bool found() const { return place_ != nullptr; }
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
  std::atomic<int>* place_ = nullptr;
};

}  // namespace

Instant monotonic_now() {
  timespec now{};
  real.clock_gettime(CLOCK_MONOTONIC, &now);
  return Instant(std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec));
}

bool Timeout::valid(const timespec* timeout) {
  return timeout == nullptr ||
         (timeout->tv_sec >= 0 && timeout->tv_nsec >= 0 && timeout->tv_nsec < 1'000'000'000);
}

Timeout::Timeout(const timespec* timeout) {
  if (timeout == nullptr) return;
  in_milliseconds_ = timeout->tv_nsec % kMillisecond == 0;
  if (timeout->tv_sec == 0 && timeout->tv_nsec == 0) {
    zero_ = true;
    deadline_ = Instant{};
    return;
  }
  const Instant now = monotonic_now();
  // Beyond some 140 years the nanoseconds overflow: for ever, as the kernel's timespec64_add_safe.
  if (timeout->tv_sec < (1LL << 32))
    deadline_ = now + std::chrono::seconds(timeout->tv_sec) + std::chrono::nanoseconds(timeout->tv_nsec);
}

std::optional<timespec> Timeout::left_as_given() const {
  std::optional<timespec> rest = left();
  if (!rest || !in_milliseconds_) return rest;
  rest->tv_nsec = (rest->tv_nsec + kMillisecond - 1) / kMillisecond * kMillisecond;
  if (rest->tv_nsec == 1000 * kMillisecond) rest = timespec{rest->tv_sec + 1, 0};
  return rest;
}

std::optional<timespec> Timeout::left() const {
  if (deadline_ == kNever) return std::nullopt;
  if (zero_) return timespec{};
  const auto rest = std::max(Duration{0}, deadline_ - monotonic_now());
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(rest);
  return timespec{static_cast<time_t>(seconds.count()), static_cast<long>((rest - seconds).count())};
}

int early_wait(std::span<pollfd> descriptors, const timespec* timeout, const sigset_t* mask,
               bool (*still)(void*), void* context) {
  SleepersPlace place;
  if (!still(context))
    return 0;  // after the place is taken: a wake-up between the caller's look and here is not lost
  descriptors.back() = {place.fd(), POLLIN, 0};
  if (!place.found() && (timeout == nullptr || timeout->tv_sec > 0 || timeout->tv_nsec > kUnwoken.tv_nsec))
    timeout = &kUnwoken;
  const int ready = poll_beyond_limit(descriptors, timeout, mask);
  return ready > 0 && descriptors.back().revents != 0 ? ready - 1 : ready;
}

void wake_early_sleepers() {
  if (sleepers.load() == 0) return;
  const uint64_t one = 1;
  for (auto& place : places)
    if (const int fd = place.load() - 1; fd >= 0) (void)!real.write(fd, &one, sizeof(one));
}

void forget_early_sleepers() {
  sleepers = 0;
  for (auto& place : places)
    if (const int fd = place.exchange(0) - 1; fd >= 0) real.close(fd);
}

}  // namespace accel::posix
