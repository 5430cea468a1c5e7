// The calls of epoll(7). A set is ours from epoll_create1 on; one that came from elsewhere (exec, SCM_RIGHTS)
// becomes ours when a file of ours is added to it.
//
// epoll_wait sleeps in one of two ways. With members of ours and an engine: in Engine::wait, on our ready
// list and on the real set's descriptor. Else (only the kernel's members, or nothing is accelerated) in the
// real call itself, at the kernel's cost; should something of ours become ready meanwhile, an eventfd in the
// real set ends the sleep.
#include <sys/epoll.h>
#include <unistd.h>

#include <climits>
#include <utility>
#include <vector>

#include "base/real.h"
#include "base/user_memory.h"
#include "posix/calls.h"
#include "posix/detach.h"
#include "posix/early_wait.h"
#include "posix/epoll_set.h"
#include "posix/fork_state.h"
#include "posix/guard.h"
#include "posix/process.h"
#include "posix/same_host.h"
#include "posix/siw_socket.h"

namespace accel::posix {
namespace {

/// fs/eventpoll.c: EP_MAX_EVENTS.
constexpr size_t kKernelSet = 8;  // what the kernel reads of a sigset_t
constexpr int kMaxEvents = INT_MAX / static_cast<int>(sizeof(epoll_event));

Result<int> from_kernel(int result) {
  if (result < 0) return err(errno);
  return result;
}

/// The set that `fd` names; one that came from elsewhere is taken over. Errors: EBADF, EINVAL.
Result<EpollSet*> find_or_adopt(Guard& guard, int fd, int member) {
  if (EpollSet* set = find_set(fd)) return set;
  if (fds.find(fd) != nullptr) return err(EINVAL);
  // Is it an epoll descriptor? Only then does the kernel look for the member.
  if (real.epoll_ctl(fd, EPOLL_CTL_DEL, member, nullptr) != 0 && errno != ENOENT) return err(errno);
  auto* set = new (std::nothrow) EpollSet;
  if (set == nullptr) return err(ENOMEM);
  set->retain();
  fds.open();
  const bool inserted = fds.insert(fd, set);
  set->release(guard.pass());
  if (!inserted) return err(ENOSPC);
  return set;  // NOLINT: the table holds a reference
}

/// Something of it is not open in this process.
bool is_unsettled(const File& file) {
  if (file.kind() == FileKind::kEpoll) return static_cast<const EpollSet&>(file).may_have_inherited;
  return file.inherited != File::Inherited::kNo;
}

Result<int> control(Guard& guard, int set_fd, int operation, int fd, File* file, epoll_event* event) {
  if (file->inherited != File::Inherited::kNo && file->opens_for(File::Use::kAside)) {
    auto ours = settle_inherited(guard, file);
    if (ours.ok() && !*ours) return from_kernel(real.epoll_ctl(set_fd, operation, fd, event));
  }
  if (operation != EPOLL_CTL_DEL && !can_read(event, sizeof *event)) return err(EFAULT);
  auto set = find_or_adopt(guard, set_fd, fd);
  if (!set) return set.error();
  if ((*set)->passed_on && (operation != EPOLL_CTL_ADD || detach(guard.pass(), file, Reason::handed_back)))
    return from_kernel(real.epoll_ctl(set_fd, operation, fd, event));
  Result<void> done = err(EINVAL);
  if (operation == EPOLL_CTL_ADD) {
    if ((*set)->waited_on_now()) settle_waited_on(guard, file, false);
    if (file->closed) return from_kernel(real.epoll_ctl(set_fd, operation, fd, event));
    done = (*set)->add(set_fd, fd, file, *event);
    if (is_unsettled(*file)) file->announce_inherited();
  } else if (operation == EPOLL_CTL_MOD)
    done = (*set)->modify(set_fd, fd, file, *event);
  else if (operation == EPOLL_CTL_DEL)
    done = (*set)->remove(set_fd, fd, file);
  if (!done) return done.error();
  return 0;
}

/// The real call, in the form that the program is likely to have used (a seccomp filter may know only that
/// one).
int real_wait(int set, epoll_event* events, int size, const std::optional<timespec>& left,
              const sigset_t* mask) {
  int64_t milliseconds = -1;
  if (left) {
    milliseconds =
        left->tv_sec > INT_MAX / 1000 ? INT64_MAX : left->tv_sec * 1000 + left->tv_nsec / 1'000'000;
    if (left->tv_nsec % 1'000'000 != 0 || milliseconds > INT_MAX) {
      const int result = real.epoll_pwait2(set, events, size, &*left, mask);
      if (result >= 0 || errno != ENOSYS) return result;
      milliseconds = std::min<int64_t>(milliseconds + 1, INT_MAX);
    }
  }
  const int wait = static_cast<int>(milliseconds);
  return mask == nullptr ? real.epoll_wait(set, events, size, wait)
                         : real.epoll_pwait(set, events, size, wait, mask);
}

/// One call of epoll_wait, from the first look to the answer.
class Wait {
 public:
  Wait(int fd, std::span<epoll_event> events, const Timeout& timeout, const sigset_t* mask)
      : fd_(fd), events_(events), timeout_(timeout), mask_(mask) {}

