// io_uring. liburing makes its system calls itself, so its own entry points are where we see what a program
// asks of a ring. A ring is for files until a request of it may be for something else: then all sockets of
// the process are the kernel's (posix::io_uring_used()). Into a ring that was made without liburing nobody
// can look; that is for anything from its start.
#include <liburing.h>

#include "preload/preload.h"

using namespace accel;           // NOLINT
using namespace accel::preload;  // NOLINT

namespace {

void used() {
  if (on()) deferred([] { posix::io_uring_used(); });
}

/// Requests that read and write what their descriptor is of, or name files by their paths.
bool for_files(unsigned opcode) {
  switch (opcode) {
    case IORING_OP_NOP:
    case IORING_OP_READ:
    case IORING_OP_READV:
    case IORING_OP_READ_FIXED:
    case IORING_OP_WRITE:
    case IORING_OP_WRITEV:
    case IORING_OP_WRITE_FIXED:
    case IORING_OP_FSYNC:
    case IORING_OP_SYNC_FILE_RANGE:
    case IORING_OP_FALLOCATE:
    case IORING_OP_FADVISE:
    case IORING_OP_MADVISE:
    case IORING_OP_OPENAT:
    case IORING_OP_OPENAT2:
    case IORING_OP_CLOSE:
    case IORING_OP_STATX:
    case IORING_OP_RENAMEAT:
    case IORING_OP_UNLINKAT:
    case IORING_OP_MKDIRAT:
    case IORING_OP_SYMLINKAT:
    case IORING_OP_LINKAT:
    case IORING_OP_POLL_ADD:
    case IORING_OP_POLL_REMOVE:
    case IORING_OP_TIMEOUT:
    case IORING_OP_TIMEOUT_REMOVE:
    case IORING_OP_LINK_TIMEOUT:
    case IORING_OP_ASYNC_CANCEL:
    case IORING_OP_PROVIDE_BUFFERS:
    case IORING_OP_REMOVE_BUFFERS:
      return true;
    default:
      return false;
  }
}

/// What the kernel gets to see with the next submission.
bool pending_are_for_files(const io_uring& ring) {
  constexpr unsigned kLayoutKnown = (1u << 19) - 1;  // flags up to IORING_SETUP_CQE_MIXED
  if ((ring.flags & ~kLayoutKnown) != 0) return false;
  const io_uring_sq& sq = ring.sq;
  const unsigned shift = (ring.flags & IORING_SETUP_SQE128) != 0 ? 1 : 0;
  for (unsigned i = sq.sqe_head; i != sq.sqe_tail; ++i) {
    const io_uring_sqe& request = sq.sqes[(i & *sq.kring_mask) << shift];
    const bool registered = (request.flags & IOSQE_FIXED_FILE) != 0;  // seen when it was
    if (!for_files(request.opcode) || (!registered && request.fd >= 0 && posix::fds.owns(request.fd)))
      return false;
  }
  return true;
}

void before_submission(const io_uring* ring) {
  if (!pending_are_for_files(*ring)) used();
}

void before_registration(const int* files, unsigned count) {
  for (unsigned i = 0; i < count; ++i)
    if (files[i] >= 0 && posix::fds.owns(files[i])) return used();
}

/// liburing answers with a negative errno number.
template <class... Parameters>
class Next {
 public:
  explicit Next(const char* name) : next_(reinterpret_cast<int (*)(Parameters...)>(find_real(name))) {}
  int operator()(Parameters... p) const { return next_ != nullptr ? next_(p...) : -ENOSYS; }

 private:
  int (*next_)(Parameters...);
};

}  // namespace

// ---- rings without liburing's care ----

ACCEL_EXPORT(int, io_uring_setup, (unsigned entries, io_uring_params* parameters)) {
  static const Next<unsigned, io_uring_params*> next("io_uring_setup");
  used();
  return next(entries, parameters);
}

// ---- what submits ----

