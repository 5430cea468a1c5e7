// What options do on live sockets: limits of time and of bytes, lingering, counts, the end of a stream.
#include <fcntl.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/time.h>

#include <chrono>
#include <climits>
#include <thread>

#include "posix/echo.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

constexpr long kFlood = 4 << 20;
constexpr int kProbe = 0x10;  // MSG_PROBE of linux/socket.h
constexpr int kTcpInq = 36;   // of linux/tcp.h, which does not go with netinet/tcp.h

std::string shown(long result) { return result >= 0 ? std::to_string(result) : strerrorname_np(errno); }

// Accepts, then does as near says: "send TEXT", "flood", "drain" (reads to the end and says how many bytes
// came, or the error), "close".
FAR(peer) {
  Fd listener = listen_at(here());
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  for (std::string order; (order = near.word()) != "end";) {
    if (order.rfind("send ", 0) == 0) write_all(fd, order.substr(5));
    if (order == "flood") write_all(fd, std::string(kFlood, 'x'));
    if (order == "close") fd.reset();
    if (order != "drain") continue;
    std::string buffer(1 << 16, '\0');
    long all = 0;
    ssize_t n;
    while ((n = recv(fd, buffer.data(), buffer.size(), 0)) > 0) all += n;
    near.say(n < 0 ? strerrorname_np(errno) : std::to_string(all));
  }
}

// Connects where near says, and reads to the end.
FAR(caller) {
  Fd fd = connect_to(there(static_cast<uint16_t>(near.number())));
  char byte;
  while (recv(fd, &byte, 1, 0) > 0) {
  }
}

struct Peer : Far {
  Peer() : Far("peer"), fd(connect_to(there(static_cast<uint16_t>(number())))) {}
  ~Peer() {
    say("end");
    finish();
  }
  Fd fd;
};

class Clock {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  }

 private:
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

void set_limit(int fd, int name, int milliseconds) {
  const timeval t{milliseconds / 1000, milliseconds % 1000 * 1000};
  ASSERT_EQ(setsockopt(fd, SOL_SOCKET, name, &t, sizeof t), 0);
}

template <class T>
T option(int fd, int name) {
  T value{};
  socklen_t length = sizeof value;
  EXPECT_EQ(getsockopt(fd, SOL_SOCKET, name, &value, &length), 0);
  return value;
}

/// SIGALRM in so many milliseconds.
void signal_in(int milliseconds) {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  sigaction(SIGALRM, &action, nullptr);
  const itimerval t{{0, 0}, {0, milliseconds * 1000}};
  setitimer(ITIMER_REAL, &t, nullptr);
}

std::string sent(int fd, const std::string& text) {
  return shown(send(fd, text.data(), text.size(), MSG_NOSIGNAL));
}

/// Reads `size` bytes; what came and what TCP_INQ says is left.
std::string read_and_left(int fd, size_t size) {
  Message<16> m;
  m.data.iov_len = size;
  const ssize_t n = recvmsg(fd, &m, 0);
  std::string text = shown(n);
  for (const cmsghdr* c = CMSG_FIRSTHDR(&m); c != nullptr; c = CMSG_NXTHDR(&m, const_cast<cmsghdr*>(c))) {
    int left;
    memcpy(&left, CMSG_DATA(c), sizeof left);
    if (c->cmsg_level == IPPROTO_TCP && c->cmsg_type == kTcpInq) text += " left " + std::to_string(left);
  }
  return text;
}

