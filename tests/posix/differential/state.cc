// Calls about a socket's state: readiness, names, binding, shutting down.
#include <linux/sockios.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>

#include "posix/differential/log.h"
#include "posix/differential/sequence.h"

namespace differential {

using std::to_string;

void Sequence::ready_by_poll() {
  pollfd p{sock_, POLLIN | POLLPRI | POLLOUT | POLLRDNORM | POLLRDBAND | POLLWRNORM | POLLRDHUP, 0};
  int n = poll(&p, 1, 0);
  log({"poll"}, shown(n) + " " + to_string(p.revents));
}

void Sequence::ready_by_epoll() {
  if (set_ < 0) return;
  epoll_event e[2]{};
  int n = epoll_wait(set_, e, 2, 0);
  log({"epoll_wait"}, shown(n) + (n > 0 ? " " + to_string(e[0].events) : ""));
}

void Sequence::names() {
  Name a, b;
  a.size = b.size = sizeof a.storage;
  long r = getsockname(sock_, a.raw(), &a.size);
  std::string own = hidden(r, a);
  r = getpeername(sock_, b.raw(), &b.size);
  log({"names"}, own + ", " + hidden(r, b));
}

void Sequence::count_bytes() {
  unsigned long request = any<unsigned long>({FIONREAD, SIOCATMARK, SIOCOUTQ, SIOCOUTQNSD});
  int n = -1;
  long r = ioctl(sock_, request, &n);
  // After a disconnect the widest window that the peer has offered counts, which is as its memory was.
  bool window = n > 60000 && request != FIONREAD;
  log({"ioctl", to_string(request)}, shown(r) + " " + (window ? "window" : to_string(n)));
}

void Sequence::shut_down() {
  int how = any<int>({0, 1, 1, 2, 3});
  int r = ::shutdown(sock_, how);
  log_sent({"shutdown", to_string(how)}, shown(r));
}

void Sequence::duplicate() {
  int other = dup(sock_);
  std::string result = other < 0 ? shown(other) : "done";
  if (other >= 0) {
    ::close(sock_);
    sock_ = other;
  }
  log({"dup"}, result);
}

void Sequence::bind() {
  Name at = name(near(), 0);
  log({"bind"}, shown(::bind(sock_, at.raw(), at.size)));
}

void Sequence::listen() { log({"listen"}, shown(::listen(sock_, 5))); }

void Sequence::connect() {
  Name to = name(far_address(), far_port_);
  std::string result = shown(::connect(sock_, to.raw(), to.size));
  settle();
  log({"connect"}, result);
}

void Sequence::disconnect() {
  if (chance(60)) return;
  sockaddr to{};
  to.sa_family = AF_UNSPEC;
  std::string result = shown(::connect(sock_, &to, sizeof to));
  settle();
  log({"disconnect"}, result);
}

void Sequence::accept() {
  int fd = accept4(sock_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  log({"accept"}, fd < 0 ? shown(fd) : "accepted");
  if (fd >= 0) extra_.push_back(fd);
}

void Sequence::too_many_buffers() {
  static std::array<iovec, 1025> parts{};
  msghdr m{};
  m.msg_iov = parts.data();
  m.msg_iovlen = parts.size();
  log({"recvmsg of 1025 buffers"}, shown(recvmsg(sock_, &m, MSG_DONTWAIT)));
}

}  // namespace differential
