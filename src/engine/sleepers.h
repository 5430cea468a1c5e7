// The threads that wait: how each sleeps and is woken, and which of them watches the ports for all.
//
// One of the threads that wait is in charge of the ports: it polls them or sleeps on them, and wakes the
// others as their conditions come true. Whoever begins to wait takes charge, since the next frames are likely
// its own; whoever ends its wait gives charge to one that is asleep: not while a thread is out that is always
// back soon, since every frame would wake a thread that finds the lock held and nothing to do. Housekeeping
// watches that it is (distrust_the_late).
//
// A server with a thread for each of many connections has few frames for the thread that began its wait last.
// There the one in charge stays so until its own wait ends (charge_stays): else each frame would wake two.
#pragma once

#include <semaphore.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/instant.h"
#include "engine/lock.h"
#include "engine/notices.h"
#include "engine/port_slots.h"
#include "engine/spin.h"

namespace accel {

class Sleepers;
struct WaitRequest;

/// A thread's means to sleep and to be woken. Made at its first wait, registered until the thread ends.
/// Descriptors are opened as long as that leaves the program enough of them, and for waits that need them.
struct Sleeper {
  const Sleepers* registered = nullptr;
  int wake_fd = -1;                ///< eventfd
  int epoll_fd = -1;               ///< wake_fd, kernel_fd and, of the one in charge, the ports' descriptors
  int kernel_fd = -1;              ///< of the last wait; -1: none
  bool has_ports = false;          ///< the ports' descriptors are in epoll_fd
  bool fixed = false;              ///< this sleep is a ppoll() or on `semaphore`: nobody can add to it
  bool on_semaphore = false;       ///< this sleep, or each one where it has no descriptors
  sem_t semaphore{};               ///< instead of wake_fd
  WaitRequest* request = nullptr;  ///< while asleep
  const void* frame = nullptr;     ///< of the wait that has it
  void* retained = nullptr;        ///< Pass::retains() of the call that waits
  bool woken = false;              ///< its alarm has been rung for this sleep
  bool out = false;                ///< not waiting, and trusted to be back soon: its calls poll for all
  uint8_t brief = 0;               ///< times in a row that it was
  Instant left{}, out_since{};     ///< when its last wait ended, and when it was woken for that
  SpinPolicy spin;

  /// What epoll_wait() tells of, beside the ports.
  static constexpr uint64_t kWakeTag = 0xff, kKernelTag = 0xfe;
  /// A thread that has been back in its wait soon so many times in a row is trusted to be so again.
  static constexpr int kTrusted = 8;

  Alarm alarm() { return {on_semaphore ? -1 : wake_fd, &semaphore}; }
  /// Both descriptors, or none.
  void open_descriptors();
  void close_descriptors();
};

/// The sockets of which something has changed since sleepers were looked at. Sleepers that wait for another
/// one, of which there may be a thousand, are left alone.
class Changes {
 public:
  /// `owner`: as StackSocket::owner.
  void add(const void* owner) {
    if (count_ == of_.size()) return add_any();
    of_[count_++] = owner;
  }
  /// Something else, or it is not known what.
  void add_any() { any_ = true; }
  bool empty() const { return count_ == 0 && !any_; }
  /// `subject`: WaitRequest::subject.
  bool concern(const void* subject) const {
    return any_ || subject == nullptr ||
           std::find(of_.begin(), of_.begin() + count_, subject) != of_.begin() + count_;
  }

 private:
  std::array<const void*, 16> of_{};
  size_t count_ = 0;
  bool any_ = false;
};

/// To be rung once the lock is let go: a thread that is woken before would preempt the one that holds it.
struct Alarms {
  std::array<Alarm, 16> alarm;
  size_t count = 0;
};

class Sleepers {
 public:
  Sleepers(const PortSlots& ports, Notices& notices) : ports_(ports), notices_(notices) {}
  /// `cpus`: that this process may run on.
  void set_cpus(uint32_t cpus) { cpus_ = cpus; }

  // ---- registered threads ----
  /// With descriptors, if it may have them.
  void enlist(Sleeper& s) ACCEL_REQUIRES(worker_lock);
  void forget(Sleeper& s, Instant now) ACCEL_REQUIRES(worker_lock);
  size_t threads() const ACCEL_REQUIRES(worker_lock) { return threads_.size(); }
  /// Further threads sleep on semaphores, and borrow descriptors for the waits that need them.
  bool may_have_descriptors() const ACCEL_REQUIRES(worker_lock);
  void open_descriptors(Sleeper& s) ACCEL_REQUIRES(worker_lock);
  void close_descriptors(Sleeper& s) ACCEL_REQUIRES(worker_lock);
  /// Who is to ring an alarm may be about to, by a number that will be another file's once it is closed.
  void wait_for_ringing() const;
  void abandon_in_child() ACCEL_REQUIRES(worker_lock);

