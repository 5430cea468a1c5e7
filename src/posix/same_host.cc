#include "posix/same_host.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/time.h>

#include <algorithm>
#include <utility>

#include "base/config.h"
#include "base/mutex.h"
#include "base/real.h"
#include "base/socket_option.h"
#include "base/user_memory.h"
#include "engine/lock.h"
#include "engine/stats.h"
#include "posix/calls.h"
#include "posix/epoll_set.h"
#include "posix/guard.h"
#include "posix/shm_meeting.h"
#include "posix/shm_socket.h"
#include "posix/unix_rendezvous.h"

namespace accel::posix {

constinit Candidates candidates;

namespace {

constinit Mutex opening;
constexpr uint32_t kMostCalls = 8191;
/// Transfers by the kernel, twice that the second time, and so on.
constexpr uint32_t kFirstAgain = 32;
/// What the kernel's sets tell of once, or to one waiter: what they have told is not known here.
constexpr uint32_t kUnknown = EPOLLONESHOT | EPOLLEXCLUSIVE;

/// Options that the kernel alone serves, and that need not have been set past the library.
bool needs_kernel(int fd) {
  char protocol[16]{};
  socklen_t size = sizeof protocol;
  if (real.getsockopt(fd, IPPROTO_TCP, TCP_ULP, protocol, &size) == 0 && size > 0 && protocol[0] != '\0')
    return true;
  return int_option(fd, SOL_SOCKET, SO_PEEK_OFF, -1) >= 0 ||
         int_option(fd, SOL_SOCKET, SO_BINDTOIFINDEX) != 0 || int_option(fd, SOL_SOCKET, SO_TIMESTAMP) != 0 ||
         int_option(fd, SOL_SOCKET, SO_TIMESTAMPNS) != 0 ||
         int_option(fd, SOL_SOCKET, SO_TIMESTAMPING) != 0 || int_option(fd, SOL_SOCKET, SO_ZEROCOPY) != 0 ||
         int_option(fd, IPPROTO_TCP, TCP_INQ) != 0 || int_option(fd, IPPROTO_TCP, TCP_REPAIR) != 0;
}

}  // namespace

bool Candidates::open() {
  const unsigned size = std::max(fds.size(), 0);
  if (size == 0) return false;
  const ScopedLock held(opening);
  if (any()) return true;
  void* const memory = mmap(nullptr, size * sizeof(Slot), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  slots_ = static_cast<Slot*>(memory);
  size_.store(size, std::memory_order_release);
  return true;
}

void Candidates::enter(int fd, uint32_t kind) {
  const Settings& s = config().settings;
  if (s.same_host == SameHost::kOff || config().disabled || retired() || sockets_stay() || fd < 0 ||
      (!any() && !open()))
    return;
  if (static_cast<unsigned>(fd) >= size_.load(std::memory_order_acquire)) return;
  Slot& slot = slots_[fd];
  if (static_cast<unsigned>(fd) > highest_.load(std::memory_order_relaxed))
    highest_.store(static_cast<unsigned>(fd), std::memory_order_relaxed);
  slot.set = -1;
  slot.cookie = kind == kConnection ? cookie_of(fd) : 0;
  forget(fd);
  slot.holders.store(0, std::memory_order_relaxed);
  slot.times = 0;
  if (kind == kConnection) set_count(slot);
  slot.word.fetch_or(kind);
}

/// Who comes back often has more transfers by the kernel each time.
void Candidates::set_count(Slot& slot) {
  const Settings& s = config().settings;
  const uint64_t more = slot.times == 0 ? 0 : uint64_t{kFirstAgain} << std::min(slot.times - 1, 12);
  const uint64_t count = s.same_host == SameHost::kRequire ? more : s.same_host_after + more;
  slot.word.fetch_and(~kCount);
  slot.word.fetch_or(static_cast<uint32_t>(std::min<uint64_t>(count, kMostCalls)) * kOne);
}

void Candidates::again(int fd) {
  Slot& slot = slots_[fd];
  if (slot.cookie == 0) return;
  slot.times = static_cast<uint8_t>(std::min(slot.times + 1, 255));
  set_count(slot);
  slot.word.fetch_or(kConnection);
}

// ---- over fork() ----

/// One more process has it. False: there is no place to tell each other.
bool Candidates::share(Slot& slot) {
  const uint16_t known = slot.holders.load(std::memory_order_relaxed);
  if (known != 0) {
    shared_->holders[known - 1].count.fetch_add(1);
    return true;
  }
  if (slot.cookie == 0) return false;
  const size_t place = slot.cookie * 0x9e3779b97f4a7c15u >> 52;
  static_assert(kShared == 1 << 12);
  uint64_t nobody = 0;
  if (!shared_->holders[place].cookie.compare_exchange_strong(nobody, slot.cookie)) return false;
  shared_->holders[place].count.store(2);
  slot.holders.store(static_cast<uint16_t>(place + 1), std::memory_order_relaxed);
  return true;
}

void Candidates::let_go(Slot& slot) {
  const uint16_t known = slot.holders.exchange(0);
  if (known == 0) return;
  Holders& holders = shared_->holders[known - 1];
  if (holders.count.fetch_sub(1) == 1) holders.cookie.store(0);
}

void Candidates::share_connections() {
  if (config().settings.same_host == SameHost::kOff) return;
  if (shared_ == nullptr) {
    void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return forget_connections();
    shared_ = static_cast<Shared*>(memory);
    shared_->processes.store(1);
  }
  shared_->processes.fetch_add(1);
  const unsigned size = size_.load(std::memory_order_acquire);
  for (unsigned fd = 0; fd < size && fd <= highest_.load(std::memory_order_relaxed); ++fd)
    if ((slots_[fd].word.load(std::memory_order_relaxed) & kConnection) != 0 && !share(slots_[fd]))
      forget(static_cast<int>(fd));
}

void Candidates::fork_failed() {
  if (shared_ == nullptr) return;
  shared_->processes.fetch_sub(1);
  const unsigned size = size_.load(std::memory_order_acquire);
  for (unsigned fd = 0; fd < size && fd <= highest_.load(std::memory_order_relaxed); ++fd)
    if (const uint16_t known = slots_[fd].holders.load(std::memory_order_relaxed); known != 0)
      shared_->holders[known - 1].count.fetch_sub(1);
}

bool Candidates::is_held_once(int fd) const {
  const uint16_t known = slots_[fd].holders.load(std::memory_order_relaxed);
  return known == 0 || shared_->holders[known - 1].count.load() == 1;
}

void Candidates::put_off(int fd) {
  Slot& slot = slots_[fd];
  slot.times = std::max<uint8_t>(slot.times, 1);
  set_count(slot);
}

/// A call that another thread is in still has the connection.
void Candidates::closes(int fd) {
  if (!has(fd)) return;
  Slot& slot = slots_[fd];
  if (slot.holders.load(std::memory_order_relaxed) != 0 && (slot.word.load() & kCalls) == 0) let_go(slot);
  forget(fd);
}

void Candidates::process_ends() {
  if (shared_ == nullptr || std::exchange(ended_, true)) return;
  shared_->processes.fetch_sub(1);
  const unsigned size = size_.load(std::memory_order_acquire);
  for (unsigned fd = 0; fd < size && fd <= highest_.load(std::memory_order_relaxed); ++fd)
    closes(static_cast<int>(fd));
}

void Candidates::forget_range(unsigned first, unsigned last) {
  const unsigned size = size_.load(std::memory_order_acquire);
  for (unsigned fd = first; fd < size && fd <= last && fd <= highest_.load(std::memory_order_relaxed); ++fd)
    forget(static_cast<int>(fd));
}

void Candidates::forget_connections() {
  const unsigned size = size_.load(std::memory_order_acquire);
  for (unsigned fd = 0; fd < size && fd <= highest_.load(std::memory_order_relaxed); ++fd)
    if ((slots_[fd].word.load(std::memory_order_relaxed) & kConnection) != 0) forget(static_cast<int>(fd));
}

void Candidates::after_fork_in_child() {
  const unsigned size = size_.load(std::memory_order_acquire);
  for (unsigned fd = 0; fd < size && fd <= highest_.load(std::memory_order_relaxed); ++fd)
    if (slots_[fd].word.load(std::memory_order_relaxed) != 0) slots_[fd].word.fetch_and(~kCalls);
}

void Candidates::note_membership(int set, int operation, int fd, const epoll_event& event) {
  Slot& slot = slots_[fd];
  if ((slot.word.load(std::memory_order_relaxed) & kConnection) == 0) return;  // a listener stays where it is
  const bool other = slot.set >= 0 && slot.set != set;
  if (other || (event.events & kUnknown) != 0) return forget(fd);
  slot.set = operation == EPOLL_CTL_DEL ? -1 : set;
  slot.events = event.events;
  slot.data = event.data.u64;
}

void Candidates::note_option(int fd, int level, int name, const void* value, socklen_t length) {
  const bool times =
      name == SO_RCVTIMEO || name == SO_SNDTIMEO || name == SO_RCVTIMEO_NEW || name == SO_SNDTIMEO_NEW;
  timeval t{};
  if (level == SOL_SOCKET && times && length >= sizeof t && get_user(t, value) && t.tv_sec < 0) forget(fd);
}

bool Candidates::is_same(int fd) const {
  return slots_[fd].cookie != 0 && slots_[fd].cookie == cookie_of(fd);
}

namespace {

/// TCP has carried no byte, though calls have been made that may have moved some. A BPF sockmap may have them
/// on another way, which no count of TCP's shows.
bool carries_nothing(int fd) {
  const Settings& s = config().settings;
  if (s.same_host == SameHost::kRequire || s.same_host_after == 0) return false;
  const std::optional<StreamCounts> counts = stream_counts(fd);
  return counts && counts->sent + counts->read == 0;
}

/// Into the table, and from the real set into the library's. What is not known of the set for certain, or is
/// another process's too, leaves the descriptor with the kernel.
void enter_table(Pass& pass, int fd, const ConnectionNames& names) {
  const Candidates::Membership in = candidates.membership(fd);
  EpollSet* const set = in.set >= 0 ? find_set(in.set) : nullptr;
  epoll_event event = in.event;
  // A process that has the set by fork() would not hear of its members any more.
  if (in.set >= 0 && set != nullptr && set->shared && !candidates.process_is_alone())
    return candidates.put_off(fd);
  if (in.set >= 0 &&
      (set == nullptr || set->passed_on || real.epoll_ctl(in.set, EPOLL_CTL_MOD, fd, &event) != 0))
    return;
  auto* s = new (std::nothrow) ShmSocket(fd, names);
  if (s == nullptr || !fds.insert(fd, s)) {
    delete s;
    return;
  }
  s->retain();
  if (set != nullptr) {
    real.epoll_ctl(in.set, EPOLL_CTL_DEL, fd, &event);
    if (!set->add(in.set, fd, s, in.event)) real.epoll_ctl(in.set, EPOLL_CTL_ADD, fd, &event);
  }
  s->begin(pass);
  s->release(&pass);
}

}  // namespace

void take_candidate(int fd) {
  // First: the program may have lost system calls, which ends the process at the next one.
  if (retired() || sockets_stay()) return candidates.forget(fd);
  Guard guard(Pass::Polling::kNo);
  if (!guard.ok() || !candidates.has(fd) || fds.find(fd) != nullptr) return;
  if (!candidates.is_held_once(fd)) return candidates.put_off(fd);
  const std::optional<ConnectionNames> names = names_of_connection(fd);
  if (!names && is_connecting(fd)) return;  // the next call finds it connected
  if (names && carries_nothing(fd)) return candidates.put_off(fd);
  const bool fit = names && candidates.is_same(fd) && !needs_kernel(fd);
  Reason why{};
  Pass* const pass = fit && !in_handler() ? guard.open_engine(&why, Engine::Opening::kForLinks) : nullptr;
  // To open the engine lets others in.
  if (fds.find(fd) != nullptr) return;
  if (pass == nullptr || !candidates.has(fd)) return candidates.forget(fd);
  const auto is_here = [&](const IpAddress& a) {
    return a.is_loopback() || pass->engine().has_address(*pass, a);
  };
  if (pass->engine().is_of_our_network(fd) && is_here(names->local.address) &&
      is_here(names->remote.address) && pass->engine().links() != nullptr)
    enter_table(*pass, fd, *names);
  // It stays a candidate in the table: a call that has not found it there looks here next. What makes it the
  // kernel's for good forgets it, and then looks into the table.
  File* const entered = fds.find(fd);
  if (entered == nullptr) {
    if (candidates.due(fd)) candidates.forget(fd);
    return;
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!candidates.has(fd))
    (void)static_cast<ShmSocket*>(entered)->detach_for(*pass, "a call for the kernel's connection");
}

}  // namespace accel::posix
