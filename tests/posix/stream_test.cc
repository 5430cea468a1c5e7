// TCP: bytes, both roles, blocking and not.
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#include <thread>

#include "posix/far.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

// Accepts one connection and returns every byte until the end, then closes.
FAR(echo) {
  int family = args.empty() ? AF_INET : std::stoi(args[0]);
  Fd listener = listen_at(here(0, family));
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  std::string buffer(1 << 16, '\0');
  for (ssize_t n; (n = recv(fd, buffer.data(), buffer.size(), 0)) > 0;)
    write_all(fd, buffer.data(), static_cast<size_t>(n));
}

// Connects to near, sends args[1] bytes of pattern, half-closes, and reports how many bytes came back.
FAR(call) {
  Fd fd = connect_to(there(static_cast<uint16_t>(std::stoi(args[0]))));
  std::string sent = pattern(std::stoul(args[1]));
  std::thread sender([&] {
    write_all(fd, sent);
    shutdown(fd, SHUT_WR);
  });
  std::string back = read_to_end(fd);
  sender.join();
  near.say(back == sent ? "same" : "different: " + std::to_string(back.size()));
}

// Connects to near; says what it first hears, and ends when told to.
FAR(meets_the_end) {
  Fd fd = connect_to(there(static_cast<uint16_t>(std::stoi(args[0]))));
  char byte;
  near.say(recv(fd, &byte, 1, 0) == 1 ? "a byte" : "the end");
  near.word();
}

// Takes a question, and answers when told to.
FAR(answer) {
  Fd listener = listen_at(here());
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  near.say(read_exactly(fd, 1));
  near.word();
  write_all(fd, "!");
  read_to_end(fd);
}

TEST(Stream, EchoesBytes) {
  Far far("echo");
  Fd fd = connect_to(there(static_cast<uint16_t>(far.number())));
  for (size_t size : {1u, 64u, 1447u, 1448u, 1449u, 60000u}) {
    std::string sent = pattern(size, static_cast<uint32_t>(size));
    write_all(fd, sent);
    EXPECT_EQ(read_exactly(fd, size), sent) << size;
  }
  shutdown(fd, SHUT_WR);
  EXPECT_EQ(read_to_end(fd), "");
  far.finish();
}

TEST(Stream, EchoesBytesOverIpv6) {
  Far far("echo", {std::to_string(AF_INET6)});
  Fd fd = connect_to(there(static_cast<uint16_t>(far.number()), AF_INET6));
  std::string sent = pattern(100000);
  std::thread sender([&] {
    write_all(fd, sent);
    shutdown(fd, SHUT_WR);
  });
  EXPECT_EQ(read_to_end(fd), sent);
  sender.join();
  far.finish();
}

TEST(Stream, AcceptsAndEchoes) {
  Fd listener = listen_at(here());
  Far far("call", {std::to_string(port_of(listener)), "3000000"});
  Fd fd = accept_one(listener);
  std::string buffer(1 << 16, '\0');
  for (ssize_t n; (n = read(fd, buffer.data(), buffer.size())) > 0;)
    write_all(fd, buffer.data(), static_cast<size_t>(n));
  fd.reset();
  EXPECT_EQ(far.word(), "same");
  far.finish();
}

TEST(Stream, AcceptedSocketsHaveTheListenersTosButNotItsPriority) {
  Fd listener = listen_at(here());
  set_option(listener, IPPROTO_IP, IP_TOS, 0x10);
  ASSERT_NE(get_option(listener, SOL_SOCKET, SO_PRIORITY), 0);
  Far far("call", {std::to_string(port_of(listener)), "1"});
  Fd fd = accept_one(listener);
  EXPECT_EQ(get_option(fd, SOL_SOCKET, SO_PRIORITY), 0);
  EXPECT_EQ(get_option(fd, IPPROTO_IP, IP_TOS), 0x10);
  write_all(fd, read_to_end(fd));
  fd.reset();
  EXPECT_EQ(far.word(), "same");
  far.finish();
}

FAR(silent) {
  Fd fd = connect_to(there(static_cast<uint16_t>(std::stoi(args[0]))));
  near.word();
}

// The SYN-ACK that asks the silent peer again was not lost.
TEST(Stream, ADeferredAcceptStartsWithTheUsualWindow) {
  Fd listener = listen_at(here());
  set_option(listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, 1);
  Far far("silent", {std::to_string(port_of(listener))});
  Fd fd = accept_one(listener);
  tcp_info info{};
  socklen_t size = sizeof info;
  ASSERT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size), 0);
  EXPECT_GE(info.tcpi_snd_cwnd, 10u);
  far.say("done");
  far.finish();
}

