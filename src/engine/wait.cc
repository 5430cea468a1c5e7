// Waiting: poll for a while, then sleep in the kernel.
//
// A sleep ends by a frame (the ports' descriptors), by another thread that found this one's condition true
// (its alarm), by a kernel descriptor, a signal, or time. A signal's handler that runs between the last look
// at signal_ran and the kernel's sleep rings the alarm, so it is not lost. The kernel's wait is libc's, hence
// a cancellation point: the lock is not held then, and destructors put everything right on the way out.
//
// The alarm is an eventfd in an epoll set of the thread's, so that it can sleep on any descriptors and others
// can have it watch the ports. In a process of very many such threads that would leave the program too few
// descriptors: those beyond a share of its limit sleep on semaphores, where only the stack can wake them.
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "base/poll.h"
#include "base/real.h"
#include "engine/engine.h"
#include "engine/process.h"

namespace accel {
namespace {

constexpr int kSleepEvents = 16;
/// Where a thread could get no descriptors to be woken by, it looks again this often.
constexpr Duration kBlindSleep = 1ms;
constexpr Duration kKernelLook = 5us;
/// Polls in a row that find frames: then others get the lock, and the kernel's descriptors a look.
constexpr int kBusyPolls = 16;
/// A thread that has been back in its wait this soon, and whose waits are this short, so many times in a row,
/// is trusted to be so again (Sleeper::kTrusted).
constexpr Duration kBrief = 100us, kOften = 1ms;

timespec to_timespec(Duration d) {
  return {static_cast<time_t>(d.count() / 1'000'000'000), static_cast<long>(d.count() % 1'000'000'000)};
}

/// A thread's sleepers, gone with it: one for each wait that it is in. There is more than one while a
/// signal's handler waits that has interrupted a wait.
struct OwnSleepers {
  static constexpr size_t kLevels = 8;
  Sleeper levels[kLevels];
  size_t depth = 0;
  ~OwnSleepers();

  /// For a wait whose frame is at `frame`. Waits further down the stack, which grows downwards, are over: a
  /// handler has left them by siglongjmp().
  Sleeper& enter(const void* frame) {
    while (depth > 0 && (levels[depth - 1].frame <= frame || depth == kLevels)) --depth;
    levels[depth].frame = frame;
    return levels[depth++];
  }
  void leave(const Sleeper& s) { depth = static_cast<size_t>(&s - levels); }
};
thread_local OwnSleepers own_sleepers;

/// What this thread's handlers take it out of when they run in its sleep.
struct Sleep {
  Process* process = nullptr;
  Sleeper* sleeper = nullptr;
};
thread_local Sleep own_sleep [[gnu::tls_model("initial-exec")]];

void drain(int wake_fd) {
  uint64_t count;
  (void)!real.read(wake_fd, &count, sizeof(count));
}

}  // namespace

/// Takes part in the sleepers' list for the time of a sleep; the lock is let go and taken again. Also by
/// unwinding (a cancelled thread): frames that it was woken for are handled for the others.
class Asleep {
 public:
  Asleep(Process& process, Sleeper& me, WaitRequest& request) : process_(process), me_(me) {
    process_.sleepers.fall_asleep(me_, request);
    process_.counters.add(Counter::sleeps);
    own_sleep = {&process_, &me_};
    process_.unlock_out();
  }
  ~Asleep() {
    process_.lock_in();
    own_sleep = {};
    process_.end_sleep(me_);
    process_.worker.note_pass();
    try {
      process_.poll_all(clock_now());
    } catch (const std::bad_alloc&) {
      process_.counters.add(Counter::broken_off);
    }
  }
  Asleep(const Asleep&) = delete;
  Asleep& operator=(const Asleep&) = delete;

