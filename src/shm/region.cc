#include "shm/region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/real.h"

namespace accel::shm {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace

Mapping::~Mapping() {
  if (memory_ != nullptr) munmap(memory_, kHeader + 2 * ring_);
}

Result<void> Mapping::map(int fd, size_t ring) {
  void* const memory =
      mmap(nullptr, kHeader + 2 * ring, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (memory == MAP_FAILED) return err(errno);
  memory_ = memory;
  ring_ = ring;
  return {};
}

Result<int> Mapping::make(size_t ring) {
  const int fd = memfd_create("libaccel", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return err(errno);
  Result<void> made = err(EIO);
  if (ftruncate(fd, static_cast<off_t>(kHeader + 2 * ring)) == 0 && fcntl(fd, F_ADD_SEALS, kSeals) == 0)
    made = map(fd, ring);
  if (made) return fd;
  real.close(fd);
  return made.error();
}

void Mapping::give_back(std::span<uint8_t> pages) {
  if (!pages.empty()) (void)madvise(pages.data(), pages.size(), MADV_REMOVE);
}

Result<void> Mapping::take(int fd, size_t most) {
  struct stat file {};
  // Huge pages can be missing when they are touched.
  if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode) || file.st_blksize != sysconf(_SC_PAGESIZE))
    return err(EINVAL);
  if ((fcntl(fd, F_GET_SEALS) & kSeals) != kSeals) return err(EINVAL);
  const auto size = static_cast<uint64_t>(file.st_size);
  const uint64_t ring = size > kHeader ? (size - kHeader) / 2 : 0;
  if (size != kHeader + 2 * ring || !is_ring_size(ring) || ring > most) return err(EINVAL);
  return map(fd, ring);
}

}  // namespace accel::shm
