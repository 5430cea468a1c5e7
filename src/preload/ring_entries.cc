#include "preload/ring_entries.h"

#include <fcntl.h>

#include <cstring>

#include "base/kernel_version.h"
#include "base/real.h"
#include "base/served_call.h"
#include "base/user_memory.h"
#include "posix/calls.h"
#include "posix/file.h"
#include "preload/cancel.h"

#ifndef IORING_NOP_INJECT_RESULT
#define IORING_NOP_INJECT_RESULT 1u  // Linux 6.10
#endif

namespace accel::preload {
namespace {

/// Of newer kernels than the headers.
enum : uint8_t { kSocket = 45, kWaitId = 50, kFutexWait = 51, kFutexWake = 52, kFutexWaitV = 53 };

/// Whether sqe->fd is something else than a descriptor (io_uring/opdef.c and the prep functions).
bool fd_is_none(const io_uring_sqe& e) {
  switch (e.opcode) {
    case IORING_OP_NOP:
    case IORING_OP_TIMEOUT:
    case IORING_OP_TIMEOUT_REMOVE:
    case IORING_OP_LINK_TIMEOUT:
    case IORING_OP_POLL_REMOVE:
    case IORING_OP_FILES_UPDATE:
    case IORING_OP_MADVISE:
    case IORING_OP_PROVIDE_BUFFERS:
    case IORING_OP_REMOVE_BUFFERS:
    case IORING_OP_ASYNC_CANCEL:
    case kSocket:
    case kWaitId:
    case kFutexWait:
    case kFutexWake:
    case kFutexWaitV:
      return true;
    default:
      return (e.flags & IOSQE_FIXED_FILE) != 0;  // seen when it was registered
  }
}

void give_up(int fd) {
  if (fd >= 0 && posix::fds.owns(fd)) served([=] { posix::used_by_ring(fd); });
}

bool nop_takes_result() {
  static const bool takes = kernel_is_at_least(6, 10);
  return takes;
}

/// The request becomes one that does nothing and ends with 0 or -error.
void make_answer(io_uring_sqe& e, int error) {
  io_uring_sqe nop{};
  nop.opcode = IORING_OP_NOP;
  nop.flags = e.flags & ~(IOSQE_FIXED_FILE | IOSQE_BUFFER_SELECT);
  nop.fd = -1;
  nop.personality = e.personality;
  nop.user_data = e.user_data;
  if (error != 0 && nop_takes_result()) {
    nop.rw_flags = IORING_NOP_INJECT_RESULT;
    nop.len = static_cast<uint32_t>(-error);
  } else if (error != 0) {
    // epoll_ctl() calls that fail: a closed number, or with a set inside itself. Other errors end as EINVAL.
    nop.opcode = IORING_OP_EPOLL_CTL;
    nop.fd = error == EBADF ? -1 : e.fd;
    nop.off = static_cast<uint32_t>(nop.fd);
    nop.len = EPOLL_CTL_DEL;
  }
  e = nop;
}

/// io_epoll_ctl_prep(): the set in fd, the operation in len, the member in off, the event's address in addr.
bool serve_epoll_ctl(io_uring_sqe& e) {
  const int set = e.fd, member = static_cast<int>(e.off);
  if ((e.flags & IOSQE_FIXED_FILE) != 0 || e.buf_index != 0 || e.splice_fd_in != 0) return false;  // EINVAL
  if (!posix::fds.owns(set) && !posix::fds.owns(member)) return false;
  auto* event = reinterpret_cast<epoll_event*>(static_cast<uintptr_t>(e.addr));
  const auto done = served(
      [=, operation = static_cast<int>(e.len)] { return posix::epoll_ctl(set, operation, member, event); });
  make_answer(e, done ? 0 : static_cast<int>(done.error()));
  return true;
}

/// Descriptors that an entry names elsewhere than in `fd`.
void look_at_the_rest(const io_uring_sqe& e) {
  switch (e.opcode) {
    case IORING_OP_SPLICE:
    case IORING_OP_TEE:
      if ((e.splice_flags & SPLICE_F_FD_IN_FIXED) == 0) give_up(e.splice_fd_in);
      break;
    case IORING_OP_SENDMSG: {
      const auto* message = reinterpret_cast<const msghdr*>(static_cast<uintptr_t>(e.addr));
      if (posix::active()) (void)served([=] { return posix::before_passing(message); });
      break;
    }
    case IORING_OP_FILES_UPDATE:
      before_registration(reinterpret_cast<const int*>(static_cast<uintptr_t>(e.addr)), e.len);
      break;
    default:
      break;
  }
}

}  // namespace

void before_entries(const PendingEntries& queue, uint32_t head, uint32_t tail) {
  if (!posix::active() || ServedCall::inside() || tail - head > queue.count) return;
  for (; head != tail; ++head) {
    const uint32_t at = queue.order != nullptr ? queue.order[head & queue.mask] : head & queue.mask;
    if (at >= queue.count) continue;  // the kernel drops it
    io_uring_sqe& e = queue.entries[static_cast<size_t>(at) << queue.shift];
    if (e.opcode == IORING_OP_EPOLL_CTL && serve_epoll_ctl(e)) continue;
    if (!fd_is_none(e)) give_up(e.fd);
    look_at_the_rest(e);
  }
}

void before_registration(const int* files, uint64_t count) {
  for (uint64_t i = 0; i < count && can_read(&files[i], sizeof *files); ++i) give_up(files[i]);
}

}  // namespace accel::preload
