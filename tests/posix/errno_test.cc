// Calls that succeed leave errno alone, those too that open a device, a listener's flow or a connection on
// the way. (tests/preload/errno_test.cc has every name of the table.)
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include "posix/echo.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

/// The result of `call`, which succeeds and leaves errno as it was.
#define QUIETLY(call)                                         \
  [&] {                                                       \
    errno = EDOM;                                             \
    const auto result = (call);                               \
    const int after = errno;                                  \
    EXPECT_GE(result, 0) << #call << ": " << strerror(after); \
    EXPECT_EQ(after, EDOM) << #call;                          \
    return result;                                            \
  }()

TEST(Errno, IsLeftAloneByAClientsCalls) {
  Far far("echo_stream");
  const Address to = there(static_cast<uint16_t>(far.number()));
  Fd fd(QUIETLY(socket(AF_INET, SOCK_STREAM, 0)));
  int value = 1;
  socklen_t length = sizeof value;
  char byte[64];
  QUIETLY(setsockopt(fd, IPPROTO_TCP, 1, &value, length));
  QUIETLY(connect(fd, to.raw(), to.size));
  Fd set(QUIETLY(epoll_create1(0)));
  epoll_event event{EPOLLIN, {}};
  QUIETLY(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
  for (int i = 0; i < kProof; ++i) {
    EXPECT_EQ(QUIETLY(send(fd, "x", 1, 0)), 1);
    EXPECT_EQ(QUIETLY(epoll_wait(set, &event, 1, 10000)), 1);
    EXPECT_EQ(QUIETLY(recv(fd, byte, sizeof byte, 0)), 1);
  }
  QUIETLY(epoll_wait(set, &event, 1, 10));
  EXPECT_EQ(QUIETLY(write(fd, "x", 1)), 1);
  pollfd look{fd, POLLIN, 0};
  EXPECT_EQ(QUIETLY(poll(&look, 1, 10000)), 1);
  EXPECT_EQ(QUIETLY(read(fd, byte, sizeof byte)), 1);
  QUIETLY(fcntl(fd, F_GETFL));
  QUIETLY(ioctl(fd, FIONREAD, &value));
  QUIETLY(getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &length));
  const int copy = QUIETLY(dup(fd));
  QUIETLY(close(copy));
  QUIETLY(shutdown(fd, SHUT_WR));
  EXPECT_EQ(QUIETLY(recv(fd, byte, sizeof byte, 0)), 0);
  QUIETLY(close(fd.release()));
  QUIETLY(close(set.release()));
  far.word();
  far.finish();
}

FAR(calls) {
  Fd fd = connect_to(there(static_cast<uint16_t>(near.number())));
  for (int i = 0; i < kProof; ++i) exchange(fd, "x");
}

TEST(Errno, IsLeftAloneByAServersCalls) {
  const Address name = here();
  Fd listener(QUIETLY(socket(AF_INET, SOCK_STREAM, 0)));
  QUIETLY(bind(listener, name.raw(), name.size));
  QUIETLY(listen(listener, 5));
  Far far("calls");
  far.say(port_of(listener));
  Fd fd(QUIETLY(accept(listener, nullptr, nullptr)));
  char byte;
  for (int i = 0; i < kProof; ++i) {
    EXPECT_EQ(QUIETLY(recv(fd, &byte, 1, 0)), 1);
    EXPECT_EQ(QUIETLY(send(fd, &byte, 1, 0)), 1);
  }
  QUIETLY(close(listener.release()));
  QUIETLY(close(fd.release()));
  far.finish();
}

FAR(echoes_datagrams) {
  Fd fd = udp_at(here());
  near.say(port_of(fd));
  for (int i = 0; i < kProof; ++i) {
    Address from;
    char byte;
    ASSERT_EQ(recvfrom(fd, &byte, 1, 0, from.raw(), &from.size), 1);
    ASSERT_EQ(sendto(fd, &byte, 1, 0, from.raw(), from.size), 1);
  }
}

TEST(Errno, IsLeftAloneByCallsForDatagrams) {
  Far far("echoes_datagrams");
  const Address to = there(static_cast<uint16_t>(far.number())), name = here();
  Fd bound(QUIETLY(socket(AF_INET, SOCK_DGRAM, 0))), fd(QUIETLY(socket(AF_INET, SOCK_DGRAM, 0)));
  QUIETLY(bind(bound, name.raw(), name.size));
  char byte;
  for (int i = 0; i < kProof; ++i) {
    if (i == kProof / 2) QUIETLY(connect(fd, to.raw(), to.size));
    if (i < kProof / 2)
      EXPECT_EQ(QUIETLY(sendto(fd, "x", 1, 0, to.raw(), to.size)), 1);
    else
      EXPECT_EQ(QUIETLY(send(fd, "x", 1, 0)), 1);
    EXPECT_EQ(QUIETLY(recv(fd, &byte, 1, 0)), 1);
  }
  QUIETLY(close(bound.release()));
  QUIETLY(close(fd.release()));
  far.finish();
}

}  // namespace
