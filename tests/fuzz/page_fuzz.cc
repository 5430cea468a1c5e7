// Any bytes as a statistics page, while another thread goes on writing its numbers: nothing is read outside
// of it.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tools/page_copy.h"

namespace {

using accel::stats::Page;

/// At the very end of what is mapped.
Page* make_page() {
  void* memory =
      mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) abort();
  return static_cast<Page*>(memory);
}

/// The fixed part is short; rows and ports take turns with sizes that are beyond.
void keep_writing(Page* page) {
  for (uint32_t n = 0;; ++n) {
    std::atomic_ref(page->rows).store((n & 1) != 0 ? ~0u : n % 4, std::memory_order_relaxed);
    std::atomic_ref(page->ports).store((n & 1) != 0 ? ~0u : n % 4, std::memory_order_relaxed);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Page* const page = [] {
    Page* made = make_page();
    std::thread(keep_writing, made).detach();
    return made;
  }();
  std::memcpy(static_cast<void*>(page), data, std::min(size, offsetof(Page, row)));
  if ((page->sequence.load() & 1) != 0) page->sequence.store(0);  // a hundred milliseconds of patience
  accel::tools::ProcessStats into;
  accel::tools::copy_facts(*page, into);
  (void)accel::tools::copy_answer(*page, into);
  if (into.sockets.size() > accel::stats::kMaxRows || into.ports.size() > accel::stats::kMaxPorts) abort();
  return 0;
}
