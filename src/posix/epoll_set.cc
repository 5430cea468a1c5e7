#include "posix/epoll_set.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>

#include "base/private_fds.h"
#include "base/real.h"
#include "base/user_memory.h"
#include "posix/early_wait.h"

namespace accel::posix {
namespace {

constexpr uint32_t kAlways = EPOLLERR | EPOLLHUP;
/// What an item keeps when EPOLLONESHOT disarms it, and what EPOLLEXCLUSIVE may be combined with
/// (fs/eventpoll.c).
constexpr uint32_t kExclusiveAllows = EPOLLIN | EPOLLOUT | kAlways | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE;
constexpr uint32_t kWakeTag = 1;  ///< the eventfd's; items begin after it
constexpr uint32_t kIdleChecks = 64;
constexpr Duration kCheckEvery = 20us;

/// Our data in a real set: a random half, by which it cannot be mistaken for the program's, and the item's
/// number.
uint64_t tag_mark() {
  static const uint64_t mark = [] {
    uint32_t value = 0;
    if (getrandom(&value, sizeof(value), GRND_NONBLOCK) != sizeof(value))
      value = 0xacce1e70u ^ static_cast<uint32_t>(getpid());
    return static_cast<uint64_t>(value | 0x80000000u) << 32;
  }();
  return mark;
}

Errno last_error() { return err(errno); }

}  // namespace

uint64_t readiness_epoch = 0;

/// net/ipv4/tcp.c: tcp_poll() has the same groups.
uint32_t epoll_bits(uint32_t ready) {
  uint32_t bits = 0;
  if (ready & kReadable) bits |= EPOLLIN | EPOLLRDNORM;
  if (ready & kWritable) bits |= EPOLLOUT | EPOLLWRNORM;
  if (ready & kReadClosed) bits |= EPOLLIN | EPOLLRDNORM | EPOLLRDHUP;
  if (ready & kHangUp) bits |= EPOLLHUP;
  if (ready & kError) bits |= EPOLLERR;
  if (ready & kUrgent) bits |= EPOLLPRI;
  return bits;
}

EpollSet* find_set(int fd) {
  File* file = fds.find(fd);
  return file != nullptr && file->kind() == FileKind::kEpoll ? static_cast<EpollSet*>(file) : nullptr;
}

// ---- the file's side ----

namespace {

void notify_bits(File& file, uint32_t bits) {
  for (EpollItem* item = file.watches; item != nullptr; item = item->next_of_file)
    if (item->set->on_event(*item, bits)) return;
}

}  // namespace

void File::notify(uint32_t edges) {
  ++readiness_epoch;
  notify_bits(*this, epoll_bits(edges));
}

void File::kernel_fd_changed() {
  ++readiness_epoch;
  for (EpollItem* item = watches; item != nullptr; item = item->next_of_file) {
    (void)item->set->sync_kernel(item->set->kernel_fd(),
                                 *item);  // no descriptor left for it: we alone serve the item
    item->set->on_event(*item, readiness());
  }
}

void File::number_closes(int fd) {
  if (descriptors < 2) return;
  for (EpollItem* item = watches; item != nullptr; item = item->next_of_file)
    if (item->fd == fd) item->set->number_closes(*item);
}

void File::leave_sets() {
  while (watches != nullptr) watches->set->end(*watches, false);
}

void File::move_watches_to_kernel() {
  while (watches != nullptr) watches->set->end(*watches, true);
}

bool File::waited_on_now() const {
  bool found =
      waiters > 0 || (kind_ == FileKind::kEpoll && static_cast<const EpollSet*>(this)->in_epoll_wait > 0);
  for (EpollItem* item = watches; !found && item != nullptr; item = item->next_of_file)
    found = item->set->waited_on_now();
  return found;
}

void File::announce_inherited() {
  for (EpollItem* item = watches; item != nullptr; item = item->next_of_file) {
    item->set->may_have_inherited = true;
    item->set->announce_inherited();
  }
}

void File::announce_shared_listener() {
  for (EpollItem* item = watches; item != nullptr; item = item->next_of_file) {
    item->set->shared_listener = true;
    item->set->announce_shared_listener();
  }
}

void File::take_watches(File& other) {
  watches = std::exchange(other.watches, nullptr);
  for (EpollItem* item = watches; item != nullptr; item = item->next_of_file) item->file = this;
}

// ---- the set as a file ----

EpollSet::~EpollSet() {
  if (wake_fd_ >= 0) close_private(wake_fd_);
}

uint32_t EpollSet::readiness() {
  while (!ready_.empty()) {
    if (ready_.front().ready_events() != 0) return EPOLLIN | EPOLLRDNORM;
    drop_ready(ready_.front());
  }
  return 0;
}

int EpollSet::kernel_fd() {
  if (fds.find(recent_fd) == this) return recent_fd;
  for (int fd = 0; descriptors > 0 && fd < fds.limit(); ++fd)
    if (fds.find(fd) == this) return recent_fd = fd;
  return -1;
}

void EpollSet::on_last_close(Pass*) {
  for_each_item([this](EpollItem& item) { unlink(item); });  // the real set goes with its descriptor
}

File::Inherited EpollSet::after_fork_in_child() {
  may_have_inherited = true;
  in_epoll_wait = kernel_waiters = 0;
  fds.forget_plain_waits(first_fd_);
  return Inherited::kNo;
}

// ---- membership ----

EpollItem* EpollSet::find(int fd, const File* file) const {
  for (EpollItem* item = file->watches; item != nullptr; item = item->next_of_file)
    if (item->set == this && item->fd == fd) return item;
  return nullptr;
}

Result<void> EpollSet::add(int real_set, int fd, File* file, const epoll_event& event) {
  if (file == this) return err(EINVAL);
  if (event.events & EPOLLEXCLUSIVE &&
      (file->kind() == FileKind::kEpoll || (event.events & ~kExclusiveAllows) != 0))
    return err(EINVAL);
  if (find(fd, file) != nullptr) return err(EEXIST);
  (void)tag_mark();  // made here: who waits may filter its system calls by the time that it asks
  std::unique_ptr<EpollItem> item(new (std::nothrow) EpollItem(this, file, fd));
  if (item == nullptr) return err(ENOMEM);
  item->events = event.events | kAlways;
  item->data = event.data;
  if (find_set(first_fd_) == this) fds.end_plain(first_fd_);
  if (auto done = sync_kernel(real_set, *item); !done)
    return done;  // ELOOP, ENOSPC, ENOMEM are the kernel's to find
  // As the kernel's wait queue has it: the newest first, those that want to be alone behind all others in the
  // order in which they came (add_wait_queue_exclusive()).
  EpollItem** link = &file->watches;
  while ((event.events & EPOLLEXCLUSIVE) != 0 && *link != nullptr) link = &(*link)->next_of_file;
  item->next_of_file = *link;
  *link = item.get();
  items_.push_back(*item);
  if (!waited_on_once) looks_for_first_wait.store(kLooks, std::memory_order_relaxed);
  if (item->ready_events() != 0) push(*item);
  if (file->shared_listener) file->announce_shared_listener();
  (void)item.release();  // items_ owns it: unlink() deletes
  return {};
}

Result<void> EpollSet::modify(int real_set, int fd, File* file, const epoll_event& event) {
  if (file == this) return err(EINVAL);
  EpollItem* item = find(fd, file);
  if (event.events & EPOLLEXCLUSIVE) return err(EINVAL);
  if (item == nullptr) return err(ENOENT);
  if (item->events & EPOLLEXCLUSIVE) return err(EINVAL);
  item->events = event.events | kAlways;
  item->data = event.data;
  item->armed = true;
  item->kernel_events = 0;
  if (auto done = sync_kernel(real_set, *item); !done) return done;
  if (item->ready_events() != 0) push(*item);
  return {};
}

Result<void> EpollSet::remove(int real_set, int fd, File* file) {
  if (file == this) return err(EINVAL);
  EpollItem* item = find(fd, file);
  if (item == nullptr) return err(ENOENT);
  if (item->tag != 0) real.epoll_ctl(real_set, EPOLL_CTL_DEL, name_of(*item), nullptr);
  unlink(*item);
  return {};
}

int EpollSet::name_of(EpollItem& item) {
  if (item.alias >= 0) return item.alias;
  if (fds.find(item.fd) == item.file) return item.fd;
  const int other = item.file->kernel_fd();
  if (item.tag == 0) item.alias = keep_private(real.fcntl(other, F_DUPFD_CLOEXEC, 3));
  return item.alias >= 0 ? item.alias : other;
}

void EpollSet::number_closes(EpollItem& item) {
  // An edge that was told would be told again.
  if (item.tag == 0 || item.alias >= 0 || shared || (item.events & EPOLLET) != 0) return;
  const int alias = keep_private(real.fcntl(item.fd, F_DUPFD_CLOEXEC, 3));
  if (alias < 0) return;
  const int real_set = kernel_fd();
  real.epoll_ctl(real_set, EPOLL_CTL_DEL, item.fd, nullptr);
  tagged_.erase(item.tag);
  item.tag = 0;
  item.alias = alias;
  (void)sync_kernel(real_set, item);  // in the place of what was taken out
}

Result<void> EpollSet::sync_kernel(int real_set, EpollItem& item) {
  // A forked child shares the real set with the parent: what the parent still carries is not to be added.
  const bool elsewhere = item.file->inherited == File::Inherited::kConnection;
  const bool wanted = item.armed && !elsewhere && item.file->kernel_fd() >= 0;
  if (!wanted && item.tag == 0) return {};
  const int fd = name_of(item);
  if (!wanted) {
    if (real.epoll_ctl(real_set, EPOLL_CTL_DEL, fd, nullptr) != 0) ++stale_;
    tagged_.erase(item.tag);
    item.tag = 0;
    return {};
  }
  epoll_event event{};
  event.events = item.events;
  const bool present = item.tag != 0;
  if (!present) {
    if (last_tag_ < kWakeTag) last_tag_ = kWakeTag;
    item.tag = ++last_tag_;
  }
  event.data.u64 = tag_mark() | item.tag;
  int result = real.epoll_ctl(real_set, present ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event);
  if (result != 0 && errno == EEXIST)
    result = real.epoll_ctl(real_set, EPOLL_CTL_MOD, fd, &event);  // left by a parent
  if (result != 0) {
    const Errno error = last_error();
    tagged_.erase(item.tag);
    item.tag = 0;
    return error;
  }
  tagged_[item.tag] = &item;
  return {};
}

namespace {

/// A number by which it is open, be it for the last time.
int any_number(const File& file) {
  const int fd = fds.first_of(&file);
  return fd >= 0 ? fd : fds.leaving();
}

}  // namespace

void EpollSet::end(EpollItem& item, bool to_kernel) {
  const int real_set = kernel_fd();
  // Only by the descriptor that the kernel knows the member by; a number that is used again would take out
  // another's.
  const bool open = fds.find(item.fd) == item.file || fds.leaving() == item.fd;
  const bool named = open || item.alias >= 0;
  // What closes here may be open, and watched, in the process that shares the set: the kernel knows.
  if (item.tag != 0 && named && (to_kernel || !shared))
    real.epoll_ctl(real_set, EPOLL_CTL_DEL, item.alias >= 0 ? item.alias : item.fd, nullptr);
  if (to_kernel && real_set >= 0) {
    epoll_event event{};
    event.events = item.armed ? item.events : item.events & (EPOLLONESHOT | EPOLLET);
    event.data = item.data;
    // A number that is closed may be another's by now, and others of the file's may be members: the kernel
    // tells members apart by their numbers, and has this one by a number of its own.
    const int name = open ? item.fd : keep_private(real.fcntl(any_number(*item.file), F_DUPFD_CLOEXEC, 3));
    if (real.epoll_ctl(real_set, EPOLL_CTL_ADD, name, &event) != 0 && errno == EEXIST)
      real.epoll_ctl(real_set, EPOLL_CTL_MOD, name, &event);
    if (!open && name >= 0) close_private(name);
  }
  unlink(item);
}

void EpollSet::unlink(EpollItem& item) {
  EpollItem** link = &item.file->watches;
  while (*link != &item) link = &(*link)->next_of_file;
  *link = item.next_of_file;
  if (item.tag != 0) tagged_.erase(item.tag);
  if (item.alias >= 0) close_private(item.alias);
  drop_ready(item);
  items_.erase(items_.iterator_to(item));
  delete &item;
}

// ---- readiness ----

bool EpollSet::on_event(EpollItem& item, uint32_t bits) {
  if (!item.armed || (bits & item.events) == 0) return false;
  push(item);
  return (item.events & EPOLLEXCLUSIVE) != 0 && in_epoll_wait > 0;
}

void EpollSet::push(EpollItem& item) {
  ++readiness_epoch;  // somebody may poll() the set
  if (!item.of_ready.is_linked()) ready_.push_back(item);
  if (waited_on_in_kernel()) wake_kernel_waiters();
  if (Engine* engine = Engine::get())
    engine->touch();
  else
    wake_early_sleepers();
  notify_bits(*this, EPOLLIN | EPOLLRDNORM);
}

void EpollSet::drop_ready(EpollItem& item) {
  item.kernel_events = 0;
  if (item.of_ready.is_linked()) ready_.erase(ready_.iterator_to(item));
}

void EpollSet::wake_kernel_waiters() {
  if (wake_fd_ < 0) {
    wake_fd_ = keep_private(real.eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = tag_mark() | kWakeTag;
    if (wake_fd_ < 0 || real.epoll_ctl(kernel_fd(), EPOLL_CTL_ADD, wake_fd_, &event) != 0) return;
  }
  const uint64_t one = 1;
  (void)!real.write(wake_fd_, &one, sizeof(one));
}

// ---- waiting ----

bool EpollSet::kernel_due(Instant now) {
  if (idle_checks_ >= kIdleChecks && now - last_check_ < kCheckEvery) return false;
  last_check_ = now;
  return true;
}

bool EpollSet::Round::Members::has(uint64_t one) const {
  const auto end = data.begin() + static_cast<ptrdiff_t>(count);
  return std::find(data.begin(), end, one) != end;
}

void EpollSet::Round::begin(size_t ours) {
  seen_.count = again_ ? 1 : 0;
  again_ = false;
  kernel_done = seen_.count != 0 && seen_.count == known_.count;
  ours_left = ours;
}

/// The kernel does not tell how many are ready. All of them have been seen when one comes again, and as many
/// as were ready before are enough, unless there are others among them.
void EpollSet::Round::note_kernels(uint64_t data) {
  const bool comes_again = seen_.has(data);
  if (comes_again || seen_.count == seen_.data.size()) {
    known_ = comes_again ? seen_ : Members{};
    seen_.data[0] = data;
    again_ = kernel_done = true;
    return;
  }
  if (known_.count != 0 && !known_.has(data)) known_.count = 0;
  seen_.data[seen_.count++] = data;
  kernel_done |= seen_.count == known_.count;
}

Result<EpollSet::Collected> EpollSet::collect(int real_set, std::span<epoll_event> out, bool ask_kernel) {
  if (round_.ours_left == 0) round_.begin(ready_.size());
  const bool kernel_waits = ask_kernel && round_.kernel_done;
  Result<Collected> r = collect_in_turn(real_set, out, ask_kernel && !kernel_waits);
  if (!kernel_waits || !r) return r;
  const auto filled = static_cast<size_t>(r->events);
  if (filled == out.size()) return r;
  round_.begin(0);  // ours that are ready have had their turn
  if (filled == 0) return collect_in_turn(real_set, out, true);
  const auto rest = out.subspan(filled);
  const int got = real.epoll_wait(real_set, rest.data(), static_cast<int>(rest.size()), 0);
  if (got > 0) r->events += absorb(rest.first(static_cast<size_t>(got)));
  return r;
}

Result<EpollSet::Collected> EpollSet::collect_in_turn(int real_set, std::span<epoll_event> out,
                                                      bool ask_kernel) {
  int filled = 0;
  if (ask_kernel) {
    // When both have more than fits, each gets half; of an odd number the one more in turn.
    const size_t ours = std::min(ready_.size(), (out.size() + odd_turn_) / 2);
    odd_turn_ = !odd_turn_;
    size_t room = out.size() - ours;
    if (ours < ready_.size()) room = std::min(room, round_.kernels_left());
    // What a stale member, or one of ours, took the place of is there the next time: the kernel's own, or
    // what the kernel adds to another of ours.
    for (uint32_t tries = 0; room > 0 && filled == 0 && tries <= stale_ + 1;) {
      const size_t known = ready_.size();
      const int got = real.epoll_wait(real_set, out.data(), static_cast<int>(room), 0);
      if (got < 0) return last_error();
      idle_checks_ = got > 0 ? 0 : std::min(idle_checks_ + 1, kIdleChecks);
      filled = absorb(out.first(static_cast<size_t>(got)));
      if (static_cast<size_t>(got) < room) break;
      for (auto i = ready_.begin(); i != ready_.end();)
        if (EpollItem& item = *i++; item.ready_events() == 0) drop_ready(item);
      if (ready_.size() <= known || ready_.size() >= out.size()) ++tries;
    }
  }
  if (!ready_.empty())
    for (const epoll_event& event : out.first(static_cast<size_t>(filled)))
      round_.note_kernels(event.data.u64);
  Result<int> ours = report(out.subspan(static_cast<size_t>(filled)));
  if (ours) round_.ours_left -= std::min(round_.ours_left, static_cast<size_t>(*ours));
  if (!ours && filled == 0) return ours.error();
  const int own = ours ? *ours : 0;
  return Collected{filled + own, own};
}

int EpollSet::absorb(std::span<epoll_event> events) {
  size_t kept = 0;
  for (const epoll_event& event : events) {
    if ((event.data.u64 & 0xffffffff00000000u) != tag_mark()) {
      events[kept++] = event;
      continue;
    }
    const auto tag = static_cast<uint32_t>(event.data.u64);
    if (tag == kWakeTag) {
      uint64_t count = 0;
      (void)!real.read(wake_fd_, &count, sizeof(count));
    } else if (auto found = tagged_.find(tag); found != tagged_.end()) {
      EpollItem& item = *found->second;
      item.kernel_events = event.events;
      if (!item.of_ready.is_linked()) ready_.push_back(item);
    }
  }
  return static_cast<int>(kept);
}

Result<int> EpollSet::report(std::span<epoll_event> out) {
  size_t filled = 0;
  for (size_t left = ready_.size(); left > 0 && filled < out.size(); --left) {
    EpollItem& item = ready_.front();
    const uint32_t events = item.ready_events();
    drop_ready(item);
    if (events == 0) continue;
    if (!can_overwrite(&out[filled], sizeof out[filled])) {
      ready_.push_front(item);
      if (filled == 0) return err(EFAULT);
      break;
    }
    out[filled].events = events;
    out[filled++].data = item.data;
    if (item.events & EPOLLONESHOT) {
      item.armed = false;
      (void)sync_kernel(kernel_fd(), item);  // takes it out: cannot fail
    } else if (!(item.events & EPOLLET)) {
      ready_.push_back(item);
    }
  }
  if (has_ready() && waited_on_in_kernel()) wake_kernel_waiters();  // the next of them takes what is left
  return static_cast<int>(filled);
}

}  // namespace accel::posix
