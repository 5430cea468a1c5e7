// What tests/posix/refused_memory_test.cc tells the library that it runs with (refusing_memory.cc): a file
// that both map, named by ACCEL_TEST_REFUSAL.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>

namespace posix_test {

struct Refusal {
  std::atomic<uint64_t> seen;   ///< allocations since it was set to 0
  std::atomic<uint64_t> from;   ///< the first that is refused, counted from 0
  std::atomic<uint64_t> count;  ///< how many are

  bool next() {
    const uint64_t number = seen.fetch_add(1);
    const uint64_t first = from.load();
    return number >= first && number - first < count.load();
  }
};

/// nullptr: the variable is not set, or the file cannot be mapped.
inline Refusal* map_refusal() {
  const char* path = getenv("ACCEL_TEST_REFUSAL");
  const int fd = path != nullptr ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0) return nullptr;
  void* page = mmap(nullptr, sizeof(Refusal), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  return page == MAP_FAILED ? nullptr : static_cast<Refusal*>(page);
}

}  // namespace posix_test