TEST(Stream, AWildcardDualStackListenerTakesIpv4) {
  Fd listener = listen_at(any(0, AF_INET6));
  Far far("call", {std::to_string(port_of(listener)), "10"});
  Address peer;
  Fd fd(accept4(listener, peer.raw(), &peer.size, 0));
  ASSERT_GE(fd, 0);
  ASSERT_EQ(peer.family(), AF_INET6);
  EXPECT_TRUE(IN6_IS_ADDR_V4MAPPED(&reinterpret_cast<sockaddr_in6*>(&peer.storage)->sin6_addr));
  write_all(fd, read_exactly(fd, 10));
  fd.reset();
  EXPECT_EQ(far.word(), "same");
  far.finish();
}

TEST(Stream, NonblockingConnectBecomesWritable) {
  Far far("echo");
  Address to = there(static_cast<uint16_t>(far.number()));
  Fd fd = tcp_socket(AF_INET, SOCK_NONBLOCK);
  int result = connect(fd, to.raw(), to.size);
  ASSERT_TRUE(result == 0 || errno == EINPROGRESS) << strerror(errno);
  EXPECT_EQ(wait_for(fd, POLLOUT) & (POLLOUT | POLLERR | POLLHUP), POLLOUT);
  EXPECT_EQ(get_option(fd, SOL_SOCKET, SO_ERROR), 0);
  char byte;
  EXPECT_EQ(recv(fd, &byte, 1, 0), -1);
  EXPECT_EQ(errno, EAGAIN);
  write_all(fd, "x");
  EXPECT_EQ(wait_for(fd, POLLIN), POLLIN);
  EXPECT_EQ(recv(fd, &byte, 1, 0), 1);
  fd.reset();
  far.finish();
}

