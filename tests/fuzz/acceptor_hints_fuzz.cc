// Any bytes as the page on which processes of several users note that they wait, while another thread goes on
// writing: the process reads and writes nothing else, and each call ends.
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "posix/acceptor_hints.h"

namespace {

struct SharedPage {
  uint8_t* bytes;
  size_t size;
};

void keep_writing(SharedPage page) {
  for (uint32_t n = 0;; ++n) {
    auto* word = reinterpret_cast<uint32_t*>(page.bytes) + n % (page.size / sizeof(uint32_t));
    std::atomic_ref(*word).store((n & 1) != 0 ? n * 2654435761u : 0, std::memory_order_relaxed);
  }
}

SharedPage share() {
  if (accel::posix::share_acceptor_hints() != 0) abort();
  const int fd = accel::posix::acceptor_hints_memfd(0);
  struct stat s {};
  if (fstat(fd, &s) != 0) abort();
  const auto size = static_cast<size_t>(s.st_size);
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) abort();
  return {static_cast<uint8_t*>(memory), size};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace accel::posix;
  static const SharedPage page = share();
  static std::once_flag once;
  if (size == 0) return 0;
  std::memcpy(page.bytes, data, std::min(size, page.size));
  // Half of the runs stand still until the writer starts, once, for ever.
  if (data[0] % 2 == 0) std::call_once(once, [] { std::thread(keep_writing, page).detach(); });
  (void)others_wait_for_connections();
  {
    const AcceptorHint waits(true);
    const TimeoutLock turn(0);
    (void)others_wait_for_connections(0);
    (void)turn.granted();
  }
  if (data[size - 1] % 4 == 0) acceptor_hints_after_fork_in_child();
  return 0;
}