TEST(Effects, FlagsOfSends) {
  Peer peer;
  const Address to = there(9);
  EXPECT_EQ(shown(send(peer.fd, "x", 1, MSG_FASTOPEN)), "EISCONN");
  EXPECT_EQ(shown(sendto(peer.fd, "x", 1, MSG_FASTOPEN, to.raw(), to.size)), "EISCONN");
  EXPECT_EQ(sent(peer.fd, "abc"), "3");
  shutdown(peer.fd, SHUT_WR);
  peer.say("drain");
  EXPECT_EQ(peer.word(), "3");
  Far far("lengths");
  const Address target = there(static_cast<uint16_t>(far.number()));
  Fd fd = udp_socket();
  ASSERT_EQ(connect(fd, target.raw(), target.size), 0);
  EXPECT_EQ(shown(send(fd, "probe", 5, kProbe)), "5");  // the path is looked at, nothing is sent
  EXPECT_EQ(sent(fd, "abc"), "3");
  far.say("1");
  EXPECT_EQ(far.word(), "3");
  far.say("end");
  far.finish();
}

TEST(Effects, OffsetsOfSplice) {
  Peer peer;
  FILE* const file = tmpfile();
  ASSERT_NE(file, nullptr);
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  Fd out(pipe_ends[0]), in(pipe_ends[1]);
  off64_t at = 0;
  EXPECT_EQ(shown(splice(fileno(file), &at, peer.fd, nullptr, 1, 0)), "EINVAL");
  EXPECT_EQ(shown(splice(fileno(file), nullptr, peer.fd, nullptr, 1, 0)), "EINVAL");
  EXPECT_EQ(shown(splice(out, &at, peer.fd, nullptr, 1, 0)), "ESPIPE");
  EXPECT_EQ(shown(splice(out, nullptr, peer.fd, &at, 1, 0)), "EINVAL");
  EXPECT_EQ(shown(splice(peer.fd, &at, in, nullptr, 1, 0)), "EINVAL");
  EXPECT_EQ(shown(splice(peer.fd, nullptr, in, &at, 1, 0)), "ESPIPE");
  Fd set(epoll_create1(0));  // neither reads nor writes, and nobody waits for the pipe
  EXPECT_EQ(shown(splice(out, nullptr, set, nullptr, 1, 0)), "EINVAL");
  EXPECT_EQ(shown(splice(set, nullptr, in, nullptr, 1, 0)), "EINVAL");
  fclose(file);
}

TEST(Effects, SendTimesOut) {
  Peer peer;
  const std::string much(64 << 20, 'x');
  set_limit(peer.fd, SO_SNDTIMEO, 400);
  const ssize_t part = send(peer.fd, much.data(), much.size(), MSG_NOSIGNAL);
  EXPECT_TRUE(part > 0 && part < static_cast<ssize_t>(much.size())) << part;
  fill(peer.fd);
  const Clock clock;
  EXPECT_EQ(sent(peer.fd, "x"), "EAGAIN");
  EXPECT_TRUE(clock.seconds() > 0.3 && clock.seconds() < 2) << clock.seconds();
}

/// What is there to read when a mark of `low_water` bytes lets poll() and an edge-triggered epoll tell.
long told_at(int low_water, int receive_buffer) {
  Peer peer;
  if (receive_buffer != 0) set_option(peer.fd, SOL_SOCKET, SO_RCVBUF, receive_buffer);
  set_option(peer.fd, SOL_SOCKET, SO_RCVLOWAT, low_water);
  Fd poller(epoll_create1(0));
  epoll_event watched{EPOLLIN | EPOLLET, {}}, told{};
  EXPECT_EQ(epoll_ctl(poller, EPOLL_CTL_ADD, peer.fd, &watched), 0);
  peer.say("flood");
  EXPECT_EQ(epoll_wait(poller, &told, 1, 10000), 1) << low_water;
  EXPECT_EQ(wait_for(peer.fd, POLLIN, 0), POLLIN) << low_water;
  int there = 0;
  EXPECT_EQ(ioctl(peer.fd, FIONREAD, &there), 0);
  set_option(peer.fd, SOL_SOCKET, SO_RCVLOWAT, 1);
  std::string buffer(1 << 16, '\0');  // what is left holds the far end up
  for (long all = 0; all < kFlood;) {
    const ssize_t n = recv(peer.fd, buffer.data(), buffer.size(), 0);
    if (n <= 0) break;
    all += n;
  }
  return there;
}

