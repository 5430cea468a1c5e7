// What a descriptor of ours stands for. One File serves every dup of it; a set of epoll is a File too.
//
// Everything here is under the lock of posix/guard.h (the engine's Pass once there is an engine), but for
// FdTable::owns(), which is one load.
#pragma once

#include <cstdint>
#include <string>

#include "base/ip.h"
#include "engine/engine.h"
#include "posix/acceptor_hints.h"

namespace accel::posix {

class EpollItem;  // posix/epoll_set.h: one membership of a file in one set

enum class FileKind : uint8_t { kTcp, kUdp, kIwarp, kShm, kEpoll };

class File {
 public:
  explicit File(FileKind kind) : kind_(kind) {}
  virtual ~File() = default;
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  FileKind kind() const { return kind_; }
  /// EPOLL* bits as of now (EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLHUP, EPOLLERR, EPOLLPRI, EPOLLRDNORM,
  /// EPOLLWRNORM), the shadow's not included.
  virtual uint32_t readiness() = 0;
  /// A kernel descriptor that must be watched as well, since the kernel may have something for this file (a
  /// listener's or a UDP socket's shadow, a set's real epoll descriptor); -1: none.
  virtual int kernel_fd() = 0;
  /// The last descriptor is closed and no call uses the file any more; release() destroys it afterwards.
  /// `pass` is nullptr while the process has no engine (nothing is accelerated yet).
  virtual void on_last_close(Pass* pass) = 0;

  /// How a file came by fork() (posix/process.h): what its first use in the child must do before anything
  /// else.
  enum class Inherited : uint8_t {
    kNo,          ///< nothing: made here, or the same in both processes
    kDormant,     ///< a listener or bound UDP socket: revive() opens it in this process
    kReceived,    ///< the same by exec() or in a message: it opens with the first call that waits for what
                  ///< comes in, since those who gave it may use it still, and none but they may do so
    kConnection,  ///< a live connection that the parent's stack carries: take_connection() moves it to the
                  ///< kernel
  };
  Inherited inherited = Inherited::kNo;
  bool revivable() const { return inherited == Inherited::kDormant || inherited == Inherited::kReceived; }
  enum class Use { kTraffic, kSend, kAside };
  /// A process that only looks at a socket's names and options, or sets them, takes nothing from those who
  /// use it. Suspended iWARP connections are kDormant too, and are nobody's until one process uses them.
  bool opens_for(Use use) const {
    if (kind_ == FileKind::kIwarp || inherited == Inherited::kConnection || use == Use::kTraffic) return true;
    return inherited == Inherited::kDormant && use == Use::kSend;
  }
  /// Likewise for a wait that may last or, with a timeout of nothing, does not. Who looks again and again
  /// waits. A supervisor waits for its programs' sake: its own is what it accepts.
  bool opens_for_wait(bool only_looks) {
    if (has_program && !served) return false;
    return opens_for(Use::kAside) || !only_looks || ++looks_ >= kLooksThatWait;
  }
  /// It carries a live connection of our stack: a forked child must know of it (TCP only).
  virtual bool carries_connection() const { return false; }
  /// Listeners that other processes have too (posix/listener_handoff.h): the hand-off socket, or -1; it is
  /// readable; before fork(); this process ends or stops listening, so its connections are handed off.
  virtual int served_handoff_socket() const { return -1; }
  virtual void handoff_arrived(Pass&) {}
  /// Where processes ask that have got such a listener otherwise than by fork() (posix/listener_group.h), or
  /// -1; it is readable.
  virtual int group_socket() const { return -1; }
  virtual void member_arrived() {}
  /// Peers of both that have come and not sent their message yet (posix/silent_peers.h); returns when the
  /// first one's time is over. One of those has sent it, or has gone; false: `fd` is none of this file's.
  virtual Instant watch_silent_peers(std::vector<pollfd>&) { return kNever; }
  virtual bool silent_peer_spoke(Pass&, int /*fd*/) { return false; }
  virtual void share_accept_queue() {}
  virtual void hand_off_queue(Pass&) {}
  /// Others accept besides this process: it takes a part of what they hand off.
  virtual void serve_handoff_queue() {}
  /// Of a listener or bound UDP socket, as far as it is open in this process's stack.
  virtual BoundFlow* bound_flow() const { return nullptr; }
  /// After setuid(): see privileges_are_going() (posix/privilege.h).
  virtual void user_changed() {}
  /// In the child, right after fork(): there is no engine, the stack's objects are gone. Forgets them
  /// (without touching the descriptors, which parent and child share) and says what the first use must do.
  virtual Inherited after_fork_in_child() { return Inherited::kNo; }
  /// Opens in this process's engine what the parent had open: listens, or binds, where the shadow already
  /// does.
  virtual void revive(Pass&) {}
  /// A listener that this process has never waited on: at fork() it is taken to be for the children (the
  /// master of a prefork server), so its device queues are released for them. queues_released(): it is
  /// kDormant now.
  virtual BoundFlow* releasable_flow() { return nullptr; }
  virtual void queues_released() {}
  /// A program that may know nothing of us has it too: what nobody has accepted joins the kernel's queue, as
  /// far as that is possible.
  virtual void queue_for_program(Pass&) {}

