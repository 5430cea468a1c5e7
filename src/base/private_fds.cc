#include "base/private_fds.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/real.h"

namespace accel {
namespace {

/// As many as FdTable has; of zero bytes, so that only the touched pages exist.
constexpr size_t kMostDescriptors = 1u << 20;
constexpr size_t kBits = 64;
constexpr int kHigh = 960;
std::array<std::atomic<uint64_t>, kMostDescriptors / kBits> kept;

thread_local int making [[gnu::tls_model("initial-exec")]] = 0;

}  // namespace

MakingPrivate::MakingPrivate() { ++making; }
MakingPrivate::~MakingPrivate() { --making; }
bool MakingPrivate::now() { return making > 0; }

void note_private(int fd, bool open) {
  const auto n = static_cast<size_t>(fd);
  if (fd < 0 || n >= kMostDescriptors) return;
  const uint64_t bit = uint64_t{1} << (n % kBits);
  open ? kept[n / kBits].fetch_or(bit) : kept[n / kBits].fetch_and(~bit);
}

bool is_private(int fd) {
  const auto n = static_cast<size_t>(fd);
  return fd >= 0 && n < kMostDescriptors &&
         (kept[n / kBits].load(std::memory_order_relaxed) >> (n % kBits) & 1) != 0;
}

int move_high(int fd) {
  if (fd < 0) return fd;
  const int high = real.fcntl(fd, F_DUPFD_CLOEXEC, kHigh);
  if (high < 0) return fd;
  real.close(fd);
  return high;
}

int keep_private(int fd) {
  fd = move_high(fd);
  note_private(fd, true);
  return fd;
}

bool is_file(int fd, uint64_t device, uint64_t inode) {
  struct stat now {};
  return fd >= 0 && real.fstat(fd, &now) == 0 && now.st_dev == device && now.st_ino == inode;
}

void close_private(int fd) {
  note_private(fd, false);
  real.close(fd);
}

}  // namespace accel
