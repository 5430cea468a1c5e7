#include "engine/sleepers.h"

#include <errno.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include <algorithm>

#include "base/private_fds.h"
#include "base/real.h"
#include "engine/wait_request.h"

namespace accel {
namespace {

/// One thread for so many descriptors that the process may open has two of them to sleep on.
constexpr rlim_t kDescriptorsForOne = 20;
/// A thread that is out is late after this, with so few passes made meanwhile.
constexpr Duration kLate = 500us;
constexpr uint64_t kFewPasses = 16;

size_t most_with_descriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return static_cast<size_t>(limit.rlim_cur / kDescriptorsForOne);
}

}  // namespace

void Sleeper::open_descriptors() {
  wake_fd = keep_private(real.eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_fd = keep_private(real.epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeTag;
  if (wake_fd < 0 || epoll_fd < 0 || real.epoll_ctl(epoll_fd, EPOLL_CTL_ADD, wake_fd, &event) != 0)
    close_descriptors();
}

void Sleeper::close_descriptors() {
  if (epoll_fd >= 0) close_private(epoll_fd);
  if (wake_fd >= 0) close_private(wake_fd);
  epoll_fd = wake_fd = -1;
}

// ---- registered threads ----

void Sleepers::enlist(Sleeper& s) {
  s.registered = this;
  sem_init(&s.semaphore, 0, 0);
  threads_.push_back(&s);
  if (may_have_descriptors()) open_descriptors(s);
}

void Sleepers::forget(Sleeper& s, Instant now) {
  come_in(s);
  give_charge(s, now);
  appoint(now);
  std::erase(threads_, &s);
  with_descriptors_ -= s.wake_fd >= 0;
}

bool Sleepers::may_have_descriptors() const { return with_descriptors_ < most_with_descriptors(); }

void Sleepers::open_descriptors(Sleeper& s) {
  s.open_descriptors();
  with_descriptors_ += s.wake_fd >= 0;
}

void Sleepers::close_descriptors(Sleeper& s) {
  wait_for_ringing();
  s.close_descriptors();
  s.kernel_fd = -1;
  s.has_ports = false;
  --with_descriptors_;
}

void Sleepers::wait_for_ringing() const {
  while (ringing_.load(std::memory_order_acquire) != 0) sched_yield();
}

void Sleepers::abandon_in_child() {
  for (Sleeper* s : threads_) {
    s->close_descriptors();
    *s = Sleeper{};
  }
  with_descriptors_ = 0;
}

// ---- those that are asleep ----

void Sleepers::fall_asleep(Sleeper& s, WaitRequest& request) {
  s.request = &request;
  s.woken = false;
  asleep_.push_back({&s, request.subject});
  asleep_count_.store(static_cast<uint32_t>(asleep_.size()), std::memory_order_relaxed);
}

void Sleepers::leave_sleep(Sleeper& s) {
  s.request = nullptr;
  std::erase_if(asleep_, [&s](const AsleepFor& a) { return a.sleeper == &s; });
  asleep_count_.store(static_cast<uint32_t>(asleep_.size()), std::memory_order_relaxed);
  if (timekeeper_ == &s) timekeeper_ = nullptr;
}

bool Sleepers::none_asleep_but(const void* context) const {
  return std::all_of(asleep_.begin(), asleep_.end(),
                     [context](const AsleepFor& a) { return a.sleeper->request->context == context; });
}

void Sleepers::wake_ready(const Changes& changes, Instant now) {
  for (const auto& [s, subject] : asleep_) {
    if (!changes.concern(subject)) continue;
    WaitRequest& r = *s->request;
    if (s->woken || !r.condition || !r.condition(r.context)) continue;
    note_ready(*s);
    wake(*s, now);
  }
}

void Sleepers::note_ready(const Sleeper& s) {
  latest_share_ += ((&s == latest_ ? kLatestAlways : 0) - latest_share_) / kLatestWeight;
}

void Sleepers::wake(Sleeper& s, Instant now) {
  s.woken = true;
  go_out(s, now);
  if (to_wake_.count == to_wake_.alarm.size()) return s.alarm().ring();
  to_wake_.alarm[to_wake_.count++] = s.alarm();
}

// ---- in charge of the ports ----

bool Sleepers::take_charge(Sleeper& s, Instant now, Instant until, bool insists) {
  latest_ = &s;
  if (!insists && is_cared_for(s)) return false;
  const bool asleep_now = in_charge_ && in_charge_->request;
  // One that polls does so for all; it is not trusted longer, since a handler may have left its wait by
  // siglongjmp().
  if (in_charge_ && in_charge_ != &s && !asleep_now && now < in_charge_until_) return false;
  if (asleep_now && in_charge_ != &s) watch_ports(*in_charge_, false);
  in_charge_ = &s;
  in_charge_until_ = until;
  return true;
}

bool Sleepers::is_cared_for(const Sleeper& s) const {
  return in_charge_ != nullptr && in_charge_ != &s && in_charge_->request != nullptr &&
         (s.wake_fd < 0 || charge_stays());
}

void Sleepers::take_charge_asleep(Sleeper& s, Instant now) {
  latest_ = &s;
  if (out_count_ == 0 || charge_stays())
    (void)take_charge(s, now, now);
  else if (in_charge_ == &s)
    in_charge_ = nullptr;
}

void Sleepers::give_charge(Sleeper& s, Instant now) {
  if (in_charge_ == &s) in_charge_ = nullptr;
  appoint(now);
}

void Sleepers::appoint(Instant now) {
  if (in_charge_ || (out_count_ > 0 && !charge_stays())) return;
  Sleeper* unchangeable = nullptr;
  for (const auto& [next, subject] : asleep_) {
    if (next->woken) continue;  // it is about to look for itself
    (next->fixed ? unchangeable : in_charge_) = next;
  }
  if (in_charge_)
    watch_ports(*in_charge_, true);
  else if (unchangeable)
    wake(*unchangeable, now);  // it finds that nobody is in charge
}

void Sleepers::end_overdue_charge(Instant now) {
  if (in_charge_ && !in_charge_->request && now > in_charge_until_) give_charge(*in_charge_, now);
}

void Sleepers::alarm_in_charge() {
  if (in_charge_ && in_charge_->request) in_charge_->alarm().ring();
}

// ---- threads that are out ----

void Sleepers::go_out(Sleeper& s, Instant now) {
  if (s.out || s.brief < Sleeper::kTrusted || threads_.size() == 1 || charge_stays()) return;
  s.out = was_out_ = true;
  s.out_since = now;
  ++out_count_;
  if (!std::exchange(watched_, true)) notices_.add(Notices::kThreadOut);
}

void Sleepers::come_in(Sleeper& s) {
  if (std::exchange(s.out, false)) --out_count_;
}

bool Sleepers::distrust_the_late(Instant now, uint64_t passes) {
  const bool few = passes - std::exchange(passes_watched_, passes) < kFewPasses;
  for (Sleeper* s : threads_) {
    if (!few || !s->out || now - s->out_since < kLate) continue;
    s->brief = 0;
    come_in(*s);
  }
  appoint(now);
  return std::exchange(was_out_, out_count_ > 0);
}

// ---- the stack's deadlines ----

bool Sleepers::keep_time(Sleeper& s, Instant due) {
  if (due == kNever || (timekeeper_ && due >= timekeeper_until_)) return false;
  timekeeper_ = &s;
  timekeeper_until_ = due;
  return true;
}

// ---- descriptors ----

void Sleepers::watch_port(Sleeper& s, InterfaceId id) {
  if (!ports_[id].port()) return;
  for (int fd : ports_[id].port()->poll_fds()) {
    epoll_event event{};
    // A thread that is awake may have them as well: it must not be the one that the kernel thinks it has
    // woken.
    event.events = EPOLLIN | EPOLLEXCLUSIVE;
    event.data.u64 = id;
    if (real.epoll_ctl(s.epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0 || errno != EINVAL) continue;
    event.events = EPOLLIN;  // the kernel has no EPOLLEXCLUSIVE for sets in sets
    real.epoll_ctl(s.epoll_fd, EPOLL_CTL_ADD, fd, &event);
  }
}

void Sleepers::watch_channels(Sleeper& s, bool watch) {
  epoll_event event{};
  event.events = EPOLLIN;  // the kernel has no EPOLLEXCLUSIVE for sets in sets
  event.data.u64 = kMaxInterfaces;
  for (size_t i = 0; i < channel_count_; ++i)
    real.epoll_ctl(s.epoll_fd, watch ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, channel_fds_[i], &event);
}

void Sleepers::watch_ports(Sleeper& s, bool watch) {
  if (s.epoll_fd < 0 || s.has_ports == watch) return;
  s.has_ports = watch;
  watch_channels(s, watch);
  epoll_event event{};
  for (InterfaceId id = 0; id < ports_.count(); ++id) {
    if (watch) {
      watch_port(s, id);
    } else if (ports_[id].port()) {
      for (int fd : ports_[id].port()->poll_fds()) real.epoll_ctl(s.epoll_fd, EPOLL_CTL_DEL, fd, &event);
    }
  }
}

void Sleepers::add_port(InterfaceId id, Instant now) {
  for (Sleeper* s : threads_)
    if (s->has_ports) watch_port(*s, id);
  // Who sleeps on the ports has to ask this one for a wake-up, too (Port::arm).
  for (const auto& [s, subject] : asleep_)
    if (s->fixed || s->has_ports) wake(*s, now);
}

void Sleepers::remove_port(InterfaceId id, Instant now) {
  epoll_event event{};
  for (int fd : ports_[id].opened.port.frames()->poll_fds())
    for (Sleeper* s : threads_)
      if (s->epoll_fd >= 0) real.epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, fd, &event);
  // poll() holds what it sleeps on open, and so the queue that another process may be waiting for.
  for (const auto& [s, subject] : asleep_)
    if (s->fixed) wake(*s, now);
}

void Sleepers::add_channels(int fd, Instant now) {
  channel_fds_[channel_count_++] = fd;
  for (Sleeper* s : threads_)
    if (s->has_ports) watch_channels(*s, true);
  for (const auto& [s, subject] : asleep_)
    if (s->fixed) wake(*s, now);
}

}  // namespace accel
