// connect() to AF_UNSPEC on connections that have moved to the kernel: the name goes that the program has not
// bound.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>

#include <string>

#include "posix/echo.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

// Connects and echoes until the end, which it tells.
FAR(dialler) {
  Fd fd = connect_to(there(static_cast<uint16_t>(std::stoi(args.at(0)))));
  char buffer[4096];
  ssize_t n;
  while ((n = recv(fd, buffer, sizeof buffer, 0)) > 0) write_all(fd, buffer, static_cast<size_t>(n));
  near.say(n < 0 ? strerrorname_np(errno) : "end");
}

/// An accepted connection that has been accelerated for a while.
struct Accepted {
  explicit Accepted(const Address& at)
      : listener(listen_at(at)), far("dialler", {std::to_string(port_of(listener))}) {
    fd = accept_one(listener);
    for (int i = 0; i < kProof; ++i) exchange(fd, ".");
  }
  std::string end() {
    std::string word = far.word();
    far.finish();
    return word;
  }
  Fd listener, fd;
  Far far;
};

/// By an option that only the kernel's TCP serves.
void move_to_kernel(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1);
  set_option(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 0);
  exchange(fd, "moved");
}

void disconnect(int fd) {
  const sockaddr none{AF_UNSPEC, {}};
  ASSERT_EQ(connect(fd, &none, sizeof none), 0) << strerror(errno);
}

std::string name_of(int fd) {
  Address name;
  EXPECT_EQ(getsockname(fd, name.raw(), &name.size), 0);
  char text[INET6_ADDRSTRLEN] = {};
  const void* bytes = name.family() == AF_INET
                          ? static_cast<const void*>(&reinterpret_cast<sockaddr_in*>(name.raw())->sin_addr)
                          : &reinterpret_cast<sockaddr_in6*>(name.raw())->sin6_addr;
  return std::string(inet_ntop(name.family(), bytes, text, sizeof text)) + " " + std::to_string(name.port());
}

std::string address_of(int fd) {
  const std::string name = name_of(fd);
  return name.substr(0, name.find(' '));
}

/// bind(), listen() and connect() find a socket without a port.
void expect_unbound(Fd& fd, uint16_t former) {
  EXPECT_EQ(get_option(fd, SOL_SOCKET, SO_ERROR), ECONNRESET);
  EXPECT_EQ(get_option(fd, SOL_SOCKET, SO_ERROR), 0);
  Address name = here();
  EXPECT_EQ(bind(fd, name.raw(), name.size), 0) << strerror(errno);
  EXPECT_NE(port_of(fd), 0);
  EXPECT_NE(port_of(fd), former);
}

void expect_listens(int fd, uint16_t former) {
  ASSERT_EQ(listen(fd, 5), 0) << strerror(errno);
  const uint16_t port = port_of(fd);
  EXPECT_NE(port, former);
  Far far("dialler", {std::to_string(port)});
  Fd next = accept_one(fd);
  for (int i = 0; i < kProof; ++i) exchange(next, ".");
  next.reset();
  EXPECT_EQ(far.word(), "end");
  far.finish();
}

void expect_connects(int fd, uint16_t former) {
  Far far("echo_stream");
  const Address to = there(static_cast<uint16_t>(far.number()));
  ASSERT_EQ(connect(fd, to.raw(), to.size), 0) << strerror(errno);
  EXPECT_EQ(address_of(fd), address_of(connect_to(to)));
  EXPECT_NE(port_of(fd), former);
  exchange(fd, "anew");
  shutdown(fd, SHUT_WR);
  EXPECT_EQ(far.word(), "anew");
  far.finish();
}

TEST(Disconnect, TakesTheNameOffAnAcceptedConnection) {
  for (const Address& at : {any(), here()}) {
    Accepted c(at);
    const uint16_t port = port_of(c.fd);
    move_to_kernel(c.fd);
    disconnect(c.fd);
    EXPECT_EQ(name_of(c.fd), name_of(c.listener));
    expect_unbound(c.fd, port);
    EXPECT_EQ(c.end(), "ECONNRESET");
  }
}

TEST(Disconnect, AnAcceptedConnectionListens) {
  Accepted c(any());
  move_to_kernel(c.fd);
  disconnect(c.fd);
  expect_listens(c.fd, port_of(c.listener));
  EXPECT_EQ(c.end(), "ECONNRESET");
}

TEST(Disconnect, AnAcceptedConnectionConnects) {
  Accepted c(here());
  move_to_kernel(c.fd);
  disconnect(c.fd);
  expect_connects(c.fd, port_of(c.listener));
  EXPECT_EQ(c.end(), "ECONNRESET");
}

