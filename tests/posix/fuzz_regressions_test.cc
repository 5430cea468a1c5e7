// What the differential fuzzer has found, each alone: a sequence of calls whose result was not the kernel's.
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>

#include "posix/echo.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

const sockaddr kNobody{AF_UNSPEC, {}};

// Connects; when told, says something, and what became of it.
FAR(late_speaker) {
  Fd fd = connect_to(there(static_cast<uint16_t>(std::stoi(args[0]))));
  near.say("connected");
  near.word();
  send(fd, "late", 4, MSG_NOSIGNAL);
  if (args.size() > 1) near.say("said");
  char byte;
  const ssize_t n = recv(fd, &byte, 1, 0);
  near.say(n < 0 ? strerrorname_np(errno) : n == 0 ? "end" : "data");
}

// Echoes one connection.
FAR(listens) {
  Fd listener = listen_at(here(0, std::stoi(args[0])));
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  char buffer[64];
  for (ssize_t n; (n = recv(fd, buffer, sizeof buffer, 0)) > 0;)
    write_all(fd, buffer, static_cast<size_t>(n));
}

// Accepts, and resets when told.
FAR(resets) {
  Fd listener = listen_at(here());
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  near.word();
  const linger at_once{1, 0};
  EXPECT_EQ(setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
}

/// A listener with a handshake under way (its ACK counts only with data) that is shut down.
struct Interrupted {
  Interrupted() : listener(tcp_socket()) {
    const Address at = here();
    EXPECT_EQ(bind(listener, at.raw(), at.size), 0);
    set_option(listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, 30);
    EXPECT_EQ(::listen(listener, 4), 0);
  }
  void shut_down() const { EXPECT_EQ(shutdown(listener, SHUT_RD), 0); }
  Echo proof{kProof};
  Fd listener;
};

TEST(FuzzRegressions, AListenerThatListensAgainKeepsHandshakesUnderWay) {
  Interrupted i;
  Far far("late_speaker", {std::to_string(port_of(i.listener))});
  far.word();
  i.shut_down();
  ASSERT_EQ(listen(i.listener, 4), 0);
  far.say("speak");
  Fd fd = accept_one(i.listener);
  EXPECT_EQ(read_exactly(fd, 4), "late");
  fd.reset();
  EXPECT_EQ(far.word(), "end");
  far.finish();
  i.proof.all();
}

TEST(FuzzRegressions, AListenerThatWasSpokenToMeanwhileHasLostThem) {
  Interrupted i;
  Far far("late_speaker", {std::to_string(port_of(i.listener)), "say"});
  far.word();
  i.shut_down();
  far.say("speak");
  EXPECT_EQ(far.word(), "said");
  EXPECT_EQ(far.word(), "ECONNRESET");
  ASSERT_EQ(listen(i.listener, 4), 0);
  EXPECT_EQ(wait_for(i.listener, POLLIN, 50), 0);
  far.finish();
  i.proof.all();
}

// A set knows a member by a number that is closed; the member goes on by another.
TEST(FuzzRegressions, ASetsMemberIsToldOfByAClosedNumber) {
  Echo proof(kProof);
  Fd set(epoll_create1(0)), listener = listen_at(here());
  Fd first = tcp_socket();
  set_nonblocking(first);
  epoll_event e{EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, {.u64 = 7}};
  ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, first, &e), 0);
  Fd second(dup(first));
  first.reset();
  Far far("echo_stream");
  const Address to = there(static_cast<uint16_t>(far.number()));
  ASSERT_EQ(connect(second, to.raw(), to.size), -1);
  EXPECT_EQ(errno, EINPROGRESS);
  ASSERT_EQ(wait_for(second, POLLOUT), POLLOUT);
  ASSERT_EQ(connect(second, &kNobody, sizeof kNobody), 0);
  epoll_event events[2]{};
  EXPECT_EQ(epoll_wait(set, events, 2, 0), 1);
  EXPECT_EQ(events[0].events, static_cast<uint32_t>(EPOLLOUT | EPOLLERR | EPOLLHUP));
  EXPECT_EQ(events[0].data.u64, 7u);
  EXPECT_EQ(far.word(), "Connection reset by peer");
  far.finish();
  proof.all();
}

// TCP_NOTSENT_LOWAT is asked for each segment of urgent data but the first, which fills the last buffer.
TEST(FuzzRegressions, UrgentDataFillTheLastSegmentFirst) {
  Echo echo(kProof);
  const int mss = get_option(echo.fd, IPPROTO_TCP, TCP_MAXSEG);
  set_option(echo.fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 2);
  const std::string data = pattern(5000);
  ASSERT_EQ(send(echo.fd, data.data(), 1, MSG_MORE), 1);
  EXPECT_EQ(send(echo.fd, data.data(), data.size(), MSG_OOB | MSG_DONTWAIT), mss - 1);
}

