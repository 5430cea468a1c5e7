// Calls about a socket's state: names, binding, shutting down.
#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>

#include "posix/differential/log.h"
#include "posix/differential/sequence.h"

namespace differential {

using std::to_string;

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
  const int flags = any<int>({SOCK_NONBLOCK | SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_CLOEXEC, 0, 1});
  Name from;
  from.size = any<socklen_t>({sizeof from.storage, sizeof from.storage, 4, 0});
  const bool named = chance(50);
  int fd = accept4(sock_, named ? from.raw() : nullptr, named ? &from.size : nullptr, flags);
  std::string result = fd < 0 ? shown(fd) : "accepted";
  if (fd >= 0) {
    result += " " + to_string(fcntl(fd, F_GETFL)) + " " + to_string(fcntl(fd, F_GETFD));
    if (named) result += " " + to_string(from.size);
    extra_.push_back(fd);
  }
  log({"accept", to_string(flags)}, result);
}

void Sequence::too_many_buffers() {
  static std::array<iovec, 1025> parts{};
  msghdr m{};
  m.msg_iov = parts.data();
  m.msg_iovlen = parts.size();
  log({"recvmsg of 1025 buffers"}, shown(recvmsg(sock_, &m, MSG_DONTWAIT)));
}

}  // namespace differential
