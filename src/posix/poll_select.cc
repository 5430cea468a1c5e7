// poll(2) and select(2) over descriptors of ours and the kernel's, mixed.
//
// Ours are asked for their readiness, the kernel's (and the kernel descriptors that belong to ours) in one
// real poll(). A thread that waits is woken when any readiness changes (readiness_epoch) and then looks at
// its own.
#include <poll.h>
#include <sys/resource.h>
#include <sys/select.h>

#include "base/real.h"
#include "base/user_memory.h"
#include "posix/calls.h"
#include "posix/early_wait.h"
#include "posix/epoll_set.h"
#include "posix/guard.h"
#include "posix/same_host.h"
#include "posix/scratch.h"

namespace accel::posix {
namespace {

// fs/select.c: what each of select()'s three sets means as poll bits.
constexpr short kSelectRead = POLLIN | POLLRDNORM | POLLRDBAND | POLLHUP | POLLERR;
constexpr short kSelectWrite = POLLOUT | POLLWRNORM | POLLWRBAND | POLLERR;
constexpr short kSelectExcept = POLLPRI;
constexpr size_t kKernelSet = 8;  // what the kernel reads of a sigset_t

/// One poll() or select() call.
class Poll {
 public:
  enum class As { kPoll, kSelect };

  Poll(As as, std::span<pollfd> entries, const timespec* timeout, const sigset_t* mask)
      : as_(as), entries_(entries), timeout_(timeout), mask_(mask) {}

  /// The number of entries with revents. Errors: EINTR and the kernel's.
  Result<int> run() {
    if (candidates.any())
      for (const pollfd& entry : entries_)
        if (!fds.owns(entry.fd) && candidates.due(entry.fd)) take_candidate(entry.fd);
    for (;;) {
      Step step;
      {
        Guard guard;
        if (!guard.ok()) return alone();
        if (first_) settle(guard);
        if (Pass* pass = guard.pass()) pass->engine().catch_up(*pass);
        first_ = false;
        step = look_and_sleep(guard);
      }
      if (step == Step::kDone) return result_ && *result_ == 0 && let_signals_in() ? err(EINTR) : result_;
      const auto left = timeout_.left();
      const int got = early_wait(kernel_, left ? &*left : nullptr, mask_, &nothing_new, this);
      if (got < 0) return err(errno);
      if (timeout_.passed(monotonic_now())) woke_ = Woke::kDeadline;
    }
  }

  std::optional<timespec> left() const { return timeout_.left(); }

 private:
  enum class Step { kDone, kSleepWithoutEngine };

  /// Its listeners, UDP sockets and sets: what other processes may want (File::waited_on_now). A poll() keeps
  /// no file open.
  class WaitsOnAll {
   public:
    explicit WaitsOnAll(Poll& poll) {
      for (uint32_t i : poll.origin_) {
        const int fd = poll.entries_[i].fd;
        File* file = fds.find(fd);
        if (file == nullptr || !files_.push_back({fd, file})) continue;
        ++file->waiters;
        if (file->shared_listener && !noted_) noted_.emplace(true);
      }
    }
    ~WaitsOnAll() {
      for (const Entry& e : files_)
        if (fds.find(e.fd) == e.file) --e.file->waiters;
    }
    WaitsOnAll(const WaitsOnAll&) = delete;
    WaitsOnAll& operator=(const WaitsOnAll&) = delete;

   private:
    struct Entry {
      int fd;
      File* file;
    };
    Scratch<Entry, 16> files_;
    std::optional<AcceptorHint> noted_;
  };

  Step look_and_sleep(Guard& guard) {
    for (;;) {
      result_ = look();
      if (Pass* pass = guard.pass(); pass != nullptr && pass->engine().has_rest(*pass) && ours_ready_ == 0 &&
                                     result_ && !std::exchange(took_rest_, true)) {
        pass->engine().take_rest(*pass);
        continue;
      }
      if (Pass* pass = guard.pass(); pass != nullptr) pass->engine().begin_turn(*pass, ours_ready_);
      if (!result_ || *result_ > 0) return Step::kDone;
      if (timeout_.zero() || woke_ == Woke::kDeadline) return Step::kDone;
      if (woke_ == Woke::kSignal) {  // never restarted, SA_RESTART or not: signal(7)
        result_ = err(EINTR);
        return Step::kDone;
      }
      seen_ = readiness_epoch;
      Pass* pass = guard.pass();
      if (pass == nullptr) return Step::kSleepWithoutEngine;
      WaitRequest request;
      request.condition = &any_ready;
      request.context = this;
      request.deadline = timeout_.deadline();
      request.sigmask = mask_;
      request.handlers_only = true;
      request.kernel_fds = std::span<pollfd>(kernel_).first(kernel_.size() - 1);
      const WaitsOnAll waiting(*this);
      woke_ = pass->engine().wait(*pass, request);
    }
  }

