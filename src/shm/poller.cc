#include "shm/poller.h"

#include <sys/epoll.h>

#include <algorithm>

#include "base/private_fds.h"
#include "base/real.h"

namespace accel::shm {
namespace {

constexpr int kEvents = 32;
/// A program that polls asks the kernel this often.
constexpr Duration kAskKernel = 50us;
/// A ring without use for one to two of these is looked at no more.
constexpr Duration kSweep = 20ms;
constexpr uint64_t kBell = 1;  ///< beside a link's address: its bell

}  // namespace

Result<std::unique_ptr<Poller>> Poller::open() {
  const int fd = keep_private(real.epoll_create1(EPOLL_CLOEXEC));
  if (fd < 0) return err(errno);
  return std::unique_ptr<Poller>(new Poller(fd));
}

Poller::~Poller() { close_private(fd_); }

void Poller::abandon_in_child() { close_private(fd_); }

// ---- what the kernel tells ----

bool Poller::watch(int fd, uint64_t tag, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  return real.epoll_ctl(fd_, EPOLL_CTL_ADD, fd, &event) == 0;
}

/// By hand: a file that another process has as well would stay in the set.
void Poller::forget_fd(int fd) {
  epoll_event event{};
  if (fd >= 0) real.epoll_ctl(fd_, EPOLL_CTL_DEL, fd, &event);
}

bool Poller::watch_tcp(Link& link) {
  constexpr uint32_t kAll = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI;
  if (!watch(link.tcp, reinterpret_cast<uint64_t>(&link), kAll | EPOLLET)) return false;
  if (!std::exchange(link.counted_, true)) ++links_;
  return true;
}

bool Poller::watch_bell(Link& link) {
  return watch(link.bell, reinterpret_cast<uint64_t>(&link) | kBell, EPOLLIN | EPOLLRDHUP);
}

void Poller::forget_tcp(Link& link) { forget_fd(link.tcp); }
void Poller::forget_bell(Link& link) { forget_fd(link.bell); }

void Poller::move_tcp(Link& link, int fd) {
  forget_tcp(link);
  link.tcp = fd;
  (void)watch_tcp(link);
}

void Poller::set_deadline(Link& link, Instant when) {
  if (link.deadline != kNever) std::erase(timed_, &link);
  link.deadline = when;
  link.late = false;  // of the deadline before, perhaps
  if (when == kNever) return;
  timed_.push_back(&link);
  next_deadline_ = std::min(next_deadline_, when);
}

void Poller::expire(Instant now) {
  next_deadline_ = kNever;
  for (Link* link : timed_) {
    if (link->deadline <= now) {
      link->late = true;
      link->deadline = kNever;
      make_ready(*link);
    } else {
      next_deadline_ = std::min(next_deadline_, link->deadline);
    }
  }
  std::erase_if(timed_, [](const Link* link) { return link->late; });
}

bool Poller::poll(Instant now, bool asleep) {
  bool any = look(now, asleep);
  if (next_deadline_ <= now) expire(now);
  if (now - swept_ >= kSweep) sweep(now);
  if (links_ == 0 || now - kernel_asked_at_ < kAskKernel) return any;
  kernel_asked_at_ = now;
  epoll_event events[kEvents];
  // What does not fit comes the next time: of bells until they have been read, of the rest since it is not
  // told yet.
  const int n = real.epoll_wait(fd_, events, kEvents, 0);
  for (int i = 0; i < n; ++i) {
    auto& link = *reinterpret_cast<Link*>(events[i].data.u64 & ~kBell);
    ((events[i].data.u64 & kBell) != 0 ? link.bell_event : link.tcp_event) = true;
    make_ready(link);
    any = true;
  }
  return any;
}

// ---- the rings ----

bool Poller::look(Instant now, bool asleep) {
  looked_at_ = now;
  bool any = false;
  const bool disarms = armed_ && !asleep;
  for (Link* link : hot_) {
    if (disarms) link->rings->receiver->awake();
    if (!link->changed()) continue;
    link->used_ = true;
    make_ready(*link);
    any = true;
  }
  if (disarms) armed_ = false;
  return any;
}

bool Poller::arm() {
  kernel_asked_at_ = {};  // after a sleep the kernel is asked
  armed_ = true;
  for (Link* link : hot_) link->ask_to_be_told();
  std::atomic_thread_fence(std::memory_order_seq_cst);
  bool quiet = ready_.empty();
  for (Link* link : hot_) {
    if (!link->changed()) continue;
    make_ready(*link);
    quiet = false;
  }
  return quiet;
}

void Poller::take_out(Link& link) {
  if (link.slot_ == Link::kCold) return;
  hot_.back()->slot_ = link.slot_;
  hot_[link.slot_] = hot_.back();
  hot_.pop_back();
  link.slot_ = Link::kCold;
}

void Poller::cool(Link& link) {
  take_out(link);
  if (!link.sleep()) make_ready(link);
}

void Poller::sweep(Instant now) {
  swept_ = now;
  for (size_t i = hot_.size(); i > 0; --i)  // from the end: the last one takes the place of who goes
    if (Link& link = *hot_[i - 1]; !std::exchange(link.used_, false)) cool(link);
}

void Poller::heat(Link& link) {
  link.used_ = true;
  if (link.slot_ != Link::kCold) return;
  if (hot_.size() >= kMostHot) {
    next_cooled_ = (next_cooled_ + 1) % hot_.size();
    cool(*hot_[next_cooled_]);
  }
  link.slot_ = hot_.size();
  hot_.push_back(&link);
  if (armed_)
    seen(link);
  else
    link.rings->receiver->awake();
}

void Poller::seen(Link& link) {
  if ((armed_ || link.slot_ == Link::kCold) && !link.sleep()) make_ready(link);
}

void Poller::make_ready(Link& link) {
  if (!std::exchange(link.ready_, true)) ready_.push_back(&link);
}

Link* Poller::take_ready() {
  if (ready_.empty()) return nullptr;
  Link* const link = ready_.back();
  ready_.pop_back();
  link->ready_ = false;
  return link;
}

void Poller::forget(Link& link) {
  std::erase(ready_, &link);
  std::erase(timed_, &link);
  take_out(link);
  forget_tcp(link);
  if (std::exchange(link.counted_, false)) --links_;
}

}  // namespace accel::shm
