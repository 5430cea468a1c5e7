// Programs that use io_uring: for their files, as database servers do, or for epoll_ctl(), as libuv does.
// Their sockets stay what they are, but for those that requests name.
#include "posix/ring.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "posix/echo.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

TEST(Ring, OfFilesLeavesSocketsAlone) {
  Ring ring;
  if (!ring.made()) GTEST_SKIP() << "no io_uring here";
  Echo far(kProof);
  exchange(far.fd, "before ");
  Fd file(open("/tmp", O_TMPFILE | O_RDWR, 0600));
  ASSERT_GE(file, 0);
  const std::string written = pattern(5000);
  std::string read(5000, 0);
  io_uring_prep_write(ring.next(), file, written.data(), 5000, 0);
  ASSERT_EQ(io_uring_submit(&ring.ring), 1);
  EXPECT_EQ(ring.answer(), 5000);
  exchange(far.fd, "between ");
  io_uring_prep_fsync(ring.next(), file, 0);
  ASSERT_EQ(io_uring_submit_and_wait(&ring.ring, 1), 1);
  EXPECT_EQ(ring.answer(), 0);
  const int files[] = {file};
  ASSERT_EQ(io_uring_register_files(&ring.ring, files, 1), 0);
  io_uring_sqe* request = ring.next();
  io_uring_prep_read(request, 0, read.data(), 5000, 0);
  request->flags |= IOSQE_FIXED_FILE;
  ASSERT_EQ(io_uring_submit(&ring.ring), 1);
  EXPECT_EQ(ring.answer(), 5000);
  EXPECT_EQ(read, written);
  exchange(far.fd, "after");
  Echo another;
  exchange(another.fd, "another");
  EXPECT_EQ(another.all(), "another");
  EXPECT_EQ(far.all(), "before between after");
}

/// A ring by system calls alone, as libuv makes it: requests go by syscall(SYS_io_uring_enter).
class BareRing {
 public:
  explicit BareRing(unsigned flags = 0) {
    parameters_.flags = flags;
    parameters_.sq_thread_idle = 1;
    fd_ = Fd(static_cast<int>(syscall(SYS_io_uring_setup, kEntries, &parameters_)));
    if (fd_ < 0) return;
    const auto& p = parameters_;
    ring_size_ = std::max<size_t>(p.sq_off.array + p.sq_entries * sizeof(uint32_t),
                                  p.cq_off.cqes + p.cq_entries * sizeof(io_uring_cqe));
    ring_ = static_cast<char*>(map(ring_size_, IORING_OFF_SQ_RING));
    entries_ = static_cast<io_uring_sqe*>(map(p.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES));
  }
  ~BareRing() {
    if (!made()) return;
    munmap(ring_, ring_size_);
    munmap(entries_, parameters_.sq_entries * sizeof(io_uring_sqe));
  }
  bool made() const { return fd_ >= 0; }
  unsigned flags() const { return parameters_.flags; }
  /// To be filled in; it goes with submit().
  io_uring_sqe& next() {
    uint32_t& tail = *word(parameters_.sq_off.tail);
    const uint32_t at = (tail + fresh_++) & *word(parameters_.sq_off.ring_mask);
    word(parameters_.sq_off.array)[at] = at;
    entries_[at] = {};
    entries_[at].user_data = fresh_;
    return entries_[at];
  }
  void epoll_ctl(int set, int operation, int fd, epoll_event* event) {
    io_uring_sqe& e = next();
    e.opcode = IORING_OP_EPOLL_CTL;
    e.fd = set;
    e.len = static_cast<uint32_t>(operation);
    e.off = static_cast<uint32_t>(fd);
    e.addr = reinterpret_cast<uintptr_t>(event);
  }
  /// The results of what next() gave, in order.
  std::vector<int> submit() {
    const unsigned count = std::exchange(fresh_, 0);
    __atomic_fetch_add(word(parameters_.sq_off.tail), count, __ATOMIC_RELEASE);
    if ((flags() & IORING_SETUP_SQPOLL) == 0) {
      EXPECT_EQ(enter(count, count, IORING_ENTER_GETEVENTS), count);
    } else if (__atomic_load_n(word(parameters_.sq_off.flags), __ATOMIC_SEQ_CST) & IORING_SQ_NEED_WAKEUP) {
      EXPECT_GE(enter(0, 0, IORING_ENTER_SQ_WAKEUP), 0);
    }
    std::vector<int> results(count, -1);
    for (unsigned i = 0; i < count; ++i) {
      uint32_t* head = word(parameters_.cq_off.head);
      while (*head == __atomic_load_n(word(parameters_.cq_off.tail), __ATOMIC_ACQUIRE))
        enter(0, 1, IORING_ENTER_GETEVENTS);
      const auto* cqes = reinterpret_cast<io_uring_cqe*>(ring_ + parameters_.cq_off.cqes);
      const io_uring_cqe& cqe = cqes[*head & *word(parameters_.cq_off.ring_mask)];
      results.at(cqe.user_data - 1) = cqe.res;
      __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    }
    return results;
  }