// Where no more comes before something is read, there is enough to read (tcp_epollin_ready()).
TEST(Effects, LowWaterAboveTheWindow) {
  EXPECT_GT(told_at(65536, 65536), 30000);
  // How much fits the buffer depends on how the other end cuts it.
  EXPECT_GT(told_at(1100000, 0), 900000);
  EXPECT_GT(told_at(2 << 20, 0), 1500000);
}

// sock_set_timeout(): a negative limit is none to wait, an enormous one is no limit, or as good as none.
TEST(Effects, ExtremeLimitsOfTime) {
  constexpr long kEnormous[] = {10'000'000'000'000, 9'223'372'036'854, LONG_MAX};
  Peer peer;
  Fd udp = udp_at(here()), listener = listen_at(here());
  char byte;
  auto receive = [&](int fd) {
    return fd == listener ? accept(fd, nullptr, nullptr) : recv(fd, &byte, 1, 0);
  };
  for (int fd : {int{peer.fd}, int{udp}, int{listener}}) {
    const timeval negative{-1, 0};
    ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &negative, sizeof negative), 0);
    EXPECT_EQ(option<timeval>(fd, SO_RCVTIMEO).tv_sec, 0);
    const Clock clock;
    EXPECT_EQ(shown(receive(fd)), "EAGAIN");
    EXPECT_LT(clock.seconds(), 1);
    for (long seconds : kEnormous) {
      const timeval t{seconds, 0};
      ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t), 0);
      // A signal ends the wait. Nothing else does.
      signal_in(300);
      EXPECT_EQ(shown(receive(fd)), "EINTR") << seconds;
    }
  }
  peer.say("send 1");
  const timeval negative{-1, 0};
  ASSERT_EQ(setsockopt(peer.fd, SOL_SOCKET, SO_SNDTIMEO, &negative, sizeof negative), 0);
  fill(peer.fd);
  EXPECT_EQ(sent(peer.fd, "x"), "EAGAIN");
}

// What a listener has, its connections have.
TEST(Effects, ANegativeLimitIsInherited) {
  Far far("caller");
  Fd listener = listen_at(here());
  const timeval negative{-1, 0};
  ASSERT_EQ(setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &negative, sizeof negative), 0);
  far.say(std::to_string(port_of(listener)));
  EXPECT_EQ(wait_for(listener, POLLIN), POLLIN);
  Fd fd(accept(listener, nullptr, nullptr));
  char byte;
  EXPECT_EQ(shown(recv(fd, &byte, 1, 0)), "EAGAIN");
  fd.reset();
  far.finish();
}

// Name servers and HAProxy ask for it; without the host's leave (net.ipv4.tcp_fastopen) it changes nothing.
TEST(Effects, AListenersFastOpenNeedsTheHostsLeave) {
  Far far("caller");
  Fd listener = tcp_socket();
  const Address at = here();
  set_option(listener, IPPROTO_TCP, TCP_FASTOPEN, 5);
  ASSERT_EQ(bind(listener, at.raw(), at.size), 0);
  ASSERT_EQ(listen(listener, 5), 0);
  set_option(listener, IPPROTO_TCP, TCP_FASTOPEN, 7);
  far.say(std::to_string(port_of(listener)));
  EXPECT_EQ(wait_for(listener, POLLIN), POLLIN);
  Fd fd(accept(listener, nullptr, nullptr));
  int queue = -1;
  socklen_t size = sizeof queue;
  EXPECT_EQ(getsockopt(listener, IPPROTO_TCP, TCP_FASTOPEN, &queue, &size), 0);
  EXPECT_EQ(queue, 7);
  EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_FASTOPEN, &queue, &size), 0);
  EXPECT_EQ(queue, 0);
  fd.reset();
  far.finish();
}