  /// Ports have been opened, or could not be (Housekeeping::Events::ports_opened). The file may be gone
  /// afterwards.
  virtual void ports_opened(Pass&) {}

  /// A device is gone (Housekeeping::Events::port_lost): what it carried of this file goes on in the kernel.
  /// The file may be gone afterwards.
  virtual void port_lost(Pass&) {}

  /// Connections are to be handed back, as misdirected ones are (Housekeeping::Events::hand_backs_due): they
  /// go on in the kernel. The file may be gone afterwards.
  virtual void hand_back_due(Pass&) {}

  /// kUnanswered: the connection goes on in the kernel. The file may be gone afterwards.
  virtual void unanswered(Pass&) {}

  /// The channel of an iWARP socket has come to a decision about it (posix/siw_socket.h), or something has
  /// happened to a connection in shared memory (posix/shm_socket.h). The file may be gone afterwards.
  virtual void decided(uint32_t /*edges*/) {}

  /// References: one for each descriptor in the table and one for each call in progress that may block. As in
  /// the kernel, a file whose last descriptor is closed lives on until the calls that block on it return; the
  /// last reference closes it.
  void retain() { ++references_; }
  void release(Pass* pass) {
    if (--references_ != 0) return;
    if (!closed) finish(pass);
    delete this;
  }

  bool last_reference() const { return references_ == 1; }

  int descriptors = 0;           ///< entries of the table that name this file
  int recent_fd = -1;            ///< one that was entered last: where to look first
  bool closed = false;           ///< on_last_close has run, or is not to run (FdTable::forget)
  EpollItem* watches = nullptr;  ///< memberships, linked through EpollItem::next_of_file
  bool shared_listener = false;  ///< other processes have it too; of a set, one that is in it
  bool elsewhere_too = false;    ///< another process has got it: by fork(), or it is from there
  bool served = false;  ///< a listener or UDP socket on which this process has called accept() or recv()
  bool has_program =
      false;        ///< likewise: others serve it: a program that this process or a child has started
  int waiters = 0;  ///< threads blocked in a call that waits for what comes in by it

  /// `edges` are Ready bits (stack.h): passes them to the sets that watch this file (posix/epoll_set.cc).
  void notify(uint32_t edges);
  /// kernel_fd() gives another answer from now on (listen(), bind(), connect()): the sets follow.
  void kernel_fd_changed();
  /// One of several descriptors is about to be closed: sets that know the file by it (posix/epoll_set.cc).
  void number_closes(int fd);
  /// The file is being closed: takes it out of every set that watches it (posix/epoll_set.cc; called by
  /// release()).
  void leave_sets();
  /// The kernel serves the descriptors from now on: sets that watch this file watch the kernel's descriptor
  /// instead (posix/epoll_set.cc; called by FdTable::forget).
  void move_watches_to_kernel();
  /// A thread waits on it, or on a set that it is in, or on a set that has that one (posix/epoll_set.cc).
  bool waited_on_now() const;
  /// Sets that have it look at their members before they wait the next time: one is not open in this process
  /// (posix/epoll_set.cc).
  void announce_inherited();
  /// Sets that have it have a shared listener (posix/epoll_set.cc).
  void announce_shared_listener();
  /// Memberships of `other` are this file's from now on (posix/epoll_set.cc; called by FdTable::replace).
  void take_watches(File& other);

