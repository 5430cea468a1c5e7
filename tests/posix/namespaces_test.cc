// Namespaces that the kernel lets a process with one thread enter only: sandboxes, nsenter's like. The
// programs here have one thread, whatever the library has beside it.
#include <fcntl.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <thread>

#include "posix/echo.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

/// The mount namespace that the process has already.
Fd mounts() { return Fd(open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC)); }

TEST(Namespaces, AUserNamespaceIsMade) {
  for (const bool by_number : {false, true})
    ends_well_in_child([&] {
      Echo far(kProof);
      exchange(far.fd, "before ");
      errno = 0;
      const long made = by_number ? syscall(SYS_unshare, CLONE_NEWUSER) : unshare(CLONE_NEWUSER);
      EXPECT_EQ(made, 0) << strerror(errno);
      exchange(far.fd, "after");
      EXPECT_EQ(far.all(), "before after");
      Echo next;
      exchange(next.fd, "next");
      EXPECT_EQ(next.all(), "next");
    });
}

TEST(Namespaces, MountsAreEntered) {
  for (const int kind : {0, CLONE_NEWNS})
    for (const bool by_number : {false, true})
      ends_well_in_child([&] {
        Echo far(kProof);
        const Fd to = mounts();
        errno = 0;
        const long entered = by_number ? syscall(SYS_setns, static_cast<int>(to), kind) : setns(to, kind);
        EXPECT_EQ(entered, 0) << strerror(errno);
        exchange(far.fd, "after");
        EXPECT_EQ(far.all(), "after");
      });
}

FAR(calls_and_calls_again) {
  const Address to = there(static_cast<uint16_t>(std::stoi(args.at(0))));
  Fd first = connect_to(to);
  for (int i = 0; i < kProof; ++i) write_all(first, "."), read_exactly(first, 1);
  near.word();
  Fd second = connect_to(to);
  write_all(second, "again");
  if (read_exactly(second, 5) != "again") throw std::runtime_error("lost");
}

TEST(Namespaces, AListenerGoesOn) {
  ends_well_in_child([] {
    Fd listener = listen_at(here());
    Far far("calls_and_calls_again", {std::to_string(port_of(listener))});
    Fd first = accept_one(listener);
    for (int i = 0; i < kProof; ++i) write_all(first, read_exactly(first, 1));
    EXPECT_EQ(unshare(CLONE_NEWUSER), 0) << strerror(errno);
    far.say("go");
    Fd second = accept_one(listener);
    write_all(second, read_exactly(second, 5));
    far.finish();
  });
}

// At any moment of the library's own start: while a thread of its own opens ports, ends, or has ended.
TEST(Namespaces, AtAnyMomentOfTheStart) {
  for (int microseconds = 0; microseconds < 40'000; microseconds += 2'000)
    ends_well_in_child([&] {
      Echo far(kProof);
      usleep(static_cast<useconds_t>(microseconds));
      EXPECT_EQ(unshare(CLONE_NEWUSER), 0) << strerror(errno);
      exchange(far.fd, "after");
      EXPECT_EQ(far.all(), "after");
    });
}

TEST(Namespaces, ARefusalChangesNothing) {
  Echo far;
  exchange(far.fd, "before ");
  EXPECT_EQ(setns(-1, 0), -1);
  EXPECT_EQ(errno, EBADF);
  const Fd to = mounts();
  EXPECT_EQ(setns(to, CLONE_NEWUSER), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(unshare(1), -1);
  EXPECT_EQ(errno, EINVAL);
  std::atomic<bool> over{false};
  std::thread other([&] { over.wait(false); });
  EXPECT_EQ(unshare(CLONE_NEWUSER), -1);  // of two threads
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(setns(to, CLONE_NEWNS), -1);
  EXPECT_EQ(errno, EINVAL);
  over = true;
  over.notify_all();
  other.join();
  for (int i = 0; i < kProof; ++i) exchange(far.fd, ".");
  exchange(far.fd, "after");
  far.all();
}

}  // namespace