TEST(Effects, LowWaterHoldsReadersBack) {
  Peer peer;
  char bytes[100];
  set_option(peer.fd, SOL_SOCKET, SO_RCVLOWAT, 10);
  peer.say("send 12345");
  EXPECT_EQ(wait_for(peer.fd, POLLIN, 200), 0);
  set_limit(peer.fd, SO_RCVTIMEO, 200);
  EXPECT_EQ(shown(recv(peer.fd, bytes, sizeof bytes, MSG_PEEK)), "5");  // when the time is over
  EXPECT_EQ(shown(recv(peer.fd, bytes, 3, 0)), "3");                    // no more was asked for
  peer.say("send 6789012345");
  EXPECT_EQ(wait_for(peer.fd, POLLIN), POLLIN);
  EXPECT_EQ(shown(recv(peer.fd, bytes, sizeof bytes, 0)), "12");
  peer.say("send 12");
  peer.say("close");
  EXPECT_EQ(wait_for(peer.fd, POLLIN), POLLIN);
  EXPECT_EQ(shown(recv(peer.fd, bytes, sizeof bytes, MSG_WAITALL)), "2");
}

TEST(Effects, CloseLingersUntilAllIsAcknowledgedOrTheTimeIsOver) {
  for (const bool read : {false, true}) {
    Peer peer;
    const linger hold{1, read ? 10 : 1};
    ASSERT_EQ(setsockopt(peer.fd, SOL_SOCKET, SO_LINGER, &hold, sizeof hold), 0);
    const long all = fill(peer.fd);
    std::thread reader([&] {
      usleep(300000);
      if (read) peer.say("drain");
    });
    const Clock clock;
    EXPECT_EQ(close(peer.fd.release()), 0);
    const double took = clock.seconds();
    EXPECT_TRUE(took > (read ? 0.2 : 0.9) && took < (read ? 8 : 2)) << took;
    reader.join();
    if (!read) peer.say("drain");
    EXPECT_EQ(peer.word(), std::to_string(all));  // what is left is sent behind the close
  }
}

TEST(Effects, ALingerOfNoTimeIsAReset) {
  Peer peer;
  const linger none{1, 0};
  ASSERT_EQ(setsockopt(peer.fd, SOL_SOCKET, SO_LINGER, &none, sizeof none), 0);
  peer.fd.reset();
  peer.say("drain");
  EXPECT_EQ(peer.word(), "ECONNRESET");
}

TEST(Effects, PeeksGoOnWhereTheLastEnded) {
  Peer peer;
  char bytes[16] = {};
  set_option(peer.fd, SOL_SOCKET, SO_PEEK_OFF, 2);
  peer.say("send abcdefgh");
  while (recv(peer.fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT) != 6) {
    set_option(peer.fd, SOL_SOCKET, SO_PEEK_OFF, 2);
    usleep(1000);
  }
  EXPECT_EQ(std::string(bytes, 6), "cdefgh");
  EXPECT_EQ(get_option(peer.fd, SOL_SOCKET, SO_PEEK_OFF), 8);
  EXPECT_EQ(shown(recv(peer.fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT)), "EAGAIN");
  EXPECT_EQ(shown(recv(peer.fd, bytes, 3, 0)), "3");
  EXPECT_EQ(get_option(peer.fd, SOL_SOCKET, SO_PEEK_OFF), 5);
  peer.say("send ij");
  EXPECT_EQ(shown(recv(peer.fd, bytes, 1, MSG_PEEK)), "1");
  EXPECT_EQ(bytes[0], 'i');
  set_option(peer.fd, SOL_SOCKET, SO_TIMESTAMP, 1);  // the connection is the kernel's from here on
  EXPECT_EQ(shown(recv(peer.fd, bytes, 1, MSG_PEEK)), "1");
  EXPECT_EQ(bytes[0], 'j');
  EXPECT_EQ(get_option(peer.fd, SOL_SOCKET, SO_PEEK_OFF), 7);
}

