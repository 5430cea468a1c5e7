// How a sequence's socket comes to be.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "posix/differential/log.h"
#include "posix/differential/sequence.h"

namespace differential {

void Sequence::begin() {
  sock_ = ::socket(six_ ? AF_INET6 : AF_INET,
                   (stream_ ? SOCK_STREAM : SOCK_DGRAM) | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  for (uint32_t n = any<uint32_t>({0, 0, 0, 1, 2}); n > 0; --n) set_option();
  if (chance(50)) set_ = epoll_create1(EPOLL_CLOEXEC);
  bool early = chance(50);
  if (early && kind_ != Kind::kTcpAccept) watch(sock_);
  switch (kind_) {
    case Kind::kTcpConnect:
      begin_connect();
      break;
    case Kind::kTcpAccept:
      begin_accept();
      early = false;
      break;
    case Kind::kUdpConnected:
      connect();
      break;
    case Kind::kUdpBound: {
      Name at = name(chance(70) ? near() : six_ ? "::" : "0.0.0.0", 0);
      log({"bind"}, shown(::bind(sock_, at.raw(), at.size)));
      break;
    }
    default:
      break;
  }
  if (!early) watch(sock_);
}

void Sequence::begin_connect() {
  connect();
  log({"far accepts"}, far_.accept());
  settle();
}

void Sequence::begin_accept() {
  Name at = name(near(), 0);
  log({"bind"}, shown(::bind(sock_, at.raw(), at.size)));
  for (uint32_t n = any<uint32_t>({0, 0, 1, 2}); n > 0; --n) set_option();
  log({"listen"}, shown(::listen(sock_, 8)));
  at.size = sizeof at.storage;
  if (getsockname(sock_, at.raw(), &at.size) == 0) log({"far calls"}, far_.call(name(near(), at.port())));
  settle();
  int connection = accept4(sock_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  log({"accept"}, connection < 0 ? shown(connection) : "accepted");
  if (connection < 0) return;
  extra_.push_back(sock_);
  sock_ = connection;
}

}  // namespace differential