// Setting TCP_NOTSENT_LOWAT wakes whoever waits to write, a listener's waiters too: what they find is told.
TEST(FuzzRegressions, TheLowWaterMarkIsAnEdgeOfAListener) {
  Echo proof(kProof);
  Fd listener = listen_at(here()), set(epoll_create1(0));
  epoll_event e{EPOLLIN | EPOLLOUT | EPOLLET, {}};
  ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, listener, &e), 0);
  Far far("late_speaker", {std::to_string(port_of(listener))});
  far.word();
  ASSERT_EQ(epoll_wait(set, &e, 1, 20000), 1);
  EXPECT_EQ(epoll_wait(set, &e, 1, 0), 0);
  set_option(listener, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 100);
  EXPECT_EQ(epoll_wait(set, &e, 1, 0), 1);
  EXPECT_EQ(e.events, static_cast<uint32_t>(EPOLLIN));
  Fd fd = accept_one(listener);
  far.say("speak");
  EXPECT_EQ(read_exactly(fd, 4), "late");
  fd.reset();
  far.word();
  far.finish();
  proof.all();
}

// Setting SO_RCVLOWAT tells of data, and of the peer's end: not that the program itself has shut its reading
// down.
TEST(FuzzRegressions, TheReadLowWaterMarkIsNoEdgeWithoutData) {
  Echo echo(kProof);
  Fd set(epoll_create1(0));
  epoll_event e{EPOLLIN | EPOLLRDHUP | EPOLLET, {}};
  ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, echo.fd, &e), 0);
  ASSERT_EQ(shutdown(echo.fd, SHUT_RD), 0);
  ASSERT_EQ(epoll_wait(set, &e, 1, 0), 1);
  EXPECT_EQ(e.events, static_cast<uint32_t>(EPOLLIN | EPOLLRDHUP));
  set_option(echo.fd, SOL_SOCKET, SO_RCVLOWAT, 2);
  EXPECT_EQ(epoll_wait(set, &e, 1, 100), 0);
  write_all(echo.fd, "ab");
  ASSERT_EQ(epoll_wait(set, &e, 1, 20000), 1);
  set_option(echo.fd, SOL_SOCKET, SO_RCVLOWAT, 1);
  EXPECT_EQ(epoll_wait(set, &e, 1, 0), 1);
}

// Of a connection whose traffic class has changed the kernel forgets the route until it sends.
TEST(FuzzRegressions, AnotherTrafficClassAnotherRoute) {
  for (const int family : {AF_INET, AF_INET6}) {
    Far far("listens", {std::to_string(family)});
    Fd fd = connect_to(there(static_cast<uint16_t>(far.number()), family));
    const int level = family == AF_INET ? IPPROTO_IP : IPPROTO_IPV6,
              mtu = family == AF_INET ? IP_MTU : IPV6_MTU;
    EXPECT_EQ(get_option(fd, level, mtu), 1500);
    set_option(fd, level, family == AF_INET ? IP_TOS : IPV6_TCLASS, 100);
    int value = 0;
    socklen_t size = sizeof value;
    EXPECT_EQ(getsockopt(fd, level, mtu, &value, &size), -1);
    EXPECT_EQ(errno, ENOTCONN);
    exchange(fd, "on");
    EXPECT_EQ(get_option(fd, level, mtu), 1500);
    for (int i = 0; i < kProof; ++i) exchange(fd, ".");
    fd.reset();
    far.finish();
  }
}

// bind() to port 0 keeps a port for one connection only.
TEST(FuzzRegressions, AnAutomaticPortGoesWithTheConnection) {
  Echo proof(kProof);
  for (const bool chosen : {false, true}) {
    Far far("resets");
    Fd fd = tcp_socket();
    const Address at = here(chosen ? 7777 : 0);
    ASSERT_EQ(bind(fd, at.raw(), at.size), 0);
    const Address to = there(static_cast<uint16_t>(far.number()));
    ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
    far.say("reset");
    ASSERT_NE(wait_for_end(fd, POLLIN) & POLLHUP, 0);
    const Address again = here();
    EXPECT_EQ(bind(fd, again.raw(), again.size), chosen ? -1 : 0);
    EXPECT_EQ(bind(fd, again.raw(), again.size), -1);
    far.finish();
  }
  proof.all();
}

}  // namespace
