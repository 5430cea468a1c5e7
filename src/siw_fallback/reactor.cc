#include "siw_fallback/reactor.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>

#include "base/private_fds.h"
#include "base/real.h"

namespace accel::siw {
namespace {

constexpr int kEvents = 64;
constexpr int kRounds = 4;  ///< of kEvents in one poll: then the caller's turn
constexpr size_t kMostPending = 256;
constexpr size_t kMostPlain = 1024;
constexpr Duration kPlainFor = std::chrono::minutes(10);

epoll_event event_for(Channel& channel, bool output) {
  epoll_event event{};
  event.events = uint32_t{EPOLLIN} | EPOLLRDHUP | EPOLLET | (output ? uint32_t{EPOLLOUT} : 0);
  event.data.ptr = &channel;
  return event;
}

/// What is ready now. Not a cancellation point, as libc's is: the lock is held.
int look(int fd, std::span<epoll_event> events) {
  return static_cast<int>(real.syscall(SYS_epoll_pwait, static_cast<long>(fd), events.data(),
                                       static_cast<long>(events.size()), 0L, nullptr, 0L));
}

}  // namespace

Result<std::unique_ptr<Reactor>> Reactor::open(Counters& counters, const ReactorOptions& options) {
  const int fd = keep_private(real.epoll_create1(EPOLL_CLOEXEC));
  if (fd < 0) return err(errno);
  return std::unique_ptr<Reactor>(new Reactor(fd, counters, options));
}

Reactor::Reactor(int fd, Counters& counters, const ReactorOptions& options)
    : fd_(fd), counters_(counters), options_(options), buffer_(kReadBuffer) {}

Reactor::~Reactor() {
  for (auto& orphan : orphans_) close_private(orphan->fd());
  orphans_.clear();
  close_private(fd_);
}

void Reactor::abandon_in_child() {
  for (auto& orphan : orphans_) close_private(orphan->fd());
  close_private(fd_);
}

// ---- the channels ----

bool Reactor::watch(Channel& channel) {
  epoll_event event = event_for(channel, channel.output_watched_);
  if (real.epoll_ctl(fd_, EPOLL_CTL_ADD, channel.fd_, &event) != 0) return false;
  ++channels_;
  newest_ = &channel;
  channel.watched_ = true;
  return true;
}

/// Always by hand: a socket that a forked child holds as well would stay in the set.
void Reactor::unwatch(Channel& channel) {
  std::erase(ready_, &channel);
  blocked_.erase(&channel);
  if (!channel.watched_) return;
  channel.watched_ = false;
  epoll_event event{};
  real.epoll_ctl(fd_, EPOLL_CTL_DEL, channel.fd_, &event);
  --channels_;
  if (newest_ == &channel) newest_ = nullptr;
}

void Reactor::set_output_watch(Channel& channel, bool wanted) {
  epoll_event event = event_for(channel, wanted);
  real.epoll_ctl(fd_, EPOLL_CTL_MOD, channel.fd_, &event);
}

void Reactor::schedule(Channel& channel, Instant from, Instant to) {
  if (from != kNever) deadlines_.erase({from, &channel});
  if (to != kNever) deadlines_.emplace(to, &channel);
}

void Reactor::ready(Channel& channel) { ready_.push_back(&channel); }

Channel* Reactor::take_ready() {
  if (ready_.empty()) return nullptr;
  Channel* channel = ready_.back();
  ready_.pop_back();
  return channel;
}

bool Reactor::due(Instant now) const { return next_deadline() <= now || !blocked_.empty(); }

void Reactor::poll(Instant now) {
  while (next_deadline() <= now) {
    Channel* due = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    due->on_deadline(now);
  }
  // To read from the only connection costs no more than to ask the set, which forgets what has been read.
  const bool only = channels_ == 1 && newest_ != nullptr && newest_->awaits_bytes();
  if (only) newest_->progress(now);
  epoll_event events[kEvents];
  for (int round = 0; !only && channels_ > 0 && round < kRounds; ++round) {
    const int n = look(fd_, events);
    for (int i = 0; i < n; ++i) {
      const bool over = (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
      static_cast<Channel*>(events[i].data.ptr)->progress(now, over);
    }
    if (n < kEvents) break;
  }
  if (!orphans_.empty()) bury_orphans();
}

bool Reactor::all_delivered() const {
  return blocked_.empty() &&
         std::ranges::all_of(orphans_, [](const auto& c) { return c->over() || c->delivered(); });
}

bool Reactor::all_over() const {
  return std::ranges::all_of(orphans_, [](const auto& c) { return c->over(); });
}

void Reactor::adopt(std::unique_ptr<Channel> channel) { orphans_.push_back(std::move(channel)); }

/// A socket that is closed with bytes unread, or that bytes still come to, resets the connection, and what
/// the peer's TCP has not acknowledged by then is lost: the credits that the peer grants while it reads our
/// last bytes are such.
void Reactor::bury_orphans() {
  std::erase_if(orphans_, [](const std::unique_ptr<Channel>& c) {
    const bool given_up = c->deadline() == kNever;
    if (!c->over() && !given_up) return false;
    const int fd = c->fd();
    if (given_up && c->unsent()) {  // bytes are lost: the peer must not take what it has for all
      const linger abort{1, 0};
      real.setsockopt(fd, SOL_SOCKET, SO_LINGER, &abort, sizeof abort);
    }
    c->suspend();
    close_private(fd);
    return true;
  });
}

// ---- limits ----

bool Reactor::reserve(size_t bytes) {
  if (bytes > options_.memory - std::min(reserved_, options_.memory)) {
    counters_.add(Counter::iwarp_memory_limit);
    return false;
  }
  reserved_ += bytes;
  return true;
}

bool Reactor::begin_pending() {
  if (pending_ >= kMostPending) {
    counters_.add(Counter::iwarp_pending_limit);
    return false;
  }
  ++pending_;
  return true;
}

bool Reactor::known_plain(const accel::Endpoint& destination, Instant now) {
  const auto found = plain_.find(destination);
  if (found == plain_.end()) return false;
  if (now < found->second) return true;
  plain_.erase(found);
  return false;
}

void Reactor::remember_plain(const accel::Endpoint& destination, Instant now) {
  if (plain_.size() >= kMostPlain) std::erase_if(plain_, [now](const auto& p) { return p.second <= now; });
  if (plain_.size() >= kMostPlain) plain_.erase(plain_.begin());
  plain_[destination] = now + kPlainFor;
}

}  // namespace accel::siw