  // ---- those that are asleep ----
  void fall_asleep(Sleeper& s, WaitRequest& request) ACCEL_REQUIRES(worker_lock);
  /// Nobody looks at its request any more.
  void leave_sleep(Sleeper& s) ACCEL_REQUIRES(worker_lock);
  bool any_asleep() const ACCEL_REQUIRES(worker_lock) { return !asleep_.empty(); }
  /// Nobody is asleep for a request but those with this context.
  bool none_asleep_but(const void* context) const ACCEL_REQUIRES(worker_lock);
  uint32_t asleep_count() const { return asleep_count_.load(std::memory_order_relaxed); }
  /// Wakes sleepers whose condition holds, as far as `changes` may have made it so.
  void wake_ready(const Changes& changes, Instant now) ACCEL_REQUIRES(worker_lock);
  /// The condition of a wait holds, of a thread that has slept or polled for it.
  void note_ready(const Sleeper& s) ACCEL_REQUIRES(worker_lock);
  void take_alarms(Alarms& alarms) ACCEL_REQUIRES(worker_lock) {
    alarms.count = std::exchange(to_wake_.count, 0);
    if (alarms.count == 0) return;
    for (size_t i = 0; i < alarms.count; ++i) alarms.alarm[i] = to_wake_.alarm[i];
    ringing_.fetch_add(1, std::memory_order_relaxed);
  }
  /// What take_alarms() gave. Without the lock.
  void ring(const Alarms& alarms) {
    if (alarms.count == 0) return;
    for (size_t i = 0; i < alarms.count; ++i) alarms.alarm[i].ring();
    ringing_.fetch_sub(1, std::memory_order_release);
  }
  /// Sleeps that ended by something else than time.
  uint64_t wakes() const ACCEL_REQUIRES(worker_lock) { return wakes_; }
  void note_wake() ACCEL_REQUIRES(worker_lock) { ++wakes_; }

  // ---- in charge of the ports ----
  /// To poll, until then. False: another thread does, or sleeps for all, which who `insists` does not heed.
  bool take_charge(Sleeper& s, Instant now, Instant until, bool insists = false) ACCEL_REQUIRES(worker_lock);
  /// It is about to sleep.
  void take_charge_asleep(Sleeper& s, Instant now) ACCEL_REQUIRES(worker_lock);
  void give_charge(Sleeper& s, Instant now) ACCEL_REQUIRES(worker_lock);
  bool is_in_charge(const Sleeper& s) const ACCEL_REQUIRES(worker_lock) { return in_charge_ == &s; }
  /// Whoever is in charge and asleep stays so when others begin to wait.
  bool charge_stays() const ACCEL_REQUIRES(worker_lock) { return latest_share_ < kLatestSeldom; }
  /// Another one is in charge, asleep, and stays so.
  bool is_cared_for(const Sleeper& s) const ACCEL_REQUIRES(worker_lock);
  bool nobody_in_charge() const ACCEL_REQUIRES(worker_lock) { return in_charge_ == nullptr; }
  /// A handler has left its thread's polling by siglongjmp(): others sleep, and nobody looks at the ports.
  void end_overdue_charge(Instant now) ACCEL_REQUIRES(worker_lock);
  /// The sleep of the one in charge ends.
  void alarm_in_charge() ACCEL_REQUIRES(worker_lock);

  // ---- threads that are out ----
  void go_out(Sleeper& s, Instant now) ACCEL_REQUIRES(worker_lock);
  void come_in(Sleeper& s) ACCEL_REQUIRES(worker_lock);
  uint32_t out_count() const ACCEL_REQUIRES(worker_lock) { return out_count_; }
  /// One for a thread that polls, beside those of the threads that are out. With none of them out it is the
  /// spin's own success that tells (spin.h).
  bool has_spare_cpu() const ACCEL_REQUIRES(worker_lock) { return out_count_ == 0 || out_count_ + 1 < cpus_; }
  /// `passes`: that the application has made. False: nobody has been out since the last time.
  bool distrust_the_late(Instant now, uint64_t passes) ACCEL_REQUIRES(worker_lock);
  /// False: Notices::kThreadOut comes again when a thread goes out.
  void set_watched(bool watched) ACCEL_REQUIRES(worker_lock) { watched_ = watched; }