  /// do_poll() and do_select() look at signals also where they are not to wait: one may be pending that only
  /// the mask of the call lets through. Not under a Guard.
  bool let_signals_in() const {
    const timespec none{};
    return mask_ != nullptr && timeout_.zero() && real.ppoll(nullptr, 0, &none, mask_) < 0 && errno == EINTR;
  }

  /// Fills every entry's revents and kernel_, which has one free place at its end.
  Result<int> look() {
    kernel_.clear();
    origin_.clear();
    ours_ = 0;
    ours_ready_ = 0;
    for (size_t i = 0; i < entries_.size(); ++i) {
      pollfd& entry = entries_[i];
      entry.revents = 0;
      if (entry.fd < 0) continue;
      File* file = fds.find(entry.fd);
      ours_ += file != nullptr;
      if (file != nullptr) entry.revents = ready_bits(*file, entry);
      ours_ready_ += entry.revents != 0;
      if (file != nullptr && file->kernel_fd() < 0) continue;
      if (!muted_.empty() && muted_[i]) continue;
      if (!kernel_.push_back({entry.fd, entry.events, 0}) || !origin_.push_back(static_cast<uint32_t>(i)))
        return err(ENOMEM);
    }
    if (!kernel_.empty() && real.poll(kernel_.data(), kernel_.size(), 0) < 0) return err(errno);
    for (size_t k = 0; k < kernel_.size(); ++k) take_kernels(origin_[k], kernel_[k].revents);
    if (!kernel_.push_back({-1, 0, 0})) return err(ENOMEM);
    int ready = 0;
    for (const pollfd& entry : entries_) ready += entry.revents != 0;
    return ready;
  }

  void take_kernels(size_t index, short revents) {
    pollfd& entry = entries_[index];
    const auto wanted = static_cast<short>(revents & answers(entry));
    entry.revents |= wanted;
    if (wanted != 0 || revents == 0) return;
    // select() does not want a hang-up that poll() reports: it would end every sleep.
    if (muted_.empty() && !muted_.assign_zero(entries_.size())) return;
    muted_[index] = true;
  }

  short answers(const pollfd& entry) const {
    return static_cast<short>(entry.events | POLLNVAL | (as_ == As::kPoll ? POLLERR | POLLHUP : 0));
  }
  short ready_bits(File& file, const pollfd& entry) const {
    return static_cast<short>(file.readiness()) & answers(entry);
  }

  /// Engine::wait's condition: looks at the descriptors only when something has changed at all. A change that
  /// makes it true stays unseen: the thread that is woken for it by another asks again.
  static bool any_ready(void* self) {
    auto& poll = *static_cast<Poll*>(self);
    if (poll.seen_ == readiness_epoch) return false;
    size_t ours = 0;
    for (const pollfd& entry : poll.entries_) {
      File* file = fds.find(entry.fd);
      ours += file != nullptr;
      if (file != nullptr && poll.ready_bits(*file, entry) != 0) return true;
    }
    if (ours != poll.ours_) return true;  // one has become the kernel's meanwhile
    poll.seen_ = readiness_epoch;
    return false;
  }

  static bool nothing_new(void* self) {
    Guard guard(Pass::Polling::kNo);
    return guard.ok() && guard.pass() == nullptr && static_cast<Poll*>(self)->seen_ == readiness_epoch;
  }

  /// Descriptors that came by fork() open in this process, or become the kernel's, now that it waits for
  /// them.
  void settle(Guard& guard) {
    for (const pollfd& entry : entries_)
      if (File* file = fds.find(entry.fd)) settle_waited_on(guard, file, timeout_.zero());
  }

  /// Without our lock (a handler of a synchronous fault): the kernel's view.
  Result<int> alone() {
    const auto left = timeout_.left();
    const int ready = real.ppoll(entries_.data(), entries_.size(), left ? &*left : nullptr, mask_);
    if (ready < 0) return err(errno);
    return ready;
  }

  const As as_;
  const std::span<pollfd> entries_;
  const Timeout timeout_;
  const sigset_t* const mask_;
  Scratch<pollfd, 64> kernel_;
  Scratch<uint32_t, 64> origin_;  ///< of kernel_[k]: the index in entries_
  Scratch<bool, 64> muted_;
  uint64_t seen_ = 0;
  size_t ours_ = 0;  ///< entries that are ours
  Woke woke_ = Woke::kReady;
  bool first_ = true;
  size_t ours_ready_ = 0;  ///< of those, ready by what we know
  bool took_rest_ = false;
  Result<int> result_ = 0;
};

/// An fd_set of any length (a program may have allocated more than FD_SETSIZE bits).
class Bits {
 public:
  explicit Bits(const fd_set* set) : words_(reinterpret_cast<const unsigned long*>(set)) {}
  bool test(int fd) const {
    const auto bit = static_cast<unsigned>(fd);
    return words_ != nullptr && (words_[bit / kWord] >> (bit % kWord) & 1) != 0;
  }
  unsigned long word(int index) const { return words_ == nullptr ? 0 : words_[index]; }
  static constexpr unsigned kWord = 8 * sizeof(unsigned long);
  static int words(int count) { return static_cast<int>((static_cast<unsigned>(count) + kWord - 1) / kWord); }

