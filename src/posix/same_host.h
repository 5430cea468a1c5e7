// Connections that stay on the host, before they are in shared memory (posix/shm_socket.h): the kernel serves
// them, and their descriptors are not in the table. Calls on them are counted here, so that the path is
// changed for those alone that last; where nobody asked for it (same_host = off) there is nothing here.
//
// What else is to be known when a descriptor enters the table: calls of the kernel's that are under way on
// it, and the one epoll set that it is in. A descriptor of which more has become of is no candidate any more:
// it was duplicated, passed or inherited, or is in a second set.
#pragma once

#include <sys/epoll.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdint>

namespace accel::posix {

class Candidates {
 public:
  /// One load, a second one where there are any.
  bool has(int fd) const {
    return static_cast<unsigned>(fd) < size_.load(std::memory_order_relaxed) &&
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
    if (has(fd)) slots_[fd].word.fetch_and(~(kKinds | kCount), std::memory_order_relaxed);
  }
  void forget_range(unsigned first, unsigned last);
  /// Two processes have what there is; what a listener accepts from now on is of one of them.
  void forget_connections();
  /// The threads whose calls were under way are not here.
  void after_fork_in_child();

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
    int set;
    uint32_t events;
    uint64_t data;
    uint64_t cookie;
  };
  void enter(int fd, uint32_t kind);
  bool open();

  std::atomic<unsigned> size_{0};
  Slot* slots_ = nullptr;
};

extern Candidates candidates;

/// A transfer is about to be made on a candidate, one more than is left to the kernel: from now on the
/// descriptor may be one of the table's.
void take_candidate(int fd);

}  // namespace accel::posix