// tcp_probe_timer(): else a peer that answers probes may keep its window closed for ever.
TEST(Effects, AUserTimeoutEndsWhatAClosedWindowHolds) {
  Peer peer;
  set_option(peer.fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 3000);
  const Clock clock;
  fill(peer.fd);
  EXPECT_NE(wait_for(peer.fd, POLLERR) & POLLERR, 0);
  EXPECT_TRUE(clock.seconds() > 2.5 && clock.seconds() < 10) << clock.seconds();
  EXPECT_EQ(sent(peer.fd, "x"), "ETIMEDOUT");
}

// It says what the window may grow to, also where nobody has set it, and not more than SO_RCVBUF allows.
TEST(Effects, TheWindowsClamp) {
  auto clamp_of = [](int option, int level, int value) {
    Peer peer;
    if (option != 0) set_option(peer.fd, level, option, value);
    return get_option(peer.fd, IPPROTO_TCP, TCP_WINDOW_CLAMP);
  };
  EXPECT_GT(clamp_of(0, 0, 0), 20000);
  EXPECT_EQ(clamp_of(TCP_WINDOW_CLAMP, IPPROTO_TCP, 5000), 5000);
  EXPECT_EQ(clamp_of(TCP_WINDOW_CLAMP, IPPROTO_TCP, 1), 1152);
}

// tcp_inq_hint(): the end counts as a byte, so that a program that reads what it is told finds it.
TEST(Effects, WhatIsLeftCountsTheEnd) {
  Peer peer;
  set_option(peer.fd, IPPROTO_TCP, kTcpInq, 1);
  peer.say("send abc");
  EXPECT_EQ(read_and_left(peer.fd, 1), "1 left 2");
  peer.say("close");
  EXPECT_NE(wait_for(peer.fd, POLLRDHUP) & POLLRDHUP, 0);
  EXPECT_EQ(read_and_left(peer.fd, 1), "1 left 2");
  EXPECT_EQ(read_and_left(peer.fd, 1), "1 left 1");
  EXPECT_EQ(read_and_left(peer.fd, 1), "0 left 1");
  EXPECT_EQ(read_and_left(peer.fd, 1), "0 left 1");
}

// Connects as often as told, and holds them.
FAR(callers_that_wait) {
  std::vector<Fd> held;
  for (int i = std::stoi(args[1]); i > 0; --i)
    held.push_back(connect_to(there(static_cast<uint16_t>(std::stoi(args[0])))));
  near.say("there");
  near.word();
}

TEST(Effects, AListenersInfoTellsItsQueue) {
  Echo proof(kProof);
  Fd listener = listen_at(here(), 7);
  auto queue = [&] {
    tcp_info info{};
    socklen_t size = sizeof info;
    EXPECT_EQ(getsockopt(listener, IPPROTO_TCP, TCP_INFO, &info, &size), 0);
    return std::to_string(info.tcpi_state) + ": " + std::to_string(info.tcpi_unacked) + " of " +
           std::to_string(info.tcpi_sacked);
  };
  EXPECT_EQ(queue(), "10: 0 of 7");
  Far far("callers_that_wait", {std::to_string(port_of(listener)), "3"});
  EXPECT_EQ(far.word(), "there");
  for (int i = 0; i < 100 && queue() != "10: 3 of 7"; ++i) usleep(10000);  // the last ACK is on its way
  EXPECT_EQ(queue(), "10: 3 of 7");
  Fd one = accept_one(listener);
  EXPECT_EQ(queue(), "10: 2 of 7");
  far.say("end");
  far.finish();
  proof.all();
}

// Sends so many datagrams of 1000 bytes, each time that near asks.
FAR(flood) {
  Fd fd = udp_socket();
  const Address to = there(static_cast<uint16_t>(std::stoi(args[0])));
  for (std::string order; (order = near.word()) != "end";) {
    const std::string payload(1000, 'x');
    for (int i = std::stoi(order); i > 0; --i) {
      sendto(fd, payload.data(), payload.size(), 0, to.raw(), to.size);
      if (i % 8 == 0) usleep(2000);  // rings are not what is to lose them
    }
    near.say("sent");
  }
}

