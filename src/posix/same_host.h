// Connections that stay on the host, before they are in shared memory (posix/shm_socket.h): the kernel serves
// them, and their descriptors are not in the table. Calls on them are counted here, so that the path is
// changed for those alone that last; where nobody asked for it (same_host = off) there is nothing here.
//
// What else is to be known when a descriptor enters the table: calls of the kernel's that are under way on
// it, the one epoll set that it is in, and whether another process has it by fork(). Where both processes
// tell of it, one of them may move it once the other has closed it. A descriptor of which more has become is
// no candidate any more: it was duplicated, passed, or is in a second set.
#pragma once

#include <sys/epoll.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdint>

namespace accel::posix {

class Candidates {
 public:
  /// One load, a second one where there are any. The first orders the slots' address before it.
  bool has(int fd) const {
    return static_cast<unsigned>(fd) < size_.load(std::memory_order_acquire) &&
           (slots_[fd].word.load(std::memory_order_relaxed) & kKinds) != 0;
  }
  bool any() const { return size_.load(std::memory_order_relaxed) != 0; }

  /// A connection to this host, or a listener, that the kernel serves. No effect where same_host is off.
  void add(int fd) { enter(fd, kConnection); }
  void add_listener(int fd) { enter(fd, kListener); }
  /// `fd` was accepted by a listener that the kernel serves.
  void accepted(int listener, int fd) {
    if (has(listener) && (slots_[listener].word.load(std::memory_order_relaxed) & kListener) != 0) add(fd);
  }
  /// It stays with the kernel, or is another file from now on.
  void forget(int fd) {
    if (!has(fd)) return;
    slots_[fd].word.fetch_and(~(kKinds | kCount), std::memory_order_relaxed);
    slots_[fd].holders.store(0, std::memory_order_relaxed);  // for good: nobody knows when it closes
  }
  void forget_range(unsigned first, unsigned last);
  void forget_connections();
  /// It has left the table, and may enter it again after so many transfers more. Not over fork().
  void again(int fd);

  // ---- over fork() ----
  /// Two processes are about to have the connections that there are.
  void share_connections();
  /// The process has not come to be.
  void fork_failed();
  /// The threads whose calls were under way are not here.
  void after_fork_in_child();
  /// `fd` is about to be closed: another process may have it alone then.
  void closes(int fd);
  /// So are all.
  void process_ends();
  /// No other process has it.
  bool is_held_once(int fd) const;
  /// No other process has what this one had at its forks: they have ended.
  bool process_is_alone() const { return shared_ != nullptr && shared_->processes.load() == 1; }
  /// It is due, and another process has it: later.
  void put_off(int fd);

  /// No more calls precede the change of the path.
  bool due(int fd) const {
    if (!has(fd)) return false;
    const uint32_t word = slots_[fd].word.load(std::memory_order_relaxed);
    return (word & kConnection) != 0 && (word & kCount) == 0;
  }
  /// epoll_ctl() on a set of ours, which the kernel has carried out.
  void note_membership(int set, int operation, int fd, const epoll_event& event);
  /// setsockopt() of a negative timeout, which the kernel shows as none, makes it the kernel's.
  void note_option(int fd, int level, int name, const void* value, socklen_t length);
  struct Membership {
    int set = -1;
    epoll_event event{};
  };
  Membership membership(int fd) const {
    return {slots_[fd].set, {slots_[fd].events, {.u64 = slots_[fd].data}}};
  }
  /// The socket is the one that was added.
  bool is_same(int fd) const;

  /// A call of the kernel's on a candidate, or on a descriptor that was one when the call began.
  class Call {
   public:
    Call(Candidates& all, int fd) : word_(all.slots_[fd].word) { word_.fetch_add(1); }
    ~Call() { word_.fetch_sub(1); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    /// One of the calls before the path is changed. False: it is time.
    bool precedes() {
      if ((word_.load(std::memory_order_relaxed) & kCount) == 0) return false;
      word_.fetch_sub(kOne, std::memory_order_relaxed);
      return true;
    }

   private:
    std::atomic<uint32_t>& word_;
  };
  bool calls_under_way(int fd) const {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return (slots_[fd].word.load() & kCalls) != 0;
  }

 private:
  std::atomic<unsigned> highest_{0};
  static constexpr uint32_t kCalls = 0xffff, kConnection = 1u << 16, kListener = 1u << 17, kOne = 1u << 18;
  static constexpr uint32_t kKinds = kConnection | kListener, kCount = ~(kOne - 1);
  struct Slot {
    std::atomic<uint32_t> word;
    std::atomic<uint16_t> holders;  ///< place in `shared_`, and one; 0: no other process has it by fork()
    uint8_t times;                  ///< that it has entered the table
    int set;
    uint32_t events;
    uint64_t data;
    uint64_t cookie;
  };
  /// A connection that several processes have by fork(), in memory that they share.
  struct Holders {
    std::atomic<uint64_t> cookie;
    std::atomic<uint32_t> count;
  };
  static constexpr size_t kShared = 4096;
  struct Shared {
    std::atomic<uint32_t> processes;  ///< that have come by fork() since, and this one
    Holders holders[kShared];
  };
  bool share(Slot& slot);
  void let_go(Slot& slot);
  void set_count(Slot& slot);
  void enter(int fd, uint32_t kind);
  bool open();

  std::atomic<unsigned> size_{0};
  Slot* slots_ = nullptr;
  bool ended_ = false;
  Shared* shared_ = nullptr;  ///< made at the first fork()
};

extern Candidates candidates;

/// A transfer is about to be made on a candidate, one more than is left to the kernel: from now on the
/// descriptor may be one of the table's.
void take_candidate(int fd);

}  // namespace accel::posix