  ~Wait() {  // also when the thread is cancelled
    if (set_ == nullptr) return;
    Guard guard(Pass::Polling::kNo);
    leave_kernel();
    set_->release(guard.pass());
  }

  Result<int> run() {
    while (!look() && !sleep_in_kernel()) {
    }
    return result_;
  }

  /// While the real call gave `got`, the set became ours.
  Result<int> run_after(int got) {
    {
      Guard guard;
      EpollSet* set = guard.ok() ? find_set(fd_) : nullptr;
      if (set == nullptr) return got;
      const int kept = set->absorb(events_.first(static_cast<size_t>(got)));
      auto ours = set->collect(fd_, events_.subspan(static_cast<size_t>(kept)), false);
      const int all = kept + (ours ? ours->events : 0);
      if (Pass* pass = guard.pass(); pass != nullptr && all > kept) pass->stack().note_look();
      if (all != 0) return all;
    }
    return run();
  }

 private:
  bool finish(Result<int> result) {
    result_ = result;
    return true;
  }
  bool finish_in_kernel(const std::optional<timespec>& left) {
    return finish(from_kernel(real_wait(fd_, events_.data(), static_cast<int>(events_.size()), left, mask_)));
  }

  /// Looks, and sleeps in the engine when it can. True: there is a result; false: to sleep in the real call.
  bool look() {
    Guard guard;
    if (!guard.ok()) return finish_in_kernel(timeout_.left_as_given());
    if (Pass* pass = guard.pass()) pass->engine().catch_up(*pass);
    if (set_ == nullptr ? !enter(guard) : !take_kernels(guard.pass())) return true;
    for (;;) {
      Pass* pass = guard.pass();
      const bool open = fds.find(fd_) == set_;
      // Before the kernel's members are asked, whose events may be told once only.
      if (pass != nullptr && pass->engine().has_rest(*pass) && !std::exchange(took_rest_, true) &&
          set_->readiness() == 0)
        pass->engine().take_rest(*pass);
      const bool due =
          ask_kernel_ || (set_->has_ready() && (pass == nullptr || set_->kernel_due(pass->now())));
      if (due || set_->has_ready()) {
        auto got = set_->collect(fd_, events_, open && due);
        if (!got) return finish(got.error());
        if (got->events > 0 && pass != nullptr)
          pass->engine().begin_turn(*pass, static_cast<size_t>(got->ours));
        if (got->events > 0) return finish(got->events);
      }
      ask_kernel_ = false;
      if (timeout_.zero() || woke_ == Woke::kDeadline) return finish(0);
      if (woke_ == Woke::kSignal) return finish(err(EINTR));
      if (!open) return finish(err(EBADF));
      if (pass == nullptr || !set_->has_items() || retired()) break;
      sleep_in_engine(*pass);
    }
    ++set_->in_epoll_wait;
    ++set_->kernel_waiters;
    in_kernel_ = true;
    return false;
  }

