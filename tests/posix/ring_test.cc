// A program that reads and writes its files by io_uring, as database servers do: its sockets stay what they
// are.
#include "posix/ring.h"

#include <fcntl.h>
#include <unistd.h>

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

}  // namespace