ACCEL_EXPORT(int, io_uring_submit, (io_uring * ring)) {
  static const Next<io_uring*> next("io_uring_submit");
  before_submission(ring);
  return next(ring);
}
ACCEL_EXPORT(int, io_uring_submit_and_wait, (io_uring * ring, unsigned wait)) {
  static const Next<io_uring*, unsigned> next("io_uring_submit_and_wait");
  before_submission(ring);
  return next(ring, wait);
}
ACCEL_EXPORT(int, io_uring_submit_and_get_events, (io_uring * ring)) {
  static const Next<io_uring*> next("io_uring_submit_and_get_events");
  before_submission(ring);
  return next(ring);
}
ACCEL_EXPORT(int, io_uring_submit_and_wait_timeout,
             (io_uring * ring, io_uring_cqe** cqe, unsigned wait, __kernel_timespec* timeout,
              sigset_t* mask)) {
  static const Next<io_uring*, io_uring_cqe**, unsigned, __kernel_timespec*, sigset_t*> next(
      "io_uring_submit_and_wait_timeout");
  before_submission(ring);
  return next(ring, cqe, wait, timeout, mask);
}
ACCEL_EXPORT(int, io_uring_submit_and_wait_min_timeout,
             (io_uring * ring, io_uring_cqe** cqe, unsigned wait, __kernel_timespec* timeout,
              unsigned min_wait, sigset_t* mask)) {
  static const Next<io_uring*, io_uring_cqe**, unsigned, __kernel_timespec*, unsigned, sigset_t*> next(
      "io_uring_submit_and_wait_min_timeout");
  before_submission(ring);
  return next(ring, cqe, wait, timeout, min_wait, mask);
}
ACCEL_EXPORT(int, io_uring_submit_and_wait_reg,
             (io_uring * ring, io_uring_cqe** cqe, unsigned wait, int index)) {
  static const Next<io_uring*, io_uring_cqe**, unsigned, int> next("io_uring_submit_and_wait_reg");
  before_submission(ring);
  return next(ring, cqe, wait, index);
}
// With a timeout these submit, where the kernel has no better way.
ACCEL_EXPORT(int, io_uring_wait_cqes,
             (io_uring * ring, io_uring_cqe** cqe, unsigned wait, __kernel_timespec* timeout,
              sigset_t* mask)) {
  static const Next<io_uring*, io_uring_cqe**, unsigned, __kernel_timespec*, sigset_t*> next(
      "io_uring_wait_cqes");
  before_submission(ring);
  return next(ring, cqe, wait, timeout, mask);
}
ACCEL_EXPORT(int, io_uring_wait_cqe_timeout,
             (io_uring * ring, io_uring_cqe** cqe, __kernel_timespec* timeout)) {
  static const Next<io_uring*, io_uring_cqe**, __kernel_timespec*> next("io_uring_wait_cqe_timeout");
  before_submission(ring);
  return next(ring, cqe, timeout);
}

// ---- descriptors that requests name by an index ----

ACCEL_EXPORT(int, io_uring_register_files, (io_uring * ring, const int* files, unsigned count)) {
  static const Next<io_uring*, const int*, unsigned> next("io_uring_register_files");
  before_registration(files, count);
  return next(ring, files, count);
}
ACCEL_EXPORT(int, io_uring_register_files_tags,
             (io_uring * ring, const int* files, const __u64* tags, unsigned count)) {
  static const Next<io_uring*, const int*, const __u64*, unsigned> next("io_uring_register_files_tags");
  before_registration(files, count);
  return next(ring, files, tags, count);
}
ACCEL_EXPORT(int, io_uring_register_files_update,
             (io_uring * ring, unsigned offset, const int* files, unsigned count)) {
  static const Next<io_uring*, unsigned, const int*, unsigned> next("io_uring_register_files_update");
  before_registration(files, count);
  return next(ring, offset, files, count);
}
ACCEL_EXPORT(int, io_uring_register_files_update_tag,
             (io_uring * ring, unsigned offset, const int* files, const __u64* tags, unsigned count)) {
  static const Next<io_uring*, unsigned, const int*, const __u64*, unsigned> next(
      "io_uring_register_files_update_tag");
  before_registration(files, count);
  return next(ring, offset, files, tags, count);
}
