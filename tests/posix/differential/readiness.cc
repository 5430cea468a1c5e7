// Which events there are, by every call that tells, and what signals do to those that take a mask.
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>

#include <utility>

#include "posix/differential/log.h"
#include "posix/differential/sequence.h"

namespace differential {

using std::to_string;

namespace {

constexpr short kAll = POLLIN | POLLPRI | POLLOUT | POLLRDNORM | POLLRDBAND | POLLWRNORM | POLLRDHUP;
constexpr timespec kNow{0, 0}, kSoon{0, 1000000};

volatile sig_atomic_t delivered = 0;

}  // namespace

/// A call with a mask that lets a pending signal through: EINTR where nothing is ready; else the signal
/// waits.
template <class Call>
std::string Sequence::with_signal(Call call) {
  static const bool handled = [] {
    struct sigaction action {};
    action.sa_handler = [](int) { delivered = delivered + 1; };
    return sigaction(SIGUSR1, &action, nullptr) == 0;
  }();
  const bool pending = handled && chance(40);
  sigset_t blocked, mask;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  sigprocmask(SIG_BLOCK, &blocked, &mask);
  delivered = 0;
  if (pending) raise(SIGUSR1);
  std::string text = (pending ? "signal: " : "") + shown(call(chance(70) ? &mask : nullptr));
  text += delivered ? ", delivered" : "";
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  return text;
}

void Sequence::ready_by_poll() {
  pollfd p{sock_, any<short>({kAll, kAll, kAll, POLLIN, POLLOUT, POLLRDHUP, POLLPRI, 0}), 0};
  int n = poll(&p, 1, 0);
  log({"poll", to_string(p.events)}, shown(n) + " " + to_string(p.revents));
}

void Sequence::ready_by_ppoll() {
  pollfd p[2] = {{sock_, kAll, 0}, {any<int>({-1, sock_, set_, 1 << 20}), POLLIN, 0}};
  const timespec limit = any<timespec>({kNow, kNow, kSoon, {0, 1000000000}});
  log({"ppoll"}, with_signal([&](const sigset_t* mask) { return ppoll(p, 2, &limit, mask); }) + " " +
                     to_string(p[0].revents) + " " + to_string(p[1].revents));
}

void Sequence::ready_by_select() {
  fd_set sets[3];
  fd_set* given[3];
  for (int i = 0; i < 3; ++i) {
    FD_ZERO(&sets[i]);
    if (chance(80)) FD_SET(sock_, &sets[i]);
    given[i] = chance(90) ? &sets[i] : nullptr;
  }
  const int count = any<int>({sock_ + 1, sock_ + 1, sock_ + 1, sock_, 0, -1});
  std::string result;
  if (chance(50)) {
    timeval limit{0, any<int>({0, 0, 1000})};
    result = shown(select(count, given[0], given[1], given[2], &limit));
  } else {
    const timespec limit = any<timespec>({kNow, kNow, kSoon, {-1, 0}});
    result = with_signal(
        [&](const sigset_t* mask) { return pselect(count, given[0], given[1], given[2], &limit, mask); });
  }
  for (auto* set : given) result += set && FD_ISSET(sock_, set) ? " yes" : " no";
  log({"select", count == sock_ + 1 ? "" : "count"}, result);
}

void Sequence::ready_by_epoll() {
  if (set_ < 0) return;
  epoll_event e[2]{};
  std::string result;
  if (chance(70)) {
    result = shown(epoll_wait(set_, e, 2, 0));
  } else {
    const timespec limit = any<timespec>({kNow, kNow, kSoon});
    result = with_signal([&](const sigset_t* mask) { return epoll_pwait2(set_, e, 2, &limit, mask); });
  }
  if (e[1].data.u64 < e[0].data.u64) std::swap(e[0], e[1]);  // their order follows from what came before
  for (const epoll_event& one : e)
    if (one.events != 0) result += " " + to_string(one.events) + ":" + to_string(one.data.u64);
  log({"epoll_wait"}, result);
}

void Sequence::watch(int fd) {
  if (set_ < 0) return;
  epoll_event e{.events = EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP | EPOLLET, .data = {.u64 = 0}};
  log({"EPOLL_CTL_ADD"}, shown(epoll_ctl(set_, EPOLL_CTL_ADD, fd, &e)));
}

void Sequence::change_watch() {
  if (set_ < 0) return;
  epoll_event e{.events = any<uint32_t>({EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLOUT, EPOLLRDHUP, EPOLLPRI,
                                         EPOLLIN | EPOLLRDHUP, EPOLLIN | EPOLLPRI | EPOLLRDHUP, 0}) |
                          any<uint32_t>({0, 0, EPOLLET, EPOLLONESHOT, EPOLLONESHOT | EPOLLET, EPOLLEXCLUSIVE,
                                         EPOLLEXCLUSIVE | EPOLLET, EPOLLWAKEUP}),
                .data = {.u64 = below(100)}};
  const int operation = any<int>({EPOLL_CTL_MOD, EPOLL_CTL_MOD, EPOLL_CTL_MOD, EPOLL_CTL_DEL, EPOLL_CTL_ADD});
  log({"epoll_ctl", to_string(operation), to_string(e.events)}, shown(epoll_ctl(set_, operation, sock_, &e)));
}

}  // namespace differential