 private:
  Process& process_;
  Sleeper& me_;
};

/// One wait of a thread: owns its thread_state, and has a sleeper of its own.
class Waiting {
 public:
  Waiting(Process& process, void* retained)
      : process_(process), sleepers_(process.sleepers), outer_(thread_state) {
    me_ = &own_sleepers.enter(this);
    if (me_->registered != &sleepers_) enlist();
    thread_state.retaining += (retained != nullptr) - (me_->retained != nullptr);
    me_->retained = retained;
    was_brief_ = process.pass_now() - me_->left < kBrief;
    sleepers_.come_in(*me_);
    thread_state.alarm = me_->alarm();
    thread_state.waiting = true;
    thread_state.signal_ran = false;
    thread_state.all_restart = true;
  }
  ~Waiting() {
    const bool often = process_.pass_now() - me_->left < kOften;
    me_->brief = static_cast<uint8_t>(was_brief_ && often ? std::min(me_->brief + 1, Sleeper::kTrusted) : 0);
    me_->left = process_.pass_now();
    sleepers_.go_out(*me_, process_.pass_now());
    sleepers_.give_charge(*me_, process_.pass_now());
    if (borrowed_) sleepers_.close_descriptors(*me_);
    if (std::exchange(me_->retained, nullptr) != nullptr) --thread_state.retaining;
    own_sleepers.leave(*me_);
    thread_state.waiting = outer_.waiting;
    thread_state.alarm = outer_.alarm;
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  Woke wait(Pass& pass, WaitRequest& request) ACCEL_REQUIRES(worker_lock);

 private:
  void enlist() ACCEL_REQUIRES(worker_lock);
  void open() ACCEL_REQUIRES(worker_lock);
  bool semaphore_serves(const WaitRequest& request) const ACCEL_REQUIRES(worker_lock);
  bool semaphore_suffices(const WaitRequest& request) const ACCEL_REQUIRES(worker_lock);
  int sleep_on_semaphore(Instant until);
  Instant sleep_until(const WaitRequest& request, Instant now) ACCEL_REQUIRES(worker_lock);
  bool sleep(WaitRequest& request, Instant now) ACCEL_REQUIRES(worker_lock);
  bool epoll_serves(const WaitRequest& request) ACCEL_REQUIRES(worker_lock);
  int sleep_on_epoll(WaitRequest& request, const timespec* timeout);
  int sleep_on_poll(WaitRequest& request, const timespec* timeout);
  void gather(const WaitRequest& request) ACCEL_REQUIRES(worker_lock);
  void look_at_kernel(WaitRequest& request, Instant now);
  /// The thread has said how long, so neither the machine's load nor its own success is asked.
  static bool fixed_spin() { return thread_state.spin >= Duration{0}; }
  bool may_spin(const WaitRequest& request, Instant began, Instant now) {
    if (request.may_spin && !std::exchange(decided_, true))
      spin_until_ = began + (fixed_spin() ? thread_state.spin : me_->spin.share() * process_.longest_spin);
    // What the first look finds was there before: it says nothing of how polling pays.
    spun_ |= looks_++ > 0 && now < spin_until_;
    return now < spin_until_;
  }
  void count(Woke woke, Instant began, bool slept) ACCEL_REQUIRES(worker_lock);

  Process& process_;
  Sleepers& sleepers_;
  Sleeper* me_ = nullptr;
  ThreadState outer_;
  bool kernel_ready_ = false;
  bool borrowed_ = false;                ///< its descriptors are more than it should have
  bool was_brief_ = false;               ///< the time since this thread's last wait
  bool stopped_ = false;                 ///< a signal that no trampoline reported has ended the sleep
  bool decided_ = false, spun_ = false;  ///< whether to poll; the first look has to come first
  int looks_ = 0;
  int polls_for_rest_ = 0, busy_polls_ = 0;
  Instant spin_until_{};
  Instant next_look_{};
  std::vector<pollfd> fds_;
};

void Waiting::enlist() {
  *me_ = Sleeper{};
  me_->frame = this;
  sleepers_.enlist(*me_);
}

void Waiting::open() {
  sleepers_.open_descriptors(*me_);
  thread_state.alarm = me_->alarm();
}

Woke Waiting::wait(Pass& pass, WaitRequest& request) {
  Turns::over();
  const Instant began = pass.now();
  next_look_ = began + kKernelLook;
  for (pollfd& p : request.kernel_fds) p.revents = 0;
  bool slept = false, idle = false;
  for (;;) {
    // A thread that held the lock meanwhile has done the work that it left.
    if (!std::exchange(idle, false)) process_.work(process_.pass_now());
    const Instant now = process_.pass_now();
    const bool interrupted = stopped_ || thread_state.signal_ran;
    Woke woke = Woke::kReady;
    if (request.condition && request.condition(request.context)) {
      woke = Woke::kReady;
    } else if (process_.worker.cut_short && (kernel_ready_ || interrupted || now >= request.deadline) &&
               polls_for_rest_++ < Process::kPollsForRest) {
      process_.poll_all(clock_now());
      continue;
    } else if (kernel_ready_) {
      woke = Woke::kKernel;
    } else if (interrupted) {
      woke = Woke::kSignal;
    } else if (now >= request.deadline) {
      woke = Woke::kDeadline;
    } else if (!slept && me_->wake_fd >= 0 && (fixed_spin() || sleepers_.has_spare_cpu()) &&
               may_spin(request, began, now) && sleepers_.take_charge(*me_, now, spin_until_, fixed_spin())) {
      process_.unlock_out();
      pause_cpu();
      look_at_kernel(request, now);
      process_.lock_in();
      idle = !process_.poll_all(clock_now());
      continue;
    } else if (!sleepers_.is_cared_for(*me_) && !process_.arm_ports()) {
      if (++busy_polls_ % kBusyPolls == 0) {
        process_.unlock_out();
        look_at_kernel(request, now);
        process_.lock_in();
      }
      process_.poll_all(clock_now());
      continue;
    } else {
      slept = true;
      sleepers_.come_in(*me_);
      sleepers_.take_charge_asleep(*me_, now);
      stopped_ = !sleep(request, now);
      continue;
    }
    count(woke, began, slept);
    return woke;
  }
}

void Waiting::count(Woke woke, Instant began, bool slept) {
  if (woke == Woke::kReady && (slept ? !me_->woken : spun_)) sleepers_.note_ready(*me_);
  const bool hit = woke == Woke::kReady && !slept;
  if (hit && process_.pass_now() > began) process_.counters.add(Counter::spin_hits);
  if (spun_ && !fixed_spin()) me_->spin.record(hit);
  if (!slept || woke == Woke::kDeadline) return;
  sleepers_.note_wake();
  process_.housekeeping.needed();
}

/// The stack's deadlines need one sleeper only.
Instant Waiting::sleep_until(const WaitRequest& request, Instant now) {
  Instant until = request.deadline;
  const Instant due = process_.next_poll(now);
  if (sleepers_.keep_time(*me_, due)) until = std::min(until, due);
  if (me_->wake_fd < 0 && !semaphore_serves(request)) until = std::min(until, now + kBlindSleep);
  return until;
}

/// False: a signal that no trampoline reported ended it (a handler set past us, or SIGSTOP and SIGCONT).
bool Waiting::sleep(WaitRequest& request, Instant now) {
  if (me_->wake_fd < 0 && !semaphore_serves(request)) {
    borrowed_ = !sleepers_.may_have_descriptors();
    open();
    borrowed_ &= me_->wake_fd >= 0;
  }
  const bool by_semaphore = semaphore_serves(request) && (me_->wake_fd < 0 || semaphore_suffices(request));
  me_->on_semaphore = by_semaphore;
  thread_state.alarm = me_->alarm();
  const Instant until = sleep_until(request, now);
  const bool by_epoll = !by_semaphore && epoll_serves(request);
  me_->fixed = !by_epoll;
  if (by_epoll)
    sleepers_.watch_ports(*me_, sleepers_.is_in_charge(*me_));
  else if (!by_semaphore)
    gather(request);
  int result = 0, error = 0;
  {
    Asleep asleep{process_, *me_, request};
    if (thread_state.signal_ran) return true;
    // Under the lock, and in handlers behind it, time has passed; a deadline that is over polls without
    // sleeping.
    timespec timeout{};
    if (until != kNever) timeout = to_timespec(std::max(until - clock_now(), Duration{0}));
    const timespec* limit = until == kNever ? nullptr : &timeout;
    result = by_semaphore ? sleep_on_semaphore(until)
             : by_epoll   ? sleep_on_epoll(request, limit)
                          : sleep_on_poll(request, limit);
    error = errno;
  }
  return result >= 0 || error != EINTR || thread_state.signal_ran;
}

/// With several threads it matters that others can change what wakes this one, which they can with epoll; and
/// of the two only epoll_wait() tells that the process was stopped and continued. One kernel descriptor (an
/// epoll set, as a rule) joins in; it stays from sleep to sleep.
bool Waiting::epoll_serves(const WaitRequest& request) {
  if (me_->epoll_fd < 0) return false;
  if (request.handlers_only && sleepers_.threads() == 1) return false;
  const bool one_kernel = request.kernel_fds.size() == 1;
  const int wanted = one_kernel ? request.kernel_fds[0].fd : -1;
  epoll_event event{};
  if (me_->kernel_fd >= 0 && me_->kernel_fd != wanted) {
    real.epoll_ctl(me_->epoll_fd, EPOLL_CTL_DEL, me_->kernel_fd, &event);
    me_->kernel_fd = -1;
  }
  if (wanted < 0) return request.kernel_fds.empty();
  event.events = static_cast<uint16_t>(request.kernel_fds[0].events) | EPOLLONESHOT;
  event.data.u64 = Sleeper::kKernelTag;
  // The number may stand for another file since then, which the set does not know. The old one may live on in
  // another process, and then wakes this thread once more only.
  const bool known = real.epoll_ctl(me_->epoll_fd, EPOLL_CTL_MOD, wanted, &event) == 0;
  if (!known && real.epoll_ctl(me_->epoll_fd, EPOLL_CTL_ADD, wanted, &event) != 0) return false;
  me_->kernel_fd = wanted;
  return true;
}

/// Only the stack can end it, and it is not the one that hears the devices for all.
bool Waiting::semaphore_serves(const WaitRequest& request) const {
  return request.kernel_fds.empty() && request.sigmask == nullptr && !sleepers_.is_in_charge(*me_);
}

/// Nobody will have it watch the ports, and a stop of the process ends no such wait (signal(7)). A semaphore
/// takes two system calls less.
bool Waiting::semaphore_suffices(const WaitRequest& request) const {
  return request.deadline == kNever && sleepers_.is_cared_for(*me_);
}

int Waiting::sleep_on_semaphore(Instant until) {
  if (until == kNever) return sem_wait(&me_->semaphore);
  const timespec t = to_timespec(until.time_since_epoch());
  return sem_clockwait(&me_->semaphore, CLOCK_MONOTONIC, &t);
}

int Waiting::sleep_on_epoll(WaitRequest& request, const timespec* timeout) {
  epoll_event events[kSleepEvents];
  const timespec none{};
  const sigset_t* mask = request.sigmask;
  if (request.handlers_only) {  // when the process was stopped and continued ppoll() goes on
    pollfd set{me_->epoll_fd, POLLIN, 0};
    if (const int n = poll_beyond_limit({&set, 1}, timeout, mask); n <= 0) return n;
    timeout = &none;
    mask = nullptr;
  }
  const int n = real.epoll_pwait2(me_->epoll_fd, events, kSleepEvents, timeout, mask);
  for (int i = 0; i < n; ++i) {
    if (events[i].data.u64 == Sleeper::kWakeTag) drain(me_->wake_fd);
    if (events[i].data.u64 != Sleeper::kKernelTag) continue;
    request.kernel_fds[0].revents = static_cast<short>(events[i].events);
    kernel_ready_ = true;
  }
  return n;
}

/// wake_fd, the ports' when in charge, then the caller's descriptors.
void Waiting::gather(const WaitRequest& request) {
  fds_.clear();
  fds_.push_back({me_->wake_fd, POLLIN, 0});
  if (sleepers_.is_in_charge(*me_))
    sleepers_.for_each_descriptor([this](int fd) { fds_.push_back({fd, POLLIN, 0}); });
  fds_.insert(fds_.end(), request.kernel_fds.begin(), request.kernel_fds.end());
}

int Waiting::sleep_on_poll(WaitRequest& request, const timespec* timeout) {
  const int n = poll_beyond_limit(fds_, timeout, request.sigmask);
  if (n <= 0) return n;
  if (fds_[0].revents) drain(me_->wake_fd);
  const size_t own = fds_.size() - request.kernel_fds.size();
  for (size_t i = own; i < fds_.size(); ++i) {
    request.kernel_fds[i - own].revents = fds_[i].revents;
    kernel_ready_ |= fds_[i].revents != 0;
  }
  return n;
}

/// While polling, the kernel's descriptors are looked at now and then: a system call each time. Not libc's
/// ppoll(), a cancellation point: the lock is not held here, and those who unwind rely on it.
void Waiting::look_at_kernel(WaitRequest& request, Instant now) {
  if (request.kernel_fds.empty() || now < next_look_) return;
  next_look_ = now + kKernelLook;
  timespec none{};
  kernel_ready_ = real.syscall(SYS_ppoll, request.kernel_fds.data(), request.kernel_fds.size(), &none,
                               nullptr, 0L, 0L) > 0;
}

namespace {

OwnSleepers::~OwnSleepers() {
  // The thread has returned, perhaps with asynchronous cancellation.
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  Engine* engine = Engine::get();
  for (Sleeper& sleeper : levels) {
    if (engine && sleeper.registered == &engine->process().sleepers) {
      Process& process = engine->process();
      {
        Pass pass{*engine, Pass::Polling::kNo};
        if (sleeper.retained) process.above.abandoned(pass, sleeper.retained);
        process.sleepers.forget(sleeper, pass.now());
      }
      process.sleepers.wait_for_ringing();
    }
    if (sleeper.registered) sleeper.close_descriptors();
  }
}

}  // namespace

void Process::end_sleep(Sleeper& s) {
  sleepers.leave_sleep(s);
  if (awaits_absence) worker.untold.add_any();  // this thread's pass ends with a look at that condition
}

namespace {

/// A wait at `frame` is over when a frame of the same stack that is above it runs: not in a handler on a
/// stack of its own, nor in a coroutine.
bool is_over(const void* frame, const void* running) {
  stack_t alternative{};
  if (frame > running || sigaltstack(nullptr, &alternative) != 0 || (alternative.ss_flags & SS_ONSTACK) != 0)
    return false;
  pthread_attr_t attributes;
  void* stack = nullptr;
  size_t size = 0;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return false;
  pthread_attr_getstack(&attributes, &stack, &size);
  pthread_attr_destroy(&attributes);
  return frame >= stack && running < static_cast<const char*>(stack) + size;
}

}  // namespace

void Engine::give_up_abandoned(Pass& pass) {
  const void* const running = __builtin_frame_address(0);
  for (size_t level = own_sleepers.depth; thread_state.retaining > 0 && level > 0; --level) {
    Sleeper& left = own_sleepers.levels[level - 1];
    if (left.retained == nullptr) continue;
    if (!is_over(left.frame, running)) return;
    --thread_state.retaining;
    process_->above.abandoned(pass, std::exchange(left.retained, nullptr));
  }
}

Woke Engine::wait(Pass& pass, WaitRequest& request) {
  Process& p = Process::of(pass);
  if (thread_state.retaining > 0) give_up_abandoned(pass);
  Waiting waiting{*process_, pass.retained_};
  const Woke woke = waiting.wait(pass, request);
  pass.now_ = p.pass_now();
  return woke;
}

void Engine::signal_ran(bool restarts) {
  thread_state.all_restart = thread_state.all_restart && restarts;
  thread_state.signal_ran = true;
  if (!thread_state.waiting) return;
  const int saved = errno;
  thread_state.alarm.ring();
  // The handler may leave the sleep by siglongjmp(): nobody may look at its request from here on, which lies
  // in that frame.
  if (const Sleep sleep = std::exchange(own_sleep, {}); sleep.process) {
    sleep.process->lock_in();
    sleep.process->end_sleep(*sleep.sleeper);
    sleep.process->sleepers.give_charge(*sleep.sleeper, sleep.process->pass_now());
    sleep.process->unlock_out();
  }
  errno = saved;
}

void Engine::set_thread_spin(Duration longest) { thread_state.spin = longest; }
Duration Engine::thread_spin() { return thread_state.spin; }

bool Engine::signal_restarts() { return thread_state.all_restart; }

const void* Engine::enter_handler(const void* frame) { return std::exchange(thread_state.handler, frame); }
void Engine::leave_handler(const void* outer) { thread_state.handler = outer; }

}  // namespace accel
