// The library's own calls (include/accel.h). A program that does not make them pays nothing for them.
#define ACCEL_BUILD
#include "posix/api.h"

#include <accel.h>
#include <limits.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstring>

#include "base/user_memory.h"
#include "posix/lease.h"
#include "preload/preload.h"

using namespace accel;           // NOLINT
using namespace accel::preload;  // NOLINT

static_assert(ACCEL_PATH_UNDECIDED == static_cast<int>(PathKind::kUndecided));
static_assert(ACCEL_PATH_KERNEL == static_cast<int>(PathKind::kKernel));
static_assert(ACCEL_PATH_XDP == static_cast<int>(PathKind::kXdp));
static_assert(ACCEL_PATH_MLX5 == static_cast<int>(PathKind::kMlx5));
static_assert(ACCEL_PATH_IWARP == static_cast<int>(PathKind::kIwarp));
static_assert(ACCEL_PATH_SHM == static_cast<int>(PathKind::kShm));

namespace {

/// Sizes of the structures' first versions.
constexpr uint32_t kInfoSize = 136;
static_assert(sizeof(accel_info) == kInfoSize);
constexpr uint32_t kLeaseSize = 16;
static_assert(sizeof(accel_lease) == kLeaseSize);

/// user_memory.h's checks need their handler, which comes with the table of descriptors. Without it the
/// kernel looks at both ends of what is shorter than a page.
bool kernel_reads(const void* at) {
  return real.syscall(SYS_rt_sigprocmask, -1L, reinterpret_cast<long>(at), 0L, long{sizeof(uint64_t)}, 0L,
                      0L) == 0 ||
         errno != EFAULT;
}
bool kernel_writes(void* at) {
  return real.syscall(SYS_rt_sigprocmask, 0L, 0L, reinterpret_cast<long>(at), long{sizeof(uint64_t)}, 0L,
                      0L) == 0;
}
bool takes(void* to, size_t size) {
  if (posix::fds.size() != 0) return can_overwrite(to, size);
  return kernel_writes(to) && kernel_writes(static_cast<char*>(to) + size - sizeof(uint64_t));
}

Result<void> query(int fd, accel_info* info) {
  uint32_t size = 0;
  if (posix::fds.size() == 0 && !kernel_reads(info)) return err(EFAULT);
  if (!get_user(size, info)) return err(EFAULT);
  if (size < kInfoSize) return err(EINVAL);
  const Result<posix::Description> known = posix::describe(fd, !on());
  if (!known) return known.error();
  accel_info answer{};
  answer.path = static_cast<uint32_t>(known->path);
  answer.ifindex = known->ifindex;
  if (known->listens) answer.flags |= ACCEL_INFO_LISTENS;
  if (known->lends) answer.flags |= ACCEL_INFO_LEASES;
  answer.path_name = known->path_name;
  answer.reason = known->reason;
  answer.text = known->text;
  std::memcpy(answer.detail, known->detail.data(), std::min(known->detail.size(), sizeof answer.detail - 1));
  answer.size = std::min<uint32_t>(size, sizeof answer);
  if (!takes(info, answer.size)) return err(EFAULT);
  std::memcpy(info, &answer, answer.size);
  return {};
}

Result<ssize_t> receive_lease(int fd, accel_lease* lease, posix::LeaseCall call) {
  uint32_t size = 0;
  if (posix::fds.size() == 0 && !kernel_reads(lease)) return err(EFAULT);
  if (!get_user(size, lease)) return err(EFAULT);
  if (size < kLeaseSize) return err(EINVAL);
  if (!takes(lease, kLeaseSize)) return err(EFAULT);
  *lease = {size, 0, 0};
  socklen_t length = 0;
  if (call.from != nullptr && posix::fds.size() != 0 && !get_user(length, call.from_length))
    return err(EFAULT);
  if (static_cast<int>(length) < 0) return err(EINVAL);
  const Result<ssize_t> got = posix::receive_lease(fd, call);
  *lease = {got ? kLeaseSize : size, call.buffers, call.number};
  return got;
}

}  // namespace

int accel_query(int fd, accel_info* info) {
  return served([=] { return to_libc(query(fd, info)); });
}

ssize_t accel_recv_lease(int fd, accel_lease* lease, iovec* vector, size_t room, int flags, sockaddr* from,
                         socklen_t* from_length) {
  const auto most = static_cast<uint32_t>(std::min<size_t>(room, IOV_MAX));
  return served<true>([=] {
    return to_libc(receive_lease(fd, lease, {vector, most, flags, from, from_length}));
  });
}

int accel_release(uint64_t id) {
  if (id == 0) return 0;
  return served([=] { return to_libc(posix::release_lease(id)); });
}

int accel_set_thread_spin(int microseconds) {
  if (microseconds < ACCEL_SPIN_DEFAULT || microseconds > ACCEL_SPIN_MOST) {
    errno = EINVAL;
    return -1;
  }
  posix::set_thread_spin(microseconds);
  return 0;
}

int accel_thread_spin() { return posix::thread_spin(); }
