// Descriptors of the library's threads that no other thread sees.
#include "base/own_table.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <thread>

namespace accel {
namespace {

std::array<char, 64 << 10> second_stack;

template <class F>
void on_library_thread(F work) {
  std::thread([&] {
    begin_own_tables(second_stack.data(), second_stack.size());
    work();
  }).join();
}

TEST(OwnTable, IsEmptyAndItsDescriptorsAreNobodyElses) {
  on_library_thread([] {
    int opened = -1, standard = 0, error = 0;
    errno = EILSEQ;
    in_own_table([&] {
      standard = fcntl(STDERR_FILENO, F_GETFD);
      error = errno;
      opened = open("/dev/null", O_RDONLY);
    });
    EXPECT_EQ(errno, EILSEQ);
    EXPECT_EQ(standard, -1);
    EXPECT_EQ(error, EBADF);
    EXPECT_EQ(opened, 0);
    EXPECT_NE(fcntl(STDERR_FILENO, F_GETFD), -1);
  });
}

TEST(OwnTable, Nests) {
  on_library_thread([] {
    int first = -1, second = -1;
    in_own_table([&] {
      first = open("/dev/null", O_RDONLY);
      in_own_table([&] { second = open("/dev/null", O_RDONLY); });
    });
    EXPECT_EQ(first, 0);
    EXPECT_EQ(second, 1);
  });
}

TEST(OwnTable, OtherThreadsHaveNone) {
  int standard = -1;
  in_own_table([&] { standard = fcntl(STDERR_FILENO, F_GETFD); });
  EXPECT_NE(standard, -1);
}

void* open_often(void*) {
  begin_own_tables(second_stack.data(), second_stack.size());
  for (int i = 0; i < 5000; ++i) in_own_table([] { close(open("/dev/null", O_RDONLY)); });
  return nullptr;
}

// Where both open in the same table 1445 of these 50 000 numbers were others. A std::thread has virtual
// functions, and UndefinedBehaviorSanitizer opens pipes to check those.
TEST(OwnTable, LeavesAProgramItsNextNumber) {
  pthread_t library;
  ASSERT_EQ(pthread_create(&library, nullptr, open_often, nullptr), 0);
  int other = 0;
  for (int i = 0; i < 50'000; ++i) {
    const int fd = open("/dev/null", O_RDONLY);
    close(fd);
    const int again = open("/dev/null", O_RDONLY);
    other += again != fd;
    close(again);
  }
  pthread_join(library, nullptr);
  EXPECT_EQ(other, 0);
}

}  // namespace
}  // namespace accel
