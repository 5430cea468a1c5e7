#include "posix/control_thread.h"

#include <ev.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <new>
#include <utility>

#include "base/own_table.h"
#include "base/real.h"
#include "base/served_call.h"
#include "engine/housekeeping.h"
#include "posix/early_wait.h"
#include "posix/engine_events.h"
#include "posix/group_looks.h"
#include "posix/own_thread.h"

namespace accel::posix {
namespace {

constexpr size_t kSecondStack = 256 << 10;  ///< of which a few pages are touched
constexpr double kSoonest = 0.0001;         ///< seconds
constexpr double kNoMemoryPause = 0.1;      ///< seconds; nothing says when there is memory again

class ControlThread {
 public:
  explicit ControlThread(Engine& engine) : housekeeping_(engine.housekeeping()) {}
  ~ControlThread() {
    if (loop_ != nullptr) ev_loop_destroy(loop_);
  }
  ControlThread(const ControlThread&) = delete;
  ControlThread& operator=(const ControlThread&) = delete;

  Result<void> start();
  void end();

 private:
  static void* run(void* self);
  static void on_ready(struct ev_loop*, ev_io* watcher, int);
  static void on_deadline(struct ev_loop*, ev_timer* watcher, int);
  void step(Housekeeping::Ready ready);
  void watch_ports();
  void sleep_for(double seconds);

  Housekeeping& housekeeping_;
  // Not epoll, whose descriptor libev keeps to itself, nor poll(2), which refuses more descriptors than
  // RLIMIT_NOFILE allows (a sandbox sets that to nothing): libev would abort. It is woken by the requests'
  // descriptor instead of an ev_async, whose descriptor libev keeps to itself.
  struct ev_loop* loop_ =
      ev_loop_new(unsigned{EVBACKEND_SELECT} | unsigned{EVFLAG_NOENV} | unsigned{EVFLAG_NOSIGMASK});
  ev_io requests_{}, network_{}, ports_{};
  ev_timer deadline_{};
  pthread_t thread_{};
  std::atomic<bool> ends_{false};
  std::array<char, kSecondStack> second_stack_;  ///< in_own_table()'s
};

Result<void> ControlThread::start() {
  if (loop_ == nullptr) return err(ENOMEM);
  ev_io_init(&requests_, on_ready, housekeeping_.requests_fd(), EV_READ);
  ev_io_init(&network_, on_ready, housekeeping_.network_fd(), EV_READ);
  ev_init(&ports_, on_ready);
  ev_init(&deadline_, on_deadline);
  requests_.data = network_.data = ports_.data = deadline_.data = this;
  ev_io_start(loop_, &requests_);
  ev_io_start(loop_, &network_);
  sleep_for(0);
  return start_own_thread(&thread_, run, this);
}

void ControlThread::end() {
  ends_.store(true, std::memory_order_release);
  housekeeping_.wake();
  join_own_thread(thread_);
}

void* ControlThread::run(void* self) {
  pthread_setname_np(pthread_self(), "libaccel");
  ServedCall::for_ever();
  auto& thread = *static_cast<ControlThread*>(self);
  begin_own_tables(thread.second_stack_.data(), thread.second_stack_.size());
  ev_run(thread.loop_, 0);
  return nullptr;
}

void ControlThread::on_ready(struct ev_loop*, ev_io* watcher, int) {
  auto& self = *static_cast<ControlThread*>(watcher->data);
  self.step({.requests = watcher == &self.requests_,
             .network = watcher == &self.network_,
             .ports = watcher == &self.ports_});
}

void ControlThread::on_deadline(struct ev_loop*, ev_timer* watcher, int) {
  static_cast<ControlThread*>(watcher->data)->step({});
}

void ControlThread::step(Housekeeping::Ready ready) {
  if (ends_.load(std::memory_order_acquire)) return ev_break(loop_, EVBREAK_ALL);
  try {
    if (see_to(housekeeping_.step(ready))) housekeeping_.look_soon();
    const Instant groups = look_at_groups();
    watch_ports();
    const Instant due = std::min(housekeeping_.next_deadline(), groups);
    const std::chrono::duration<double> left = due - monotonic_now();
    sleep_for(left.count());
  } catch (const std::bad_alloc&) {  // not through libev, which is C
    watch_ports();
    sleep_for(kNoMemoryPause);
  }
}

/// A descriptor that is closed while libev sleeps on it would end the process: it has gone from here first.
void ControlThread::watch_ports() {
  const int fd = housekeeping_.ports_fd();
  if (ev_is_active(&ports_) && fd == ports_.fd) return;
  ev_io_stop(loop_, &ports_);
  if (fd < 0) return;
  ev_io_set(&ports_, fd, EV_READ);
  ev_io_start(loop_, &ports_);
}

void ControlThread::sleep_for(double seconds) {
  ev_now_update(loop_);
  deadline_.repeat = std::max(seconds, kSoonest);
  ev_timer_again(loop_, &deadline_);
}

std::atomic<ControlThread*> current{nullptr};

}  // namespace

Result<void> start_control_thread(Engine& engine) {
  auto fresh = std::make_unique<ControlThread>(engine);
  if (auto started = fresh->start(); !started) return started;
  current.store(fresh.release());
  return {};
}

void end_control_thread() {
  if (ControlThread* const thread = current.exchange(nullptr)) {
    thread->end();
    delete thread;
  }
}

void control_thread_after_fork_in_child() { current.store(nullptr); }

}  // namespace accel::posix