TEST(Disconnect, TakesTheNameOffAConnectionThatChoseIt) {
  Echo c(kProof);
  const uint16_t port = port_of(c.fd);
  move_to_kernel(c.fd);
  disconnect(c.fd);
  EXPECT_EQ(name_of(c.fd), "0.0.0.0 " + std::to_string(port));
  expect_unbound(c.fd, port);
  EXPECT_EQ(c.seen(), strerror(ECONNRESET));
  c.finish();
}

TEST(Disconnect, AConnectionThatChoseItsNameConnects) {
  Echo c(kProof);
  move_to_kernel(c.fd);
  disconnect(c.fd);
  expect_connects(c.fd, 0);
  EXPECT_EQ(c.seen(), strerror(ECONNRESET));
  c.finish();
}

TEST(Disconnect, LeavesANameThatTheProgramHasBound) {
  const uint16_t port = port_of(listen_at(here()));  // free again
  Far far("echo_stream");
  Fd fd = tcp_socket();
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  Address name = here(port);
  ASSERT_EQ(bind(fd, name.raw(), name.size), 0) << strerror(errno);
  Address to = there(static_cast<uint16_t>(far.number()));
  ASSERT_EQ(connect(fd, to.raw(), to.size), 0) << strerror(errno);
  for (int i = 0; i < kProof; ++i) exchange(fd, ".");
  const std::string before = name_of(fd);
  move_to_kernel(fd);
  disconnect(fd);
  EXPECT_EQ(name_of(fd), before);
  EXPECT_EQ(bind(fd, name.raw(), name.size), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(far.word(), strerror(ECONNRESET));
  far.finish();
}

TEST(Disconnect, NumbersOptionsAndSetsStay) {
  Accepted c(any());
  Fd before(fcntl(c.fd, F_DUPFD_CLOEXEC, 0));
  Fd set(epoll_create1(0));
  epoll_event event{EPOLLIN, {.u64 = 7}};
  ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, c.fd, &event), 0);
  set_option(c.fd, IPPROTO_TCP, TCP_KEEPIDLE, 77);
  move_to_kernel(c.fd);
  Fd after(dup(c.fd));
  set_nonblocking(c.fd);
  disconnect(after);
  EXPECT_EQ(get_option(c.fd, IPPROTO_TCP, TCP_KEEPIDLE), 77);
  EXPECT_EQ(fcntl(before, F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(fcntl(after, F_GETFD), 0);
  EXPECT_NE(fcntl(before, F_GETFL) & O_NONBLOCK, 0);
  set_nonblocking(c.fd, false);
  EXPECT_EQ(c.end(), "ECONNRESET");

  Far far("echo_stream");
  const Address to = there(static_cast<uint16_t>(far.number()));
  ASSERT_EQ(connect(before, to.raw(), to.size), 0) << strerror(errno);
  EXPECT_EQ(epoll_wait(set, &event, 1, 0), 0);
  write_all(after, "anew");
  ASSERT_EQ(epoll_wait(set, &event, 1, 10000), 1);
  EXPECT_EQ(event.data.u64, 7u);
  EXPECT_EQ(event.events, uint32_t{EPOLLIN});
  EXPECT_EQ(read_exactly(c.fd, 4), "anew");
  EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_DEL, c.fd, nullptr), 0) << strerror(errno);
  shutdown(c.fd, SHUT_WR);
  EXPECT_EQ(far.word(), "anew");
  far.finish();
}

TEST(Disconnect, InAChildThatHasGotTheConnection) {
  Accepted c(any());
  const uint16_t port = port_of(c.listener);
  const pid_t child = in_child([&] {
    c.listener.reset();
    exchange(c.fd, "child");
    disconnect(c.fd);
    EXPECT_EQ(name_of(c.fd), "0.0.0.0 " + std::to_string(port));
    expect_unbound(c.fd, port);
  });
  c.fd.reset();
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(c.end(), "ECONNRESET");
}

TEST(Disconnect, OfIpv6ThatHasBecomeIpv4) {
  Accepted c(any(0, AF_INET6));
  const uint16_t port = port_of(c.listener);
  set_option(c.fd, IPPROTO_IPV6, IPV6_ADDRFORM, AF_INET);
  exchange(c.fd, "moved");
  disconnect(c.fd);
  EXPECT_EQ(get_option(c.fd, SOL_SOCKET, SO_DOMAIN), AF_INET);
  EXPECT_EQ(name_of(c.fd), "0.0.0.0 " + std::to_string(port));
  expect_unbound(c.fd, port);
  EXPECT_EQ(c.end(), "ECONNRESET");
}

}  // namespace