 private:
  static constexpr unsigned kEntries = 8;
  void* map(size_t size, off_t offset) {
    return mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_, offset);
  }
  uint32_t* word(uint32_t offset) { return reinterpret_cast<uint32_t*>(ring_ + offset); }
  long enter(unsigned submit, unsigned wait, unsigned flags) {
    return syscall(SYS_io_uring_enter, static_cast<int>(fd_), submit, wait, flags, nullptr, 0);
  }
  Fd fd_;
  io_uring_params parameters_{};
  char* ring_ = nullptr;
  size_t ring_size_ = 0;
  io_uring_sqe* entries_ = nullptr;
  unsigned fresh_ = 0;
};

/// io_uring's task work interrupts a thread's waits (TIF_NOTIFY_SIGNAL), on the kernel too.
int wait_for_one(int set, epoll_event& got) {
  int found;
  do found = epoll_wait(set, &got, 1, 20000);
  while (found < 0 && errno == EINTR);
  return found;
}

class EpollByRing : public testing::TestWithParam<unsigned> {};

TEST_P(EpollByRing, IsEpollCtl) {
  BareRing ring(GetParam());
  if (!ring.made()) GTEST_SKIP() << "no io_uring here";
  EXPECT_EQ(ring.flags() & IORING_SETUP_SQPOLL, GetParam());
  Echo far(kProof);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const Fd out(ends[0]), in(ends[1]);
  Fd set(epoll_create1(0));
  epoll_event of_far{EPOLLIN, {.u64 = 7}}, of_pipe{EPOLLIN, {.u64 = 8}}, got{};
  ring.epoll_ctl(set, EPOLL_CTL_ADD, far.fd, &of_far);
  ring.epoll_ctl(set, EPOLL_CTL_ADD, out, &of_pipe);
  ring.epoll_ctl(set, EPOLL_CTL_ADD, far.fd, &of_far);
  ring.epoll_ctl(set, EPOLL_CTL_DEL, in, nullptr);
  ring.epoll_ctl(set, EPOLL_CTL_ADD, set, &of_far);
  ring.epoll_ctl(set, EPOLL_CTL_ADD, 9999, &of_far);
  EXPECT_EQ(ring.submit(), (std::vector<int>{0, 0, -EEXIST, -ENOENT, -EINVAL, -EBADF}));
  for (int i = 0; i < kProof; ++i) {
    write_all(far.fd, "x");
    ASSERT_EQ(wait_for_one(set, got), 1);
    EXPECT_EQ(got.data.u64, 7u);
    EXPECT_EQ(read_exactly(far.fd, 1), "x");
  }
  ASSERT_EQ(write(in, "y", 1), 1);
  ASSERT_EQ(wait_for_one(set, got), 1);
  EXPECT_EQ(got.data.u64, 8u);
  ring.epoll_ctl(set, EPOLL_CTL_DEL, far.fd, nullptr);
  ring.epoll_ctl(set, EPOLL_CTL_DEL, out, nullptr);
  EXPECT_EQ(ring.submit(), (std::vector<int>{0, 0}));
  write_all(far.fd, "z");
  EXPECT_NE(wait_for(far.fd, POLLIN), 0);
  EXPECT_EQ(epoll_wait(set, &got, 1, 0), 0);
  EXPECT_EQ(read_exactly(far.fd, 1), "z");
  far.fd.reset();
  far.word();
  far.finish();
}

INSTANTIATE_TEST_SUITE_P(Kinds, EpollByRing, testing::Values(0u, unsigned{IORING_SETUP_SQPOLL}));

// A ring that receives on one connection: that becomes the kernel's, others do not.
TEST(Ring, ARequestTakesItsSocketAlone) {
  BareRing ring;
  if (!ring.made()) GTEST_SKIP() << "no io_uring here";
  Echo taken, left(kProof);
  exchange(taken.fd, "before ");
  write_all(taken.fd, "abcd");
  EXPECT_NE(wait_for(taken.fd, POLLIN), 0);
  char data[4] = {};
  io_uring_sqe& e = ring.next();
  e.opcode = IORING_OP_RECV;
  e.fd = taken.fd;
  e.addr = reinterpret_cast<uintptr_t>(data);
  e.len = sizeof data;
  e.msg_flags = MSG_WAITALL;
  EXPECT_EQ(ring.submit(), std::vector<int>{4});
  EXPECT_EQ(std::string(data, 4), "abcd");
  for (int i = 0; i < kProof; ++i) exchange(left.fd, ".");
  EXPECT_EQ(taken.all(), "before abcd");
  left.all();
}

}  // namespace