 private:
  void finish(Pass* pass);  // posix/fd_table.cc
  static constexpr int kLooksThatWait = 16;
  FileKind kind_;
  int looks_ = 0;
  int references_ = 0;
};

/// A thread waits on the file.
class WaitsOn {
 public:
  explicit WaitsOn(File& file) : file_(file), noted_(file.shared_listener) { ++file_.waiters; }
  ~WaitsOn() { --file_.waiters; }
  WaitsOn(const WaitsOn&) = delete;
  WaitsOn& operator=(const WaitsOn&) = delete;

 private:
  File& file_;
  AcceptorHint noted_;
};

/// Descriptors to files. owns(): lock-free; find(): under the lock, and the answer stays true while it is
/// held.
class FdTable {
 public:
  /// True when calls on `fd` must come to posix. Any int, also negative.
  bool owns(int fd) const { return has(fd) && slots_[fd].load(std::memory_order_acquire) != nullptr; }
  File* find(int fd) const { return has(fd) ? slots_[fd].load(std::memory_order_relaxed) : nullptr; }
  /// Names `file` by `fd` (which must be free in the table); retains it. False: fd is beyond the table (stays
  /// on the kernel).
  bool insert(int fd, File* file);
  /// Takes the entry out and releases the file. Does not close the kernel's descriptor.
  void erase(int fd, Pass* pass);
  /// Takes every entry of `file` out without on_last_close: from now on the kernel serves these descriptors.
  void forget(File* file);
  /// `fresh` takes the place of `file` wherever that is known: in the table and in the sets.
  void replace(File* file, File* fresh);
  /// The lowest descriptor of a file: to visit each file once. As cheap as the file has few.
  int first_of(const File* file) const;
  /// No descriptor of ours is as high as this.
  int limit() const { return limit_.load(std::memory_order_relaxed); }
  /// Calls visit for each descriptor in [first, last].
  template <class F>
  void for_each(int first, int last, F visit) const;
  /// Maps the table (address space only) for RLIMIT_NOFILE's hard limit, at most 2^20. Idempotent.
  void open();
  int size() const { return static_cast<int>(size_.load(std::memory_order_acquire)); }
  /// The descriptor that erase() is taking out, which the kernel still has open; else -1.
  int leaving() const { return leaving_; }

  // ---- plain sets: epoll sets of which only the kernel's members are known; lock-free ----
  /// Those who wait on a plain set do so in the kernel, without the lock. They are counted, so that whoever
  /// makes it ours (end_plain, under the lock) knows that there are some (plain_waits).
  void begin_plain(int fd) { waits_[fd].fetch_or(kPlain); }
  void end_plain(int fd) {
    if (plain(fd)) waits_[fd].fetch_and(~kPlain);
  }
  bool plain(int fd) const { return has(fd) && (waits_[fd].load(std::memory_order_relaxed) & kPlain) != 0; }
  uint32_t plain_waits(int fd) const { return has(fd) ? waits_[fd].load() & ~kPlain : 0; }
  /// In a forked child, where those who waited are not.
  void forget_plain_waits(int fd) {
    if (has(fd)) waits_[fd].fetch_and(kPlain);
  }
  /// The wait itself. plain(): as of now, it is one.
  class PlainWait {
   public:
    PlainWait(FdTable& table, int fd) : waits_(table.waits_[fd]), plain_(waits_.fetch_add(1) & kPlain) {}
    ~PlainWait() { waits_.fetch_sub(1); }
    PlainWait(const PlainWait&) = delete;
    PlainWait& operator=(const PlainWait&) = delete;
    bool plain() const { return plain_; }

   private:
    std::atomic<uint32_t>& waits_;
    const bool plain_;
  };

 private:
  static constexpr uint32_t kPlain = 1u << 31;
  /// open() may run in another thread: the size first, then the tables that it speaks of.
  bool has(int fd) const { return static_cast<unsigned>(fd) < size_.load(std::memory_order_acquire); }
  std::atomic<File*>* slots_ = nullptr;
  std::atomic<uint32_t>* waits_ = nullptr;  ///< kPlain, and how many wait
  std::atomic<unsigned> size_{0};
  std::atomic<int> limit_{0};
  int leaving_ = -1;
};

template <class F>
void FdTable::for_each(int first, int last, F visit) const {
  for (int fd = first < 0 ? 0 : first; fd <= last && fd < limit(); ++fd)
    if (File* f = find(fd)) visit(fd, f);
}

extern FdTable fds;

/// EPOLL* bits for Ready bits.
uint32_t epoll_bits(uint32_t ready);

}  // namespace accel::posix
