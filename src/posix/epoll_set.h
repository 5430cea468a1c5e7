// An epoll set: a real epoll descriptor for the kernel's members, and a watch list for ours.
//
// Members that only the kernel serves are in the real set with the program's own data: we keep nothing of
// them. A member of ours is an EpollItem, linked from its set and from its file. Where the kernel may have
// something for it too (a listener's or UDP socket's shadow, a nested set) it is in the real set as well,
// with a tag of ours as data; what the kernel says of it is merged with what we know. Semantics follow
// fs/eventpoll.c. Everything is under the lock of posix/guard.h.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <boost/intrusive/list.hpp>
#include <span>
#include <unordered_map>

#include "base/result.h"
#include "posix/file.h"

namespace accel::posix {

class EpollSet;
class Guard;

/// One membership, by (descriptor, file) as the kernel's struct epitem. Owned by its set.
class EpollItem {
 public:
  EpollItem(EpollSet* in_set, File* of_file, int by_fd) : set(in_set), file(of_file), fd(by_fd) {}

  EpollSet* const set;
  File* file;
  const int fd;
  uint32_t events = 0;  ///< as the program asked, with EPOLLERR and EPOLLHUP
  epoll_data_t data{};
  uint32_t kernel_events = 0;  ///< the kernel's answer for the shadow, not yet reported
  uint32_t tag = 0;            ///< names this item in the real set; 0: it is not there
  int alias = -1;              ///< by which the real set knows it since `fd` is closed
  bool armed = true;           ///< false once EPOLLONESHOT has fired
  EpollItem* next_of_file = nullptr;
  boost::intrusive::list_member_hook<> of_set;
  boost::intrusive::list_member_hook<> of_ready;

  uint32_t ready_events() const { return armed ? (file->readiness() | kernel_events) & events : 0; }
};

class EpollSet final : public File {
 public:
  EpollSet() : File(FileKind::kEpoll) {}
  ~EpollSet() override;

  uint32_t readiness() override;
  int kernel_fd() override;
  void on_last_close(Pass* pass) override;
  Inherited after_fork_in_child() override;

  // ---- epoll_ctl on a file of ours; `real_set` is the descriptor by which the program names this set ----
  Result<void> add(int real_set, int fd, File* file, const epoll_event& event);
  Result<void> modify(int real_set, int fd, File* file, const epoll_event& event);
  Result<void> remove(int real_set, int fd, File* file);

  // ---- what File does to its memberships ----
  /// `bits` happened to the item's file. True: an exclusive waiter took it, nobody else needs to hear.
  bool on_event(EpollItem& item, uint32_t bits);
  /// The file is gone or the kernel's: ends the membership; with `to_kernel` the real set watches item.fd
  /// from now on.
  void end(EpollItem& item, bool to_kernel);
  /// The item's number closes, and its file has others: the real set is to know the item by a number that
  /// stays ours, or it could not be taken out any more (connect()) and, ready by level, would end every
  /// sleep.
  void number_closes(EpollItem& item);
  /// Brings the real set in line with item.file->kernel_fd() and item.armed.
  Result<void> sync_kernel(int real_set, EpollItem& item);

  // ---- epoll_wait ----
  struct Collected {
    int events = 0;
    int ours = 0;  ///< of these, events of our members
  };
  /// Fills `out`: at first the kernel's (if `ask_kernel`), then ours. Neither can starve the other. Errors:
  /// EFAULT, EBADF.
  Result<Collected> collect(int real_set, std::span<epoll_event> out, bool ask_kernel);
  /// Events that a real epoll_wait gave: the program's own are moved to the front and counted, tagged ones go
  /// to their items.
  int absorb(std::span<epoll_event> events);
  /// What collect() would look at; may turn out to be nothing.
  bool has_ready() const { return !ready_.empty(); }
  bool has_items() const { return !items_.empty(); }
  /// Is it time to ask the kernel although something of ours is ready? Always while it has something now and
  /// then.
  bool kernel_due(Instant now);

  /// Made just now, by this name.
  void begin_plain(int fd) {
    first_fd_ = fd;
    fds.begin_plain(fd);
  }