TEST(Stream, ConnectIsRefused) {
  Fd fd = tcp_socket();
  Address to = there(1);
  EXPECT_EQ(connect(fd, to.raw(), to.size), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
}

TEST(Stream, ARefusedConnectForgetsItsAddress) {
  for (int family : {AF_INET, AF_INET6}) {
    Fd fd = tcp_socket(family);
    Address to = there(1, family), local;
    EXPECT_EQ(connect(fd, to.raw(), to.size), -1);
    ASSERT_EQ(getsockname(fd, local.raw(), &local.size), 0);
    const Address none = any(local.port(), family);
    EXPECT_EQ(memcmp(&local.storage, &none.storage, local.size), 0);
  }
}

TEST(Stream, ShutdownOfAConnectingSocketIsAReset) {
  Fd fd = tcp_socket(AF_INET, SOCK_NONBLOCK);
  Address to = there(1);
  reinterpret_cast<sockaddr_in*>(to.raw())->sin_addr.s_addr ^= htonl(0x40);  // a neighbour that is not there
  ASSERT_EQ(connect(fd, to.raw(), to.size), -1);
  ASSERT_EQ(errno, EINPROGRESS);
  EXPECT_EQ(shutdown(fd, SHUT_RDWR), 0);
  EXPECT_EQ(wait_for_end(fd, POLLOUT), POLLOUT | POLLERR | POLLHUP);
  EXPECT_EQ(get_option(fd, SOL_SOCKET, SO_ERROR), ECONNRESET);
  EXPECT_EQ(get_option(fd, SOL_SOCKET, SO_ERROR), 0);
}

/// Not connected yet: it says ENOTCONN, and holds all the same.
Fd shut_down_socket(int how) {
  Fd fd = tcp_socket();
  EXPECT_EQ(shutdown(fd, how), -1);
  EXPECT_EQ(errno, ENOTCONN);
  return fd;
}

// What is shut down before it listens stays so, and its connections are shut down from their beginning.
TEST(Stream, AListenerShutDownBeforeEndsItsConnections) {
  for (int how : {SHUT_RD, SHUT_WR, SHUT_RDWR}) {
    Fd listener = shut_down_socket(how);
    Address at = here();
    ASSERT_EQ(bind(listener, at.raw(), at.size), 0);
    ASSERT_EQ(listen(listener, 4), 0);
    Far far("meets_the_end", {std::to_string(port_of(listener))});
    Fd fd = accept_one(listener);
    char byte;
    if (how != SHUT_WR) {
      EXPECT_EQ(recv(fd, &byte, 1, 0), 0);
    }
    EXPECT_EQ(send(fd, "x", 1, MSG_NOSIGNAL), how == SHUT_RD ? 1 : -1);
    EXPECT_EQ(far.word(), how == SHUT_RD ? "a byte" : "the end");
    far.say("go");
    fd.reset();
    far.finish();
  }
}

// Before anything is connected, with which an engine may be opened: the kernel has the shutdown() until then.
TEST(Stream, ADisconnectedSocketIsNoLongerShutDown) {
  Far far("echo");
  Address to = there(static_cast<uint16_t>(far.number()));
  Fd fd = shut_down_socket(SHUT_RDWR);
  const sockaddr none{};
  EXPECT_EQ(connect(fd, &none, sizeof none), 0);
  ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
  write_all(fd, "x");
  EXPECT_EQ(read_exactly(fd, 1), "x");
  fd.reset();
  far.finish();
}

TEST(Stream, ASocketShutDownBeforeItConnectsNeitherReadsNorWrites) {
  Far far("echo");
  Address to = there(static_cast<uint16_t>(far.number()));
  Fd fd = shut_down_socket(SHUT_RDWR);
  ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
  char byte;
  EXPECT_EQ(recv(fd, &byte, 1, 0), 0);
  EXPECT_EQ(send(fd, "x", 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
  fd.reset();
  far.finish();
}

// A client's first words answer nothing, so the first answer is acknowledged at once: the kernel has found
// its route again with that, which IP_TOS had it forget.
TEST(Stream, TheFirstAnswerIsAcknowledgedAtOnce) {
  Far far("answer");
  Fd fd = connect_to(there(static_cast<uint16_t>(far.number())));
  write_all(fd, "?");
  far.word();
  set_option(fd, IPPROTO_IP, IP_TOS, 0x10);
  far.say("go");
  EXPECT_EQ(read_exactly(fd, 1), "!");
  EXPECT_GE(get_option(fd, IPPROTO_IP, IP_MTU), 1500);
  fd.reset();
  far.finish();
}

// inet_bind() has the route forgotten that a connection has had, __inet6_bind() has not.
TEST(Stream, BoundAgainAfterItsEndOnlyIpv6KnowsThePathsMtu) {
  for (int family : {AF_INET, AF_INET6}) {
    Far far("echo", {std::to_string(family)});
    Fd fd = connect_to(there(static_cast<uint16_t>(far.number()), family));
    shutdown(fd, SHUT_WR);
    EXPECT_EQ(read_to_end(fd), "");
    Address at = here(0, family);
    ASSERT_EQ(bind(fd, at.raw(), at.size), 0);
    int mtu = 0;
    socklen_t size = sizeof mtu;
    if (family == AF_INET6) {
      EXPECT_EQ(get_option(fd, IPPROTO_IPV6, IPV6_MTU), 1500);
    } else {
      EXPECT_EQ(getsockopt(fd, IPPROTO_IP, IP_MTU, &mtu, &size), -1);
      EXPECT_EQ(errno, ENOTCONN);
    }
    fd.reset();
    far.finish();
  }
}

TEST(Stream, ADisconnectKeepsAnErrorThatNobodyTook) {
  Fd fd = tcp_socket(AF_INET, SOCK_NONBLOCK);
  Address to = there(1);
  ASSERT_EQ(connect(fd, to.raw(), to.size), -1);
  EXPECT_TRUE(wait_for(fd, POLLIN) & POLLERR);
  const sockaddr none{AF_UNSPEC, {}};
  ASSERT_EQ(connect(fd, &none, sizeof none), 0);
  EXPECT_EQ(get_option(fd, SOL_SOCKET, SO_ERROR), ECONNREFUSED);
}

TEST(Stream, NonblockingConnectIsRefused) {
  Fd fd = tcp_socket(AF_INET, SOCK_NONBLOCK);
  Address to = there(1);
  ASSERT_EQ(connect(fd, to.raw(), to.size), -1);
  ASSERT_EQ(errno, EINPROGRESS);
  short events = wait_for_end(fd, POLLOUT | POLLIN);
  EXPECT_TRUE(events & POLLERR);
  EXPECT_TRUE(events & POLLHUP);
  EXPECT_EQ(get_option(fd, SOL_SOCKET, SO_ERROR), ECONNREFUSED);
  EXPECT_EQ(get_option(fd, SOL_SOCKET, SO_ERROR), 0);
}

TEST(Stream, NamesOfBothEnds) {
  Far far("echo");
  uint16_t port = static_cast<uint16_t>(far.number());
  Fd fd = connect_to(there(port));
  Address local, remote;
  ASSERT_EQ(getsockname(fd, local.raw(), &local.size), 0);
  ASSERT_EQ(getpeername(fd, remote.raw(), &remote.size), 0);
  EXPECT_EQ(local.size, sizeof(sockaddr_in));
  EXPECT_NE(local.port(), 0);
  EXPECT_EQ(memcmp(&reinterpret_cast<sockaddr_in*>(&local.storage)->sin_addr,
                   &reinterpret_cast<const sockaddr_in*>(here().raw())->sin_addr, 4),
            0);
  EXPECT_EQ(remote.port(), port);
  fd.reset();
  far.finish();
}

TEST(Stream, PeekAndWaitAll) {
  Far far("echo");
  Fd fd = connect_to(there(static_cast<uint16_t>(far.number())));
  write_all(fd, "abcdef");
  char buffer[8] = {};
  EXPECT_EQ(recv(fd, buffer, 6, MSG_WAITALL | MSG_PEEK), 6);
  EXPECT_STREQ(buffer, "abcdef");
  int readable = 0;
  EXPECT_EQ(ioctl(fd, FIONREAD, &readable), 0);
  EXPECT_EQ(readable, 6);
  memset(buffer, 0, sizeof(buffer));
  EXPECT_EQ(recv(fd, buffer, 6, MSG_WAITALL), 6);
  EXPECT_STREQ(buffer, "abcdef");
  EXPECT_EQ(recv(fd, buffer, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  fd.reset();
  far.finish();
}

TEST(Stream, ScatterAndGather) {
  Far far("echo");
  Fd fd = connect_to(there(static_cast<uint16_t>(far.number())));
  char one[] = "one", two[] = "twotwo", three[] = "3";
  iovec out[] = {{one, 3}, {two, 6}, {three, 1}};
  EXPECT_EQ(writev(fd, out, 3), 10);
  char a[4] = {}, b[7] = {};
  iovec in[] = {{a, 4}, {b, 6}};
  EXPECT_EQ(wait_for(fd, POLLIN), POLLIN);
  std::string back;
  while (back.size() < 10) {
    ssize_t n = readv(fd, in, 2);
    ASSERT_GT(n, 0);
    back += (std::string(a, 4) + std::string(b, 6)).substr(0, static_cast<size_t>(n));
  }
  EXPECT_EQ(back, "onetwotwo3");
  fd.reset();
  far.finish();
}

TEST(Stream, ReceiveTimesOut) {
  Far far("echo");
  Fd fd = connect_to(there(static_cast<uint16_t>(far.number())));
  timeval t{0, 50000};
  ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t)), 0);
  char byte;
  EXPECT_EQ(recv(fd, &byte, 1, 0), -1);
  EXPECT_EQ(errno, EAGAIN);
  write_all(fd, "y");
  EXPECT_EQ(wait_for(fd, POLLIN), POLLIN);  // however long the echo takes
  EXPECT_EQ(read_exactly(fd, 1), "y");
  fd.reset();
  far.finish();
}

// Accepts, sends nothing and reads only when told to; then counts.
FAR(slow_reader) {
  Fd listener = listen_at(here());
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  near.word();
  near.say(std::to_string(read_to_end(fd).size()));
}

TEST(Stream, ASlowReaderStopsTheWriterAndGetsEverything) {
  Far far("slow_reader");
  Fd fd = connect_to(there(static_cast<uint16_t>(far.number())));
  const long sent = fill(fd);
  EXPECT_EQ(wait_for(fd, POLLOUT, 0), 0);
  far.say("go");
  EXPECT_EQ(wait_for(fd, POLLOUT) & POLLOUT, POLLOUT);
  shutdown(fd, SHUT_WR);
  EXPECT_EQ(far.number(), sent);
  far.finish();
}

TEST(Stream, AfterSendTheBufferIsTheProgramsAgain) {
  Far far("echo");
  Fd fd = connect_to(there(static_cast<uint16_t>(far.number())));
  set_option(fd, SOL_SOCKET, SO_SNDBUF, 4096);  // takes only a part of what is sent
  const std::string all = pattern(3'000'000);
  std::thread sender([&] {
    for (size_t at = 0, size = 1; at < all.size(); at += size, size = size * 3 % 100'003) {
      std::string buffer = all.substr(at, size);
      write_all(fd, buffer);
      buffer.assign(buffer.size(), '?');
    }
    shutdown(fd, SHUT_WR);
  });
  EXPECT_TRUE(read_to_end(fd) == all);
  sender.join();
  far.finish();
}

/// A connection that its peer has reset.
void expect_reset(int fd) {
  EXPECT_TRUE(wait_for_end(fd, POLLIN) & POLLHUP);
  char byte;
  EXPECT_EQ(recv(fd, &byte, 1, 0), -1);
  EXPECT_EQ(errno, ECONNRESET);
  EXPECT_EQ(send(fd, "x", 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
}

TEST(Stream, SendToAClosedPeerIsAPipeError) {
  Fd listener = listen_at(here());
  Far far("reset_when_told", {std::to_string(port_of(listener))});
  Fd fd = accept_one(listener);
  far.say("reset");
  far.finish();
  expect_reset(fd);
}

// The listener has the connection before it is reset: a peer's ACK and its RST at once are sent by two CPUs,
// and a veth's queues may turn them round, which ends a handshake that nobody hears of.
TEST(Stream, AConnectionIsAcceptedThoughItWasResetInTheQueue) {
  Fd listener = listen_at(here());
  Far far("reset_when_told", {std::to_string(port_of(listener))});
  EXPECT_EQ(wait_for(listener, POLLIN), POLLIN);
  far.say("reset");
  far.finish();
  Fd fd = accept_one(listener);
  expect_reset(fd);
}

FAR(reset_when_told) {
  Fd fd = connect_to(there(static_cast<uint16_t>(std::stoi(args[0]))));
  near.word();
  linger hard{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
}

TEST(Stream, HalfCloseKeepsTheOtherDirection) {
  Fd listener = listen_at(here());
  Far far("half_close", {std::to_string(port_of(listener))});
  Fd fd = accept_one(listener);
  EXPECT_EQ(read_to_end(fd), "first");
  EXPECT_TRUE(wait_for(fd, POLLRDHUP) & POLLRDHUP);
  write_all(fd, "second");
  fd.reset();
  EXPECT_EQ(far.word(), "second");
  far.finish();
}

FAR(half_close) {
  Fd fd = connect_to(there(static_cast<uint16_t>(std::stoi(args[0]))));
  write_all(fd, "first");
  shutdown(fd, SHUT_WR);
  near.say(read_to_end(fd));
}

TEST(Stream, ADupServesOnWhenTheFirstIsClosed) {
  Far far("echo");
  Fd fd = connect_to(there(static_cast<uint16_t>(far.number())));
  Fd copy(dup(fd));
  fd.reset();
  write_all(copy, "still");
  EXPECT_EQ(read_exactly(copy, 5), "still");
  copy.reset();
  far.finish();
}

TEST(Stream, AnotherThreadsShutdownWakesTheReader) {
  Far far("echo");
  Fd fd = connect_to(there(static_cast<uint16_t>(far.number())));
  std::thread reader([&] {
    char byte;
    EXPECT_EQ(recv(fd, &byte, 1, 0), 0);
  });
  shutdown(fd, SHUT_RDWR);
  reader.join();
  fd.reset();
  far.finish();
}

TEST(Stream, ThreadsShareAConnection) {
  Far far("echo");
  Fd fd = connect_to(there(static_cast<uint16_t>(far.number())));
  constexpr size_t kBytes = 4 << 20;
  std::string sent = pattern(kBytes);
  std::thread sender([&] { write_all(fd, sent); });
  EXPECT_EQ(read_exactly(fd, kBytes), sent);
  sender.join();
  fd.reset();
  far.finish();
}

TEST(Stream, InfoTellsTheState) {
  Far far("echo");
  Fd fd = connect_to(there(static_cast<uint16_t>(far.number())));
  write_all(fd, "ping");
  read_exactly(fd, 4);
  tcp_info info{};
  socklen_t size = sizeof(info);
  ASSERT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size), 0);
  EXPECT_EQ(info.tcpi_state, TCP_ESTABLISHED);
  EXPECT_GT(info.tcpi_snd_mss, 500u);
  EXPECT_GT(info.tcpi_rtt, 0u);
  fd.reset();
  far.finish();
}

TEST(Stream, ManyConnectionsInARow) {
  Fd listener = listen_at(here(), 64);
  Far far("many_calls", {std::to_string(port_of(listener)), "200"});
  for (int i = 0; i < 200; ++i) {
    Fd fd = accept_one(listener);
    write_all(fd, read_to_end(fd));
  }
  EXPECT_EQ(far.word(), "same");
  far.finish();
}

FAR(many_calls) {
  bool same = true;
  for (int i = 0; i < std::stoi(args[1]); ++i) {
    Fd fd = connect_to(there(static_cast<uint16_t>(std::stoi(args[0]))));
    std::string sent = pattern(100, static_cast<uint32_t>(i));
    write_all(fd, sent);
    shutdown(fd, SHUT_WR);
    same = same && read_to_end(fd) == sent;
  }
  near.say(same ? "same" : "different");
}

}  // namespace
