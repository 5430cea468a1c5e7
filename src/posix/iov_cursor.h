// A place in an iovec array: what is left of it after some bytes are done.
#pragma once

#include <limits.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <span>

#include "base/result.h"
#include "base/user_memory.h"

namespace accel::posix {

/// The kernel's MAX_RW_COUNT: no call moves more.
constexpr size_t kMostBytes = 0x7ffff000;

/// Total of the vector, cut at MAX_RW_COUNT. Errors: EMSGSIZE (more than IOV_MAX; readv/writev turn it into
/// EINVAL), EINVAL (a negative length), EFAULT.
inline Result<size_t> iov_bytes(const msghdr& m) {
  if (m.msg_iovlen > IOV_MAX) return err(EMSGSIZE);
  if (!can_read(m.msg_iov, m.msg_iovlen * sizeof(iovec))) return err(EFAULT);
  size_t total = 0;
  for (size_t i = 0; i < m.msg_iovlen; ++i) {
    if (static_cast<ssize_t>(m.msg_iov[i].iov_len) < 0) return err(EINVAL);
    if (!in_user_half(m.msg_iov[i].iov_base, m.msg_iov[i].iov_len)) return err(EFAULT);
    total += std::min(m.msg_iov[i].iov_len, kMostBytes - total);
  }
  return total;
}

class IovCursor {
 public:
  explicit IovCursor(std::span<const iovec> all) : rest_(all) {}

  /// What is left, or the beginning of it; valid until advance().
  std::span<const iovec> window() {
    if (skip_ == 0) return rest_;
    const size_t n = std::min(rest_.size(), window_.size());
    std::copy_n(rest_.begin(), n, window_.begin());
    window_[0].iov_base = static_cast<char*>(window_[0].iov_base) + skip_;
    window_[0].iov_len -= skip_;
    return std::span(window_).first(n);
  }
  /// Whether window() is all that is left.
  bool whole() const { return skip_ == 0 || rest_.size() <= window_.size(); }
  void advance(size_t bytes) {
    skip_ += bytes;
    while (!rest_.empty() && skip_ >= rest_.front().iov_len) {
      skip_ -= rest_.front().iov_len;
      rest_ = rest_.subspan(1);
    }
  }

 private:
  std::span<const iovec> rest_;
  size_t skip_ = 0;  ///< bytes of rest_.front() that are done
  std::array<iovec, 16> window_;
};

}  // namespace accel::posix