/// Reads a datagram; its SO_RXQ_OVFL, -1: none.
long lost_before(int fd) {
  Message<2000> m;
  if (recvmsg(fd, &m, MSG_DONTWAIT) < 0) return -2;
  for (const cmsghdr* c = CMSG_FIRSTHDR(&m); c != nullptr; c = CMSG_NXTHDR(&m, const_cast<cmsghdr*>(c))) {
    uint32_t lost;
    memcpy(&lost, CMSG_DATA(c), sizeof lost);
    if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_RXQ_OVFL) return lost;
  }
  return -1;
}

// What was lost after a datagram had come is not told with it.
TEST(Effects, LostDatagramsAreCountedAsOfTheArrival) {
  Fd fd = udp_at(here());
  set_option(fd, SOL_SOCKET, SO_RCVBUF, 8192);
  set_option(fd, SOL_SOCKET, SO_RXQ_OVFL, 1);
  Far far("flood", {std::to_string(port_of(fd))});
  far.say("100");
  EXPECT_EQ(far.word(), "sent");
  usleep(50000);
  long kept = 0;
  for (long lost; (lost = lost_before(fd)) != -2; ++kept) EXPECT_EQ(lost, -1);
  EXPECT_LT(kept, 100);
  far.say("1");
  EXPECT_EQ(far.word(), "sent");
  EXPECT_EQ(wait_for(fd, POLLIN), POLLIN);
  EXPECT_EQ(lost_before(fd), 100 - kept);
  far.say("end");
  far.finish();
}

// Says how long each datagram is that comes until near has asked for so many.
FAR(lengths) {
  Fd fd = udp_at(here());
  near.say(port_of(fd));
  for (std::string order; (order = near.word()) != "end";) {
    std::string text;
    char bytes[2000];
    for (int i = std::stoi(order); i > 0; --i)
      text += std::to_string(recv(fd, bytes, sizeof bytes, 0)) + (i > 1 ? " " : "");
    near.say(text);
  }
}

TEST(Effects, DatagramsThatTheKernelMakes) {
  Echo proof(kProof);
  Far far("lengths");
  const Address to = there(static_cast<uint16_t>(far.number()));
  Fd segments = udp_socket(), corked = udp_socket();
  ASSERT_EQ(connect(segments, to.raw(), to.size), 0);
  ASSERT_EQ(connect(corked, to.raw(), to.size), 0);
  set_option(segments, IPPROTO_UDP, UDP_SEGMENT, 100);
  EXPECT_EQ(sent(segments, std::string(350, 'x')), "350");
  far.say("4");
  EXPECT_EQ(far.word(), "100 100 100 50");
  set_option(corked, IPPROTO_UDP, UDP_CORK, 1);
  EXPECT_EQ(sent(corked, "abc"), "3");
  EXPECT_EQ(sent(corked, "de"), "2");
  set_option(corked, IPPROTO_UDP, UDP_CORK, 0);
  EXPECT_EQ(sent(corked, "f"), "1");
  far.say("2");
  EXPECT_EQ(far.word(), "5 1");
  far.say("end");
  far.finish();
  proof.all();
}

TEST(Effects, MergedDatagramsComeWhole) {
  Echo proof(kProof);
  Fd fd = udp_at(here());
  set_option(fd, IPPROTO_UDP, UDP_GRO, 1);
  Far far("flood", {std::to_string(port_of(fd))});
  far.say("5");
  EXPECT_EQ(far.word(), "sent");
  long all = 0;
  while (all < 5000) {
    ASSERT_EQ(wait_for(fd, POLLIN), POLLIN);
    Message<60000> m;
    const ssize_t n = recvmsg(fd, &m, 0);
    ASSERT_GT(n, 0);
    EXPECT_EQ(n % 1000, 0);
    all += n;
  }
  EXPECT_EQ(all, 5000);
  far.say("end");
  far.finish();
  proof.all();
}

}  // namespace