 private:
  const unsigned long* words_;
};

/// Calls visit(fd) for each descriptor below `count` in any of the sets; visit returns false to stop. False:
/// a set cannot be read.
template <class F>
bool for_each_bit(int count, const fd_set* read, const fd_set* write, const fd_set* except, F visit) {
  const size_t bytes = static_cast<size_t>(Bits::words(count)) * sizeof(unsigned long);
  for (const fd_set* set : {read, write, except})
    if (set != nullptr && !can_read(set, bytes)) return false;
  const Bits sets[] = {Bits(read), Bits(write), Bits(except)};
  for (int w = 0; w < Bits::words(count); ++w) {
    unsigned long word = sets[0].word(w) | sets[1].word(w) | sets[2].word(w);
    for (; word != 0; word &= word - 1) {
      const int fd = w * static_cast<int>(Bits::kWord) + __builtin_ctzl(word);
      if (fd >= count || !visit(fd)) return true;
    }
  }
  return true;
}

/// Leaves the bits of those entries that have what the set asks for. Returns their number.
Result<int> write_back(int count, fd_set* set, std::span<const pollfd> entries, short asked, short meaning) {
  if (set == nullptr) return 0;
  auto* words = reinterpret_cast<unsigned long*>(set);
  if (!can_overwrite(words, static_cast<size_t>(Bits::words(count)) * sizeof(unsigned long)))
    return err(EFAULT);
  std::fill_n(words, Bits::words(count), 0UL);
  int ready = 0;
  for (const pollfd& entry : entries) {
    if ((entry.events & asked) == 0 || (entry.revents & meaning) == 0) continue;
    const auto bit = static_cast<unsigned>(entry.fd);
    words[bit / Bits::kWord] |= 1UL << (bit % Bits::kWord);
    ++ready;
  }
  return ready;
}

}  // namespace

bool any_owned(const pollfd* descriptors, nfds_t count) {
  if (fds.limit() == 0 || count > static_cast<nfds_t>(fds.size()) ||
      !can_read(descriptors, count * sizeof *descriptors))
    return false;
  // A candidate that enters the table while this call sleeps is found where the library sleeps.
  for (nfds_t i = 0; i < count; ++i)
    if (fds.owns(descriptors[i].fd) || candidates.has(descriptors[i].fd)) return true;
  return false;
}

bool any_owned(int count, const fd_set* read, const fd_set* write, const fd_set* except) {
  bool found = false;
  if (fds.limit() == 0) return false;
  (void)for_each_bit(std::clamp(count, 0, fds.size()), read, write, except,
                     [&](int fd) { return !(found = fds.owns(fd) || candidates.has(fd)); });
  return found;
}

Result<int> ppoll(pollfd* descriptors, nfds_t count, const timespec* timeout, const sigset_t* mask) {
  if (mask != nullptr && !can_read(mask, kKernelSet)) return err(EFAULT);
  if (!Timeout::valid(timeout)) return err(EINVAL);
  rlimit limit{};
  if (count > 1024 && getrlimit(RLIMIT_NOFILE, &limit) == 0 && count > limit.rlim_cur) return err(EINVAL);
  for (nfds_t i = 0; i < count; ++i)
    if (!put_user(&descriptors[i].revents, short{})) return err(EFAULT);
  return Poll(Poll::As::kPoll, {descriptors, count}, timeout, mask).run();
}

Result<int> pselect(int count, fd_set* read, fd_set* write, fd_set* except, const timespec* timeout,
                    const sigset_t* mask, timespec* left) {
  if (mask != nullptr && !can_read(mask, kKernelSet)) return err(EFAULT);
  if (count < 0 || !Timeout::valid(timeout)) return err(EINVAL);
  Scratch<pollfd, 64> entries;
  bool room = true;
  const bool readable = for_each_bit(count, read, write, except, [&](int fd) {
    const int events = (Bits(read).test(fd) ? kSelectRead : 0) | (Bits(write).test(fd) ? kSelectWrite : 0) |
                       (Bits(except).test(fd) ? kSelectExcept : 0);
    return room = entries.push_back({fd, static_cast<short>(events), 0});
  });
  if (!readable) return err(EFAULT);
  if (!room) return err(ENOMEM);
  Poll poll(Poll::As::kSelect, entries, timeout, mask);
  auto ready = poll.run();
  if (left != nullptr)
    if (const auto rest = poll.left()) *left = *rest;
  if (!ready) return ready;
  for (const pollfd& entry : entries)
    if (entry.revents & POLLNVAL) return err(EBADF);
  // POLLIN, POLLOUT and POLLPRI in `events` tell which of the sets had the descriptor.
  int all = 0;
  for (Result<int> n : {write_back(count, read, entries, POLLIN, kSelectRead),
                        write_back(count, write, entries, POLLOUT, kSelectWrite),
                        write_back(count, except, entries, POLLPRI, kSelectExcept)}) {
    if (!n) return n;
    all += *n;
  }
  return all;
}

}  // namespace accel::posix
