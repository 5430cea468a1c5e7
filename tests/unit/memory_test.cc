// base/memory.h: blocks of every size and alignment, threads, signals that arrive inside, and a fork.
#include "base/memory.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "base/put_off_signals.h"

namespace accel::memory {
namespace {

TEST(Memory, BlocksAreApartAndAligned) {
  struct Block {
    uint8_t* at;
    size_t size;
    uint8_t mark;
  };
  std::vector<Block> blocks;
  uint32_t random = 1;
  auto check_and_release = [](const Block& b) {
    for (size_t i : {size_t{0}, b.size / 2, b.size - 1}) ASSERT_EQ(b.at[i], b.mark);
    release(b.at);
  };
  for (int i = 0; i < 20000; ++i) {
    random = random * 1664525 + 1013904223;
    if (blocks.size() > 200) {
      Block& b = blocks[random % blocks.size()];
      check_and_release(b);
      std::swap(b, blocks.back());
      blocks.pop_back();
    }
    const size_t size = 1 + (random >> 8) % (i % 100 == 0 ? 3000000 : i % 10 == 0 ? 70000 : 700);
    const size_t alignment = size_t{1} << (4 + (random >> 4) % 9);
    auto* at = static_cast<uint8_t*>(allocate(size, alignment));
    ASSERT_NE(at, nullptr);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(at) % alignment, 0u) << size;
    const auto mark = static_cast<uint8_t>(i);
    memset(at, mark, size);
    blocks.push_back({at, size, mark});
  }
  for (const Block& b : blocks) check_and_release(b);
}

TEST(Memory, IsUsedAgain) {
  void* first = allocate(100, 16);
  release(first);
  EXPECT_EQ(allocate(100, 16), first);
  release(first);
}

TEST(Memory, ReleasesWhatIsLibcs) {
  release(malloc(100));
  release(nullptr);
  void* huge = allocate(size_t{100} << 20, 16);  // more than a chunk
  ASSERT_NE(huge, nullptr);
  release(huge);
}

/// In a child with so much more of a data segment than it has.
int with_data_limit(rlim_t more, int (*body)()) {
  const pid_t child = fork();
  if (child == 0) {
    long kib = 0;
    FILE* file = fopen("/proc/self/status", "re");
    char line[256];
    while (file != nullptr && fgets(line, sizeof line, file) != nullptr)
      if (sscanf(line, "VmData: %ld", &kib) == 1) break;
    const rlimit data{static_cast<rlim_t>(kib) * 1024 + more, static_cast<rlim_t>(kib) * 1024 + more};
    setrlimit(RLIMIT_DATA, &data);
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Memory, KeepsAReserveForWhatMayNotBeRefused) {
  EXPECT_EQ(with_data_limit(4 << 20,
                            [] {
                              size_t tried = 0;
                              while (try_allocate(4000, 16) != nullptr)
                                if (++tried == 10000) return 1;
                              // Of many sizes, and one as a container of some ten thousand elements has.
                              for (size_t size = 16; size < 1000; size += 64)
                                if (allocate(size, 16) == nullptr) return 2;
                              if (allocate(200000, 16) == nullptr) return 3;
                              return 0;
                            }),
            0);
}

TEST(Memory, TheReserveComesBack) {
  EXPECT_EQ(with_data_limit(4 << 20,
                            [] {
                              void* last = nullptr;
                              while (void* block = try_allocate(300000, 16)) last = block;
                              if (last == nullptr) return 1;
                              const rlimit none{RLIM_INFINITY, RLIM_INFINITY};
                              release(last);
                              if (try_allocate(300000, 16) != last) return 2;
                              if (setrlimit(RLIMIT_DATA, &none) != 0) return 0;  // without privilege
                              return try_allocate(300000, 16) != nullptr ? 0 : 3;
                            }),
            0);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they take address space without bounds

// A process of its own: the library has no memory yet.
TEST(Memory, DISABLED_InLittleAddressSpace) {
  size_t blocks = 0;
  while (try_allocate(4000, 16) != nullptr) ASSERT_LT(++blocks, 100000u);
  EXPECT_GT(blocks, 1000u);
  void* of_the_program = mmap(nullptr, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(of_the_program, MAP_FAILED);
  munmap(of_the_program, 8 << 20);
  EXPECT_NE(allocate(200000, 16), nullptr);  // the reserve
}

TEST(Memory, LeavesAddressSpaceToTheProgram) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit space{90 << 20, 90 << 20};
    setrlimit(RLIMIT_AS, &space);
    execl("/proc/self/exe", "memory_test", "--gtest_also_run_disabled_tests",
          "--gtest_filter=*InLittleAddressSpace", nullptr);
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

#endif

TEST(Memory, IsForManyThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([t] {
      for (int i = 0; i < 20000; ++i) {
        auto* a = static_cast<uint8_t*>(allocate(64, 16));
        auto* b = static_cast<uint8_t*>(allocate(64, 16));
        *a = static_cast<uint8_t>(t);
        *b = static_cast<uint8_t>(t + 1);
        ASSERT_EQ(*a, t);
        release(a);
        release(b);
      }
    });
  for (std::thread& t : threads) t.join();
}

// Held, as around fork(): signals that are put off run at the end, and memory is libc's meanwhile.
TEST(Memory, AdmitsSignalsAtItsEnd) {
  static int told;
  told = 0;
  struct sigaction action {
  }, before{};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = [](int number, siginfo_t* info, void* context) {
    if (!signal_brackets.inside() || !put_off_signal(number, info, context)) ++told;
  };
  sigaction(SIGUSR1, &action, &before);
  hold();
  EXPECT_TRUE(signal_brackets.memory);
  void* libcs = allocate(100, 16);
  raise(SIGUSR1);
  EXPECT_EQ(told, 0);
  let_go();
  EXPECT_FALSE(signal_brackets.memory);
  EXPECT_EQ(told, 1);
  release(libcs);
  release(allocate(100, 16));
  EXPECT_EQ(told, 1);
  sigaction(SIGUSR1, &before, nullptr);
}

TEST(Memory, OfAForkedChildIsUsable) {
  std::atomic<bool> over{false};
  std::thread busy([&] {
    while (!over) release(allocate(64, 16));
  });
  for (int i = 0; i < 50; ++i) {
    hold();
    const pid_t child = fork();
    let_go();
    if (child == 0) {
      alarm(20);
      release(allocate(64, 16));
      _exit(0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
  }
  over = true;
  busy.join();
}

}  // namespace
}  // namespace accel::memory