  /// The first look: finds the set. False: the result is there already.
  bool enter(Guard& guard) {
    EpollSet* set = find_set(fd_);
    if (set == nullptr || (timeout_.zero() && !set->has_items()))
      return !finish_in_kernel(timeout_.left_as_given());
    set_ = set;
    set_->retain();
    // It is the program's way.
    if (!std::exchange(set_->waited_on_once, true))
      EpollSet::looks_for_first_wait.store(0, std::memory_order_relaxed);
    settle_members(guard, *set, timeout_.zero());
    if (suspended_connections != 0) set->for_each_item([](EpollItem& item) { (void)item.file->readiness(); });
    ask_kernel_ = timeout_.zero();
    return true;
  }

  /// What the real call gave, less what was meant for us. False: the result is there.
  bool take_kernels(Pass* pass) {
    leave_kernel();
    if (got_ == 0) return true;
    const int kept = set_->absorb(events_.first(static_cast<size_t>(got_)));
    got_ = 0;
    auto ours = set_->collect(fd_, events_.subspan(static_cast<size_t>(kept)), false);
    const int all = kept + (ours ? ours->events : 0);
    if (pass != nullptr && all > kept) pass->stack().note_look();
    return all == 0 || !finish(all);
  }

  void sleep_in_engine(Pass& pass) {
    struct Waiting {
      explicit Waiting(int& n) : count(n) { ++count; }
      ~Waiting() { --count; }
      int& count;
    };
    pollfd kernel{fd_, POLLIN, 0};
    WaitRequest request;
    request.condition = [](void* set) { return static_cast<EpollSet*>(set)->has_ready() || retired(); };
    request.context = set_;
    request.deadline = timeout_.deadline();
    request.sigmask = mask_;
    request.kernel_fds = {&kernel, 1};
    const Waiting waiting(set_->in_epoll_wait);
    const AcceptorHint noted(set_->shared_listener);
    woke_ = pass.engine().wait(pass, request);
    ask_kernel_ = woke_ != Woke::kReady;
  }

  /// False: there is something to look at.
  bool sleep_in_kernel() {
    const int got =
        real_wait(fd_, events_.data(), static_cast<int>(events_.size()), timeout_.left_as_given(), mask_);
    if (got < 0) return finish(err(errno));
    got_ = got;
    if (got == 0) woke_ = Woke::kDeadline;
    return false;
  }

  void leave_kernel() {
    if (!in_kernel_) return;
    in_kernel_ = false;
    --set_->in_epoll_wait;
    --set_->kernel_waiters;
  }