  /// A thread waits on it by libc's functions.
  bool waited_on_by_libc() const { return in_epoll_wait > 0 || fds.plain_waits(first_fd_) > 0; }
  bool waited_on_once = false;  ///< likewise, or has
  /// At so many ticks yet a set with a member of ours on which nobody has waited by libc is a reason to look
  /// for waits past it (posix/foreign_waits.h), so that one is found before its first event.
  static inline std::atomic<int> looks_for_first_wait{0};
  static constexpr int kLooks = 100;

  int in_epoll_wait = 0;   ///< threads blocked there
  int kernel_waiters = 0;  ///< of these, in the real call: woken through an eventfd in the real set

  /// `visit` may end the item's membership.
  template <class F>
  void for_each_item(F visit) {
    for (auto i = items_.begin(); i != items_.end();) visit(*i++);
  }
  bool may_have_inherited = false;  ///< members that came by fork() and are not open in this process
  bool shared = false;     ///< the real set was there at a fork(): another process may have it as well
  bool passed_on = false;  ///< another process has it, and sees the real set only: members are the kernel's

 private:
  Result<Collected> collect_in_turn(int real_set, std::span<epoll_event> out, bool ask_kernel);
  EpollItem* find(int fd, const File* file) const;
  /// The number of the item in the real set.
  int name_of(EpollItem& item);
  void push(EpollItem& item);
  void drop_ready(EpollItem& item);
  void unlink(EpollItem& item);
  void wake_kernel_waiters();
  bool waited_on_in_kernel() const { return kernel_waiters > 0 || fds.plain_waits(first_fd_) > 0; }
  Result<int> report(std::span<epoll_event> out);

  using Items = boost::intrusive::list<
      EpollItem,
      boost::intrusive::member_hook<EpollItem, boost::intrusive::list_member_hook<>, &EpollItem::of_set>>;
  using ReadyItems = boost::intrusive::list<
      EpollItem,
      boost::intrusive::member_hook<EpollItem, boost::intrusive::list_member_hook<>, &EpollItem::of_ready>>;
  Items items_;
  ReadyItems ready_;
  std::unordered_map<uint32_t, EpollItem*> tagged_;
  uint32_t last_tag_ = 0;
  int first_fd_ = -1;  ///< by which it was plain once, and some may wait still
  int wake_fd_ = -1;   ///< eventfd in the real set, made when a kernel waiter must first be woken
  bool odd_turn_ = false;
  /// Who has had a turn since each ready member had one, where there is no room for all: fs/eventpoll.c has
  /// one list, of which those who are reported go to the end.
  class Round {
   public:
    void begin(size_t ours);
    /// The program's data of a member of the kernel's that was reported.
    void note_kernels(uint64_t data);
    /// How many of the kernel's members may have their turn still.
    size_t kernels_left() const { return known_.count != 0 ? known_.count - seen_.count : SIZE_MAX; }

    size_t ours_left = 0;
    bool kernel_done = false;

   private:
    struct Members {
      std::array<uint64_t, 16> data{};
      size_t count = 0;
      bool has(uint64_t one) const;
    };
    Members seen_;
    Members known_;       ///< all that were ready in an earlier round, when one came for the second time
    bool again_ = false;  ///< the last of the kernel's came for the second time: it has its turn of the next
  };
  Round round_;
  uint32_t stale_ = 0;  ///< edge-triggered members of the real set that the kernel knows by a number that is
                        ///< closed: they stay, as such do in the kernel
  uint32_t idle_checks_ = 0;  ///< times in a row that the kernel had nothing
  Instant last_check_{};
};

/// Counts changes of any file's readiness: those who wait in poll() or select() look again only when it has
/// moved. Under the lock.
extern uint64_t readiness_epoch;

/// The set behind a descriptor, or nullptr. Under a Guard.
EpollSet* find_set(int fd);

/// Members that came by fork(), those of nested sets too, open in this process or become the kernel's, now
/// that it waits for them (File::opens_for_wait).
void settle_members(Guard& guard, EpollSet& set, bool only_looks);
/// The same of one file that is waited on: a socket, or a set.
void settle_waited_on(Guard& guard, File* file, bool only_looks);

}  // namespace accel::posix
