#include "engine/frame_region.h"

#include <sys/mman.h>

namespace accel {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

FrameRegion::~FrameRegion() {
  if (start_) munmap(start_, size_);
}

void FrameRegion::empty() { madvise(start_, size_, MADV_REMOVE); }

Result<void> FrameRegion::map(size_t bytes, bool huge) {
  const size_t size = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  const int flags = MAP_SHARED | MAP_ANONYMOUS;
  void* memory = MAP_FAILED;
  if (huge) memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags | MAP_HUGETLB, -1, 0);
  huge_ = memory != MAP_FAILED;
  if (!huge_) memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return err(errno);
  // A child has no use for it: it would only keep the pages alive beyond the parent.
  madvise(memory, size, MADV_DONTFORK);
  start_ = static_cast<uint8_t*>(memory);
  size_ = size;
  return {};
}

}  // namespace accel