  const int fd_;
  const std::span<epoll_event> events_;
  const Timeout timeout_;
  const sigset_t* const mask_;
  EpollSet* set_ = nullptr;
  Woke woke_ = Woke::kReady;
  bool ask_kernel_ = false;
  bool took_rest_ = false;
  bool in_kernel_ = false;
  int got_ = 0;
  Result<int> result_ = 0;
};

/// On a plain set: the real call, without the lock. nullopt: it is none.
std::optional<int> wait_plain(int fd, std::span<epoll_event> events, const timespec* timeout,
                              const sigset_t* mask) {
  const FdTable::PlainWait wait(fds, fd);
  if (!wait.plain()) return std::nullopt;
  const std::optional<timespec> limit = timeout != nullptr ? std::optional(*timeout) : std::nullopt;
  return real_wait(fd, events.data(), static_cast<int>(events.size()), limit, mask);
}

}  // namespace

void settle_members(Guard& guard, EpollSet& set, bool only_looks) {
  if (!set.may_have_inherited) return;
  std::vector<File*> files;
  set.for_each_item([&](EpollItem& item) {
    item.file->retain();
    files.push_back(item.file);
  });
  for (File* file : files) {
    settle_waited_on(guard, file, only_looks);
    file->release(guard.pass());
  }
}

void settle_waited_on(Guard& guard, File* file, bool only_looks) {
  const bool is_set = file->kind() == FileKind::kEpoll;
  if (!is_set && file->inherited == File::Inherited::kNo) return;
  file->retain();
  if (is_set) {
    settle_members(guard, *static_cast<EpollSet*>(file), only_looks);
  } else {
    learn_of_programs(file);
    if (file->opens_for_wait(only_looks)) (void)settle_inherited(guard, file, true);
    if (dormant(*file) && file->has_program)
      file->serve_handoff_queue();  // what its programs hand off wakes this wait
  }
  file->release(guard.pass());
}

Result<int> epoll_create1(int flags) {
  const int fd = real.epoll_create1(flags);
  if (fd < 0) return err(errno);
  adopt_listeners();
  Guard guard(Pass::Polling::kNo);
  if (!guard.ok()) return fd;
  fds.open();
  if (fd >= fds.size()) return fd;
  auto* set = new (std::nothrow) EpollSet;
  if (set != nullptr && fds.insert(fd, set)) set->begin_plain(fd);
  return fd;
}

Result<int> epoll_ctl(int set, int operation, int fd, epoll_event* event) {
  if (!fds.owns(fd) && candidates.due(fd)) take_candidate(fd);
  if (!fds.owns(fd) && !candidates.has(fd)) return from_kernel(real.epoll_ctl(set, operation, fd, event));
  if (!fds.owns(fd)) {
    // Under the lock: who takes the descriptor into the table finds the membership, or none at all.
    Guard guard(Pass::Polling::kNo);
    if (!guard.ok() || !fds.owns(fd)) {
      const Result<int> done = from_kernel(real.epoll_ctl(set, operation, fd, event));
      if (done && candidates.has(fd))
        candidates.note_membership(set, operation, fd, operation == EPOLL_CTL_DEL ? epoll_event{} : *event);
      return done;
    }
  }
  Guard guard(Pass::Polling::kNo);
  File* file = guard.ok() ? fds.find(fd) : nullptr;
  if (file == nullptr) return from_kernel(real.epoll_ctl(set, operation, fd, event));
  if (guard.pass() != nullptr) guard.pass()->in_turn();
  file->retain();
  auto result = control(guard, set, operation, fd, file, event);
  file->release(guard.pass());
  return result;
}

Result<int> epoll_wait(int set, epoll_event* events, int size, const timespec* timeout,
                       const sigset_t* mask) {
  if ((timeout != nullptr && !can_read(timeout, sizeof *timeout)) ||
      (mask != nullptr && !can_read(mask, kKernelSet)) ||
      (size > 0 && !in_user_half(events, static_cast<size_t>(size) * sizeof *events)))
    return err(EFAULT);
  if (!Timeout::valid(timeout) || size <= 0 || size > kMaxEvents) {
    if (!Timeout::valid(timeout)) return err(EINVAL);
    return from_kernel(real.epoll_wait(set, events, size, 0));  // EBADF goes before EINVAL
  }
  const std::span room(events, static_cast<size_t>(size));
  const Timeout limit(timeout);
  if (fds.plain(set)) {
    if (const std::optional<int> got = wait_plain(set, room, timeout, mask)) {
      if (*got <= 0 || fds.plain(set)) return from_kernel(*got);
      return Wait(set, room, limit, mask).run_after(*got);
    }
  }
  return Wait(set, room, limit, mask).run();
}

Result<int> epoll_look_again(int set, epoll_event* events, int size, int got) {
  const timespec none{};
  return Wait(set, {events, static_cast<size_t>(size)}, Timeout(&none), nullptr).run_after(got);
}

}  // namespace accel::posix
