#include "posix/kernel_events.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>

#include "base/private_fds.h"
#include "base/real.h"

namespace accel::posix {
namespace {

// poll(2)'s bits are epoll's.
static_assert(POLLIN == EPOLLIN && POLLOUT == EPOLLOUT && POLLPRI == EPOLLPRI && POLLERR == EPOLLERR &&
              POLLHUP == EPOLLHUP && POLLRDHUP == EPOLLRDHUP);

/// An epoll set that is empty but during a question. Forked children have it too: they ask of the same files.
constinit int questions = -1;

uint32_t ask_beyond_limit(int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (questions < 0 || (real.epoll_ctl(questions, EPOLL_CTL_ADD, fd, &event) != 0 && errno != EEXIST))
    return 0;
  epoll_event got{};
  const int n = real.epoll_wait(questions, &got, 1, 0);
  real.epoll_ctl(questions, EPOLL_CTL_DEL, fd, &event);
  return n == 1 && got.data.fd == fd ? got.events : 0;
}

}  // namespace

void prepare_kernel_events() {
  if (questions < 0) questions = keep_private(real.epoll_create1(EPOLL_CLOEXEC));
}

uint32_t kernel_events(int fd, uint32_t events) {
  pollfd p{fd, static_cast<short>(events), 0};
  const int n = real.poll(&p, 1, 0);
  if (n >= 0) return static_cast<uint16_t>(p.revents);
  return errno == EINVAL ? ask_beyond_limit(fd, events) : 0;
}

}  // namespace accel::posix
