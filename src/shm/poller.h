// The connections of a process that are, or are about to be, in shared memory: one epoll descriptor for what
// the kernel tells of them, and the few whose rings are looked at. No thread: whoever holds the engine's lock
// polls.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/instant.h"
#include "base/result.h"
#include "shm/receiver.h"
#include "shm/sender.h"

namespace accel::shm {

/// A connection as the poller knows it.
struct Link {
  explicit Link(void* of) : owner(of) {}
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// This end of the memory: it sends by direction[`end`].
  struct Rings {
    Rings(size_t end, uint64_t from_kernel) : end_(end), from_kernel_(from_kernel) {}
    void open() {
      sender.emplace(mapping.direction(end_), mapping.ring(end_));
      receiver.emplace(mapping.direction(1 - end_), mapping.ring(1 - end_), from_kernel_);
    }
    Mapping mapping;
    std::optional<Sender> sender;
    std::optional<Receiver> receiver;

   private:
    const size_t end_;
    const uint64_t from_kernel_;
  };

  /// The other end is to ring for what comes next. False: something is there that has not been told of.
  bool sleep() {
    ask_to_be_told();
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return !changed();
  }
  void ask_to_be_told() {
    rings->receiver->ask_to_be_told();
    rings->sender->ask_to_be_told();
  }
  bool changed() const { return rings->receiver->changed() || rings->sender->changed(); }
  void note_told() {
    rings->receiver->note_told();
    rings->sender->note_told();
  }

  void* const owner;
  int tcp = -1;   ///< the kernel's connection
  int bell = -1;  ///< a Unix socket: readable when the other end rings, or has gone
  std::unique_ptr<Rings> rings;
  Instant deadline = kNever;
  // ---- since take_ready() gave it out ----
  bool tcp_event = false, bell_event = false, late = false;

 private:
  friend class Poller;
  static constexpr size_t kCold = SIZE_MAX;
  bool ready_ = false;
  bool used_ = false;  ///< since the last sweep
  bool counted_ = false;
  size_t slot_ = kCold;  ///< among the hot ones
};

class Poller {
 public:
  static Result<std::unique_ptr<Poller>> open();
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  /// Readable when poll() has something to do.
  int fd() const { return fd_; }
  /// The rings that are looked at, unless that was just now; returns whether something has come. No system
  /// call. `asleep`: a thread sleeps on fd(), so the other ends go on to ring.
  bool glance(Instant now, bool asleep) { return now - looked_at_ >= kGlance && look(now, asleep); }
  /// The same, and what the kernel tells; where that is asked for every time, a program that polls makes a
  /// system call for each look.
  bool poll(Instant now, bool asleep);
  /// The same, for a call that is to know now.
  bool ask(Instant now, bool asleep) {
    kernel_asked_at_ = {};
    return poll(now, asleep);
  }
  /// Before a sleep on fd(): the other ends are to ring. False: something has come.
  bool arm();
  Instant next_deadline() const { return next_deadline_; }
  /// The next link with something to see to, or nullptr.
  Link* take_ready();
  size_t links() const { return links_; }

  // ---- a link's descriptors; each is to be taken out before it is closed ----
  bool watch_tcp(Link& link);
  bool watch_bell(Link& link);
  void forget_tcp(Link& link);
  void forget_bell(Link& link);
  /// The kernel's connection has another number, the former is open still.
  void move_tcp(Link& link, int fd);
  void set_deadline(Link& link, Instant when);
  /// It is in use: its ring is looked at from now on, perhaps instead of another's.
  void heat(Link& link);
  /// It has been seen to, or somebody begins to wait for room: where its ring is not looked at, or a thread
  /// sleeps, the other end is to ring for what comes next.
  void seen(Link& link);
  void forget(Link& link);

  void abandon_in_child();

 private:
  explicit Poller(int fd) : fd_(fd) {}
  bool watch(int fd, uint64_t tag, uint32_t events);
  void forget_fd(int fd);
  void make_ready(Link& link);
  bool look(Instant now, bool asleep);
  void take_out(Link& link);
  void cool(Link& link);
  void sweep(Instant now);
  void expire(Instant now);

  /// A look at a ring costs some nanoseconds, a bell one system call of who rings and two of who hears it.
  static constexpr size_t kMostHot = 256;
  static constexpr Duration kGlance = 50us;
  int fd_;
  size_t links_ = 0;
  std::vector<Link*> hot_;
  size_t next_cooled_ = 0;
  Instant looked_at_{}, swept_{};
  bool armed_ = false;  ///< the other ends of the hot ones ring
  Instant kernel_asked_at_{};
  Instant next_deadline_ = kNever;
  std::vector<Link*> timed_;  ///< with a deadline
  std::vector<Link*> ready_;
};

}  // namespace accel::shm
