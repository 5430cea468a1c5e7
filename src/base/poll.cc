#include "base/poll.h"

#include <errno.h>
#include <fcntl.h>

#include <algorithm>
#include <vector>

#include "base/real.h"

namespace accel {
namespace {

/// An fd_set of any length.
class Bits {
 public:
  Bits(std::span<const pollfd> descriptors, int count, short event)
      : event_(event), words_(static_cast<size_t>(count) / kWord + 1) {
    for (const pollfd& p : descriptors)
      if (p.fd >= 0 && (p.events & event) != 0) word(p.fd) |= bit(p.fd);
  }
  fd_set* raw() { return reinterpret_cast<fd_set*>(words_.data()); }
  short event_of(int fd) { return (word(fd) & bit(fd)) != 0 ? event_ : short{0}; }

 private:
  static constexpr size_t kWord = 8 * sizeof(unsigned long);
  unsigned long& word(int fd) { return words_[static_cast<size_t>(fd) / kWord]; }
  static unsigned long bit(int fd) { return 1UL << (static_cast<size_t>(fd) % kWord); }
  const short event_;
  std::vector<unsigned long> words_;
};

/// select() says EBADF and not of which.
int find_closed(std::span<pollfd> descriptors) {
  int closed = 0;
  for (pollfd& p : descriptors) {
    p.revents = p.fd >= 0 && real.fcntl(p.fd, F_GETFD) < 0 ? POLLNVAL : 0;
    closed += p.revents != 0;
  }
  return closed;
}

int by_select(std::span<pollfd> descriptors, const timespec* timeout, const sigset_t* mask) {
  int count = 0;
  for (const pollfd& p : descriptors) count = std::max(count, p.fd + 1);
  Bits in(descriptors, count, POLLIN), out(descriptors, count, POLLOUT), urgent(descriptors, count, POLLPRI);
  if (real.pselect(count, in.raw(), out.raw(), urgent.raw(), timeout, mask) < 0)
    return errno == EBADF ? find_closed(descriptors) : -1;
  int ready = 0;
  for (pollfd& p : descriptors) {
    p.revents = 0;
    if (p.fd >= 0)
      p.revents = static_cast<short>(in.event_of(p.fd) | out.event_of(p.fd) | urgent.event_of(p.fd));
    ready += p.revents != 0;
  }
  return ready;
}

}  // namespace

int poll_beyond_limit(std::span<pollfd> descriptors, const timespec* timeout, const sigset_t* mask) {
  const int ready = real.ppoll(descriptors.data(), descriptors.size(), timeout, mask);
  return ready < 0 && errno == EINVAL ? by_select(descriptors, timeout, mask) : ready;
}

}  // namespace accel
