// The pieces of memory that a message names, beyond some bytes that are done.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace accel::posix {

/// A fault in these is a fault of all of them, as where the kernel fills a buffer.
inline constexpr size_t kCopiedAtOnce = 64 << 10;

inline std::span<uint8_t> bytes_of(const iovec& v) { return {static_cast<uint8_t*>(v.iov_base), v.iov_len}; }

/// Calls visit(bytes) for each piece of the vector beyond the first `skip` bytes, until it returns false.
template <class F>
void for_each_piece(const msghdr& m, size_t skip, F visit) {
  for (size_t i = 0; i < m.msg_iovlen; ++i) {
    const std::span<uint8_t> piece = bytes_of(m.msg_iov[i]);
    const size_t over = std::min(skip, piece.size());
    skip -= over;
    if (over < piece.size() && !visit(piece.subspan(over))) return;
  }
}

/// Whether `check` likes the vector's `most` bytes beyond the first `skip`.
inline bool all_pieces(const msghdr& m, size_t skip, size_t most, bool (*check)(const void*, size_t)) {
  bool good = true;
  for_each_piece(m, skip, [&](std::span<uint8_t> piece) {
    const size_t n = std::min(piece.size(), most);
    most -= n;
    good = check(piece.data(), n);
    return good && most > 0;
  });
  return good;
}

}  // namespace accel::posix