  // ---- the stack's deadlines ----
  /// One sleeper is enough for them. True: it is to be this one, whose sleep then ends at `due`.
  bool keep_time(Sleeper& s, Instant due) ACCEL_REQUIRES(worker_lock);
  /// A sleeper's timeout does.
  bool covers(Instant due) const ACCEL_REQUIRES(worker_lock) {
    return timekeeper_ != nullptr && timekeeper_until_ <= due;
  }

  // ---- descriptors ----
  /// Of all ports, and of the channels: what ends a sleep.
  template <class F>
  void for_each_descriptor(F visit) const ACCEL_REQUIRES(worker_lock) {
    for (const PortSlot& slot : ports_)
      if (Port* port = slot.port())
        for (int fd : port->poll_fds()) visit(fd);
    for (size_t i = 0; i < channel_count_; ++i) visit(channel_fds_[i]);
  }
  /// The one in charge sleeps on them, the others do not.
  void watch_ports(Sleeper& s, bool watch) ACCEL_REQUIRES(worker_lock);
  void add_port(InterfaceId id, Instant now) ACCEL_REQUIRES(worker_lock);
  void remove_port(InterfaceId id, Instant now) ACCEL_REQUIRES(worker_lock);
  /// They have just been made: threads that are asleep have to know of their descriptor.
  void add_channels(int fd, Instant now) ACCEL_REQUIRES(worker_lock);

 private:
  void wake(Sleeper& s, Instant now) ACCEL_REQUIRES(worker_lock);
  /// When nobody is in charge, and nobody out.
  void appoint(Instant now) ACCEL_REQUIRES(worker_lock);
  void watch_port(Sleeper& s, InterfaceId id) ACCEL_REQUIRES(worker_lock);
  void watch_channels(Sleeper& s, bool watch) ACCEL_REQUIRES(worker_lock);

  const PortSlots& ports_;
  Notices& notices_;
  /// The reactor's of soft-iWARP, the poller's of shared memory.
  std::array<int, 2> channel_fds_ ACCEL_GUARDED_BY(worker_lock){};
  size_t channel_count_ ACCEL_GUARDED_BY(worker_lock) = 0;
  uint32_t cpus_ = 1;
  std::vector<Sleeper*> threads_ ACCEL_GUARDED_BY(worker_lock);
  size_t with_descriptors_ ACCEL_GUARDED_BY(worker_lock) = 0;  ///< of `threads_`
  struct AsleepFor {
    Sleeper* sleeper;
    const void* subject;  ///< WaitRequest::subject
  };
  std::vector<AsleepFor> asleep_ ACCEL_GUARDED_BY(worker_lock);
  std::atomic<uint32_t> asleep_count_{0};
  Alarms to_wake_ ACCEL_GUARDED_BY(worker_lock);
  std::atomic<uint32_t> ringing_{0};  ///< threads that ring alarms: until then none is closed
  uint64_t wakes_ ACCEL_GUARDED_BY(worker_lock) = 0;

  Sleeper* in_charge_ ACCEL_GUARDED_BY(worker_lock) = nullptr;
  /// When it polls: until then. When it is asleep: it is in `asleep_`.
  Instant in_charge_until_ ACCEL_GUARDED_BY(worker_lock){};

  /// The share, as a moving average, of ended waits that were those of the thread that had begun its wait
  /// last.
  static constexpr int32_t kLatestAlways = 1 << 12, kLatestSeldom = kLatestAlways / 3, kLatestWeight = 16;
  int32_t latest_share_ ACCEL_GUARDED_BY(worker_lock) = kLatestAlways;
  const Sleeper* latest_ ACCEL_GUARDED_BY(worker_lock) = nullptr;

  uint32_t out_count_ ACCEL_GUARDED_BY(worker_lock) = 0;       ///< of `threads_`
  bool was_out_ ACCEL_GUARDED_BY(worker_lock) = false;         ///< since housekeeping looked
  bool watched_ ACCEL_GUARDED_BY(worker_lock) = false;         ///< housekeeping looks
  uint64_t passes_watched_ ACCEL_GUARDED_BY(worker_lock) = 0;  ///< passes when it looked

  Sleeper* timekeeper_ ACCEL_GUARDED_BY(worker_lock) = nullptr;
  Instant timekeeper_until_ ACCEL_GUARDED_BY(worker_lock) = kNever;
};

}  // namespace accel
