// Epoll sets, poll and select over files of ours (fakes) and the kernel's descriptors, without an engine.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <thread>
#include <vector>

#include "posix/early_wait.h"
#include "posix/epoll_set.h"
#include "posix_fakes.h"

namespace accel::posix {
namespace {

using Datas = std::vector<uint64_t>;

class Set {
 public:
  Set() : fd(to_libc(posix::epoll_create1(EPOLL_CLOEXEC))) {}
  ~Set() { close(); }
  void close() {
    if (fd < 0) return;
    {
      Guard guard;
      fds.erase(fd, guard.pass());
    }
    ::close(fd);
    fd = -1;
  }
  int control(int operation, int member, uint32_t events, uint64_t data) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = data;
    return to_libc(posix::epoll_ctl(fd, operation, member, &event));
  }
  int add(int member, uint32_t events, uint64_t data) { return control(EPOLL_CTL_ADD, member, events, data); }
  int modify(int member, uint32_t events, uint64_t data) {
    return control(EPOLL_CTL_MOD, member, events, data);
  }
  int remove(int member) { return control(EPOLL_CTL_DEL, member, 0, 0); }
  /// What one epoll_wait gives: the data of its events. `milliseconds` -1: for ever.
  Datas wait(int milliseconds = 0, int size = 16) {
    std::vector<epoll_event> events(static_cast<size_t>(size));
    const timespec limit{milliseconds / 1000, milliseconds % 1000 * 1'000'000L};
    const int n =
        to_libc(posix::epoll_wait(fd, events.data(), size, milliseconds < 0 ? nullptr : &limit, nullptr));
    Datas datas;
    last_events = 0;
    for (int i = 0; i < n; ++i) {
      datas.push_back(uint64_t{events[static_cast<size_t>(i)].data.u64});  // it is packed
      last_events |= events[static_cast<size_t>(i)].events;
    }
    return datas;
  }
  int fd;
  uint32_t last_events = 0;
};

/// A kernel descriptor that is readable from the start.
struct ReadableEventfd {
  int fd = eventfd(1, EFD_NONBLOCK);
  ~ReadableEventfd() { ::close(fd); }
};

TEST(EpollSet, LevelTriggeredReportsAsLongAsReady) {
  Fake a;
  Set set;
  ASSERT_EQ(set.add(a.fd, EPOLLIN, 1), 0);
  EXPECT_EQ(set.wait(), Datas{});
  a.readable();
  EXPECT_EQ(set.wait(), Datas{1});
  EXPECT_EQ(set.last_events, static_cast<uint32_t>(EPOLLIN));
  EXPECT_EQ(set.wait(), Datas{1});
  a.idle();
  EXPECT_EQ(set.wait(), Datas{});
}

TEST(EpollSet, EdgeTriggeredReportsEachEdgeOnce) {
  Fake a;
  Set set;
  a.readable();
  ASSERT_EQ(set.add(a.fd, EPOLLIN | EPOLLET, 1), 0);
  EXPECT_EQ(set.wait(), Datas{1});
  EXPECT_EQ(set.wait(), Datas{});
  a.readable();
  EXPECT_EQ(set.wait(), Datas{1});
  ASSERT_EQ(set.modify(a.fd, EPOLLIN | EPOLLET, 2), 0);  // asks anew
  EXPECT_EQ(set.wait(), Datas{2});
  EXPECT_EQ(set.wait(), Datas{});
}

TEST(EpollSet, OneshotDisarmsUntilModified) {
  Fake a;
  Set set;
  a.readable();
  ASSERT_EQ(set.add(a.fd, EPOLLIN | EPOLLONESHOT, 1), 0);
  EXPECT_EQ(set.wait(), Datas{1});
  a.become(EPOLLERR, kError);
  EXPECT_EQ(set.wait(), Datas{});
  ASSERT_EQ(set.modify(a.fd, EPOLLIN | EPOLLONESHOT, 2), 0);
  EXPECT_EQ(set.wait(), Datas{2});
}

TEST(EpollSet, ErrorsAndHangUpsNeedNotBeAskedFor) {
  Fake a;
  Set set;
  ASSERT_EQ(set.add(a.fd, 0, 1), 0);
  a.readable();
  EXPECT_EQ(set.wait(), Datas{});
  a.become(EPOLLHUP | EPOLLERR, kHangUp | kError);
  EXPECT_EQ(set.wait(), Datas{1});
  EXPECT_EQ(set.last_events, static_cast<uint32_t>(EPOLLHUP | EPOLLERR));
}

TEST(EpollSet, RefusesAsTheKernelDoes) {
  Fake a;
  Set set, other;
  EXPECT_EQ(set.modify(a.fd, EPOLLIN, 0), -1);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(set.remove(a.fd), -1);
  EXPECT_EQ(errno, ENOENT);
  ASSERT_EQ(set.add(a.fd, EPOLLIN, 0), 0);
  EXPECT_EQ(set.add(a.fd, EPOLLIN, 0), -1);
  EXPECT_EQ(errno, EEXIST);
  EXPECT_EQ(set.add(set.fd, EPOLLIN, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(set.modify(a.fd, EPOLLIN | EPOLLEXCLUSIVE, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(set.add(other.fd, EPOLLIN | EPOLLEXCLUSIVE, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(to_libc(posix::epoll_ctl(set.fd, EPOLL_CTL_ADD, a.fd, nullptr)), -1);
  EXPECT_EQ(errno, EFAULT);
  epoll_event event{};
  EXPECT_EQ(to_libc(posix::epoll_ctl(a.fd, EPOLL_CTL_ADD, a.fd, &event)), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(to_libc(posix::epoll_ctl(-1, EPOLL_CTL_ADD, a.fd, &event)), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(to_libc(posix::epoll_wait(set.fd, &event, 0, nullptr, nullptr)), -1);
  EXPECT_EQ(errno, EINVAL);
  a.readable();
  void* page = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_EQ(to_libc(posix::epoll_wait(set.fd, static_cast<epoll_event*>(page), 1, nullptr, nullptr)), -1);
  EXPECT_EQ(errno, EFAULT);
  munmap(page, 4096);
}

TEST(EpollSet, NestingHasNoLoopsAndTheKernelsDepth) {
  Fake a;
  Set one, two;
  ASSERT_EQ(one.add(a.fd, EPOLLIN, 1), 0);
  ASSERT_EQ(two.add(one.fd, EPOLLIN, 2), 0);
  EXPECT_EQ(one.add(two.fd, EPOLLIN, 3), -1);
  EXPECT_EQ(errno, ELOOP);
}

TEST(EpollSet, NestedSetIsReadyWhenItsMembersAre) {
  Fake a;
  ReadableEventfd kernel;
  Set inner, outer;
  ASSERT_EQ(inner.add(a.fd, EPOLLIN, 1), 0);
  ASSERT_EQ(outer.add(inner.fd, EPOLLIN, 2), 0);
  EXPECT_EQ(outer.wait(), Datas{});
  a.readable();
  EXPECT_EQ(outer.wait(), Datas{2});
  EXPECT_EQ(inner.wait(), Datas{1});
  a.idle();
  EXPECT_EQ(outer.wait(), Datas{});
  ASSERT_EQ(inner.add(kernel.fd, EPOLLIN, 3), 0);
  EXPECT_EQ(outer.wait(), Datas{2});
  EXPECT_EQ(inner.wait(), Datas{3});
}

TEST(EpollSet, EveryDuplicateCanBeAMember) {
  Fake a;
  Set set;
  const int copy = a.duplicate();
  ASSERT_EQ(set.add(a.fd, EPOLLIN, 1), 0);
  ASSERT_EQ(set.add(copy, EPOLLIN, 2), 0);
  a.readable();
  EXPECT_EQ(set.wait().size(), 2u);
  a.close_duplicate(copy);
  EXPECT_EQ(set.wait().size(), 2u);  // the file lives: epoll(7), question 6
  a.close();
  EXPECT_EQ(a.closes, 1);
  EXPECT_EQ(set.wait(), Datas{});
}

TEST(EpollSet, ClosingTheSetLeavesItsMembersAlone) {
  Fake a;
  {
    Set set;
    ASSERT_EQ(set.add(a.fd, EPOLLIN, 1), 0);
  }
  EXPECT_EQ(a.file->watches, nullptr);
  a.readable();
}

TEST(EpollSet, KernelAndOursShareWhatFits) {
  Fake a, b;
  ReadableEventfd c, d;
  Set set;
  ASSERT_EQ(set.add(a.fd, EPOLLIN, 1), 0);
  ASSERT_EQ(set.add(b.fd, EPOLLIN, 2), 0);
  ASSERT_EQ(set.add(c.fd, EPOLLIN, 3), 0);
  ASSERT_EQ(set.add(d.fd, EPOLLIN, 4), 0);
  a.readable();
  b.readable();
  EXPECT_EQ(set.wait(0, 16).size(), 4u);
  for (int room = 1; room <= 3; ++room) {
    std::vector<int> seen(5, 0);
    for (int i = 0; i < 400; ++i) {
      const Datas datas = set.wait(0, room);
      EXPECT_EQ(datas.size(), static_cast<size_t>(room));
      for (uint64_t data : datas) ++seen[data];
    }
    for (int i = 1; i <= 4; ++i)
      EXPECT_GT(seen[static_cast<size_t>(i)], 50) << i << " with room for " << room;
  }
}

TEST(EpollSet, ShadowsEventsAreTheItems) {
  Fake a;
  Set set;
  a.file->shadow = a.fd;
  ASSERT_EQ(set.add(a.fd, EPOLLIN, 7), 0);
  EXPECT_EQ(set.wait(), Datas{});
  a.signal_shadow();
  EXPECT_EQ(set.wait(), Datas{7});
  a.readable();
  EXPECT_EQ(set.wait(), Datas{7});  // one event, not two
  ASSERT_EQ(set.modify(a.fd, EPOLLIN | EPOLLONESHOT, 8), 0);
  EXPECT_EQ(set.wait(), Datas{8});
  EXPECT_EQ(set.wait(), Datas{});
  ASSERT_EQ(set.remove(a.fd), 0);
  EXPECT_EQ(set.wait(), Datas{});
}

TEST(EpollSet, ShadowThatAppearsLaterIsWatched) {
  Fake a;
  Set set;
  ASSERT_EQ(set.add(a.fd, EPOLLIN, 7), 0);
  a.signal_shadow();
  EXPECT_EQ(set.wait(), Datas{});
  {
    Guard guard;
    a.file->shadow = a.fd;
    a.file->kernel_fd_changed();
  }
  EXPECT_EQ(set.wait(), Datas{7});
  {
    Guard guard;
    a.file->shadow = -1;
    a.file->kernel_fd_changed();
  }
  EXPECT_EQ(set.wait(), Datas{});
}

TEST(EpollSet, FileThatLeavesForTheKernelStaysAMember) {
  for (const bool with_shadow : {false, true}) {
    Fake a;
    Set set;
    if (with_shadow) a.file->shadow = a.fd;
    ASSERT_EQ(set.add(a.fd, EPOLLIN, 9), 0);
    {
      Guard guard;
      fds.forget(a.file);
    }
    EXPECT_FALSE(fds.owns(a.fd));
    EXPECT_EQ(set.wait(), Datas{});
    a.signal_shadow();
    EXPECT_EQ(set.wait(), Datas{9});
    EXPECT_EQ(set.modify(a.fd, EPOLLIN, 10), 0);
    EXPECT_EQ(set.wait(), Datas{10});
    EXPECT_EQ(set.remove(a.fd), 0);
  }
}

TEST(EpollSet, SleeperInTheRealCallIsWokenByOurs) {
  Fake a;
  Set set;
  std::thread other([&] {
    const EpollSet* s = nullptr;
    for (;;) {  // until it sleeps
      Guard guard;
      s = find_set(set.fd);
      if (s->kernel_waiters > 0 || fds.plain_waits(set.fd) > 0) break;
    }
    ASSERT_EQ(set.add(a.fd, EPOLLIN, 5), 0);
    a.readable();
  });
  EXPECT_EQ(set.wait(-1), Datas{5});
  other.join();
  a.idle();
  EXPECT_EQ(set.wait(1), Datas{});  // and the wake-up is gone
}

TEST(EpollSet, SetFromElsewhereIsTakenOverWithItsMembers) {
  Fake a;
  ReadableEventfd b;
  const int fd = static_cast<int>(syscall(SYS_epoll_create1, EPOLL_CLOEXEC));
  ASSERT_FALSE(fds.owns(fd));
  Set set;
  set.close();
  set.fd = fd;
  ASSERT_EQ(set.add(b.fd, EPOLLIN, 1), 0);
  a.readable();
  ASSERT_EQ(set.add(a.fd, EPOLLIN, 2), 0);
  EXPECT_TRUE(fds.owns(fd));
  EXPECT_EQ(set.wait().size(), 2u);
}

TEST(EpollSet, ExclusiveWakesOneWaiter) {
  Fake a;
  Set one, two;
  ASSERT_EQ(one.add(a.fd, EPOLLIN | EPOLLEXCLUSIVE, 1), 0);
  ASSERT_EQ(two.add(a.fd, EPOLLIN | EPOLLEXCLUSIVE, 2), 0);
  auto item_queued = [](int fd) {
    Guard guard;
    return find_set(fd)->has_ready();
  };
  {
    Guard guard;
    find_set(one.fd)->in_epoll_wait = find_set(two.fd)->in_epoll_wait = 1;  // as if a thread slept on each
  }
  a.readable();
  EXPECT_NE(item_queued(one.fd), item_queued(two.fd));
}

// ---- poll and select ----

int poll_of(std::vector<pollfd>& list, int milliseconds) {
  const timespec limit{milliseconds / 1000, milliseconds % 1000 * 1'000'000L};
  return to_libc(posix::ppoll(list.data(), list.size(), milliseconds < 0 ? nullptr : &limit, nullptr));
}

TEST(Poll, MixesOursAndTheKernels) {
  Fake a;
  ReadableEventfd b;
  std::vector<pollfd> list{
      {a.fd, POLLIN | POLLOUT, 0}, {b.fd, POLLIN, 0}, {-1, POLLIN, 7}, {1 << 19, POLLIN, 0}};
  EXPECT_TRUE(any_owned(list.data(), list.size()));
  a.become(EPOLLOUT | EPOLLHUP, 0);
  EXPECT_EQ(poll_of(list, -1), 3);
  EXPECT_EQ(list[0].revents, POLLOUT | POLLHUP);
  EXPECT_EQ(list[1].revents, POLLIN);
  EXPECT_EQ(list[2].revents, 0);
  EXPECT_EQ(list[3].revents, POLLNVAL);
}

TEST(Poll, WaitsForTimeAndForTheShadow) {
  Fake a;
  std::vector<pollfd> list{{a.fd, POLLIN, 0}};
  EXPECT_EQ(poll_of(list, 0), 0);
  EXPECT_EQ(poll_of(list, 1), 0);
  a.file->shadow = a.fd;
  a.signal_shadow();
  EXPECT_EQ(poll_of(list, -1), 1);
  EXPECT_EQ(list[0].revents, POLLIN);
}

TEST(Poll, SeesASetThroughItsMembers) {
  Fake a;
  Set set;
  ASSERT_EQ(set.add(a.fd, EPOLLIN, 1), 0);
  std::vector<pollfd> list{{set.fd, POLLIN, 0}};
  EXPECT_EQ(poll_of(list, 0), 0);
  std::thread other([&] { a.readable(); });
  EXPECT_EQ(poll_of(list, -1), 1);
  other.join();
  a.idle();
  EXPECT_EQ(poll_of(list, 0), 0);
}

TEST(Poll, ThousandsOfDescriptors) {
  std::vector<Fake> files(300);
  std::vector<ReadableEventfd> kernels(100);
  std::vector<pollfd> list;
  for (const Fake& f : files) list.push_back({f.fd, POLLIN, 0});
  for (const ReadableEventfd& k : kernels) list.push_back({k.fd, POLLIN, 0});
  files[7].readable();
  EXPECT_EQ(poll_of(list, -1), 101);
  EXPECT_EQ(list[7].revents, POLLIN);
}

TEST(Select, LeavesTheReadyBitsAndCountsThem) {
  Fake a, idle;
  ReadableEventfd b;
  fd_set read, write, except;
  FD_ZERO(&read);
  FD_ZERO(&write);
  FD_ZERO(&except);
  FD_SET(a.fd, &read), FD_SET(a.fd, &write), FD_SET(a.fd, &except);
  FD_SET(b.fd, &read), FD_SET(idle.fd, &read), FD_SET(idle.fd, &except);
  const int count = std::max({a.fd, b.fd, idle.fd}) + 1;
  EXPECT_TRUE(any_owned(count, &read, nullptr, nullptr));
  a.become(EPOLLIN | EPOLLOUT, 0);
  timespec left{};
  const timespec limit{100, 0};
  EXPECT_EQ(to_libc(posix::pselect(count, &read, &write, &except, &limit, nullptr, &left)), 3);
  EXPECT_TRUE(FD_ISSET(a.fd, &read) && FD_ISSET(a.fd, &write) && FD_ISSET(b.fd, &read));
  EXPECT_FALSE(FD_ISSET(a.fd, &except) || FD_ISSET(idle.fd, &read) || FD_ISSET(idle.fd, &except));
  EXPECT_GE(left.tv_sec, 1);
}

TEST(Select, RefusesDescriptorsThatAreNotOpen) {
  Fake a;
  fd_set read;
  FD_ZERO(&read);
  const int gone = ::dup(a.fd);
  ::close(gone);
  FD_SET(a.fd, &read), FD_SET(gone, &read);
  const timespec none{};
  EXPECT_EQ(to_libc(posix::pselect(gone + 1, &read, nullptr, nullptr, &none, nullptr, nullptr)), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_TRUE(FD_ISSET(a.fd, &read));  // untouched on failure
  const timespec bad{-1, 0};
  EXPECT_EQ(to_libc(posix::pselect(gone + 1, &read, nullptr, nullptr, &bad, nullptr, nullptr)), -1);
  EXPECT_EQ(errno, EINVAL);
}

}  // namespace
}  // namespace accel::posix
