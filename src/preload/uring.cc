// io_uring. liburing makes its system calls itself, so its own entry points are where we see what a program
// asks of a ring. A ring of a layout that is not known makes the kernel serve all sockets of the process
// (posix::io_uring_used()). ring_calls.cc: rings that are made without liburing.
#include <liburing.h>

#include "preload/preload.h"
#include "preload/ring_entries.h"

using namespace accel;           // NOLINT
using namespace accel::preload;  // NOLINT

namespace {

void used() {
  if (on()) served([] { posix::io_uring_used(); });
}

void before_submission(const io_uring* ring) {
  constexpr unsigned kLayoutKnown = (1u << 19) - 1;  // flags up to IORING_SETUP_CQE_MIXED
  // Nor can be seen in time what a thread of the kernel's takes.
  if ((ring->flags & ~kLayoutKnown) != 0 || (ring->flags & IORING_SETUP_SQPOLL) != 0) return used();
  const io_uring_sq& sq = ring->sq;
  // liburing's own entries, of which sqe_head is the first that it has not shown to the kernel.
  const PendingEntries queue{sq.sqes, nullptr, *sq.kring_mask, *sq.kring_mask + 1,
                             (ring->flags & IORING_SETUP_SQE128) != 0 ? 1u : 0u};
  before_entries(queue, sq.sqe_head, sq.sqe_tail);
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
  used();  // its io_uring_enter() is not seen
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
