// A small io_uring, by liburing.
#pragma once

#include <liburing.h>

namespace posix_test {

struct Ring {
  Ring() : status(io_uring_queue_init(8, &ring, 0)) {}
  ~Ring() {
    if (made()) io_uring_queue_exit(&ring);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  /// ENOSYS, EPERM: this kernel or sandbox has none.
  bool made() const { return status == 0; }
  io_uring_sqe* next() { return io_uring_get_sqe(&ring); }
  /// What the next request to end has come to.
  int answer() {
    io_uring_cqe* cqe = nullptr;
    if (const int failed = io_uring_wait_cqe(&ring, &cqe); failed != 0) return failed;
    const int result = cqe->res;
    io_uring_cqe_seen(&ring, cqe);
    return result;
  }
  io_uring ring{};
  int status;
};

}  // namespace posix_test
