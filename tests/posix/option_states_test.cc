// Options whose answer, or whose being allowed, hangs on the connection that the kernel's socket below an
// accelerated one does not have.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>

#include "posix/echo.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

std::string result(long value) { return value >= 0 ? std::to_string(value) : strerrorname_np(errno); }

std::string set(int fd, int level, int name, int value) {
  return result(setsockopt(fd, level, name, &value, sizeof value));
}

/// The size, or why there is none.
std::string get(int fd, int level, int name, void* value, socklen_t room) {
  const int r = getsockopt(fd, level, name, value, &room);
  return r == 0 ? std::to_string(room) : result(r);
}

// Takes a connection and ends it by a reset once it is told so.
FAR(resets) {
  Fd listener = listen_at(here());
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  near.number();
  const linger now{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  fd.reset();
  near.say("done");
}

struct Ended {
  Ended() : far("resets"), port(static_cast<uint16_t>(far.number())), fd(connect_to(there(port))) {
    for (int i = 0; i < kProof; ++i) exchange(proof.fd, ".");
    far.say(1);
    EXPECT_NE(wait_for_end(fd, POLLHUP) & POLLHUP, 0);
    far.word();
    far.finish();
    proof.all();
  }
  Echo proof;
  Far far;
  uint16_t port;
  Fd fd;
};

TEST(Ended, TakesEveryOption) {
  Ended ended;
  EXPECT_EQ(set(ended.fd, SOL_SOCKET, SO_TIMESTAMP, 1), "0");
  EXPECT_EQ(set(ended.fd, SOL_SOCKET, SO_DONTROUTE, 1), "0");
  EXPECT_EQ(set(ended.fd, IPPROTO_IP, IP_RECVERR, 1), "0");
  EXPECT_EQ(set(ended.fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT), "0");
  EXPECT_EQ(set(ended.fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1), "0");
  EXPECT_EQ(set(ended.fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, 0), "0");
}

TEST(Ended, KeepsThePeersNameForOneOption) {
  Ended ended;
  Address name;
  EXPECT_EQ(result(getpeername(ended.fd, name.raw(), &name.size)), "ENOTCONN");
  EXPECT_EQ(get(ended.fd, SOL_SOCKET, SO_PEERNAME, &name.storage, sizeof(sockaddr_in)), "16");
  EXPECT_EQ(name.port(), ended.port);
}

TEST(Ended, SendsNoControlMessages) {
  Ended ended;
  EXPECT_EQ(get_option(ended.fd, SOL_SOCKET, SO_ERROR), ECONNRESET);
  Message<1, CMSG_SPACE(sizeof(int))> m;
  cmsghdr* c = CMSG_FIRSTHDR(&m);
  *c = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SO_MARK};
  EXPECT_EQ(result(sendmsg(ended.fd, &m, MSG_NOSIGNAL)), "EPIPE");
}

TEST(Connected, HasAPeersNameOfItsSize) {
  Echo echo;
  Address name;
  EXPECT_EQ(get(echo.fd, SOL_SOCKET, SO_PEERNAME, &name.storage, sizeof name.storage), "EINVAL");
  EXPECT_EQ(get(echo.fd, SOL_SOCKET, SO_PEERNAME, &name.storage, sizeof(sockaddr_in)), "16");
  EXPECT_NE(name.port(), 0);
  for (int i = 0; i < kProof; ++i) exchange(echo.fd, ".");
  echo.all();
}

TEST(Connected, RefusesWhatIsForBeginners) {
  Echo echo(kProof);
  for (const int name : {TCP_FASTOPEN, TCP_FASTOPEN_CONNECT, TCP_FASTOPEN_NO_COOKIE})
    EXPECT_EQ(set(echo.fd, IPPROTO_TCP, name, 1), "EINVAL");
  EXPECT_EQ(set(echo.fd, IPPROTO_TCP, TCP_QUEUE_SEQ, 1), "EPERM");
  echo.all();
}

TEST(Connected, SegmentsKeepTheirSize) {
  Echo echo(kProof);
  const int before = get_option(echo.fd, IPPROTO_TCP, TCP_MAXSEG);
  for (const int size : {500, 0}) {
    EXPECT_EQ(set(echo.fd, IPPROTO_TCP, TCP_MAXSEG, size), "0");
    EXPECT_EQ(get_option(echo.fd, IPPROTO_TCP, TCP_MAXSEG), before);
  }
  sockaddr none{};
  none.sa_family = AF_UNSPEC;
  ASSERT_EQ(connect(echo.fd, &none, sizeof none), 0);
  EXPECT_EQ(get_option(echo.fd, IPPROTO_TCP, TCP_MAXSEG), before);
  echo.fd.reset();
  echo.word();
  echo.finish();
}

// As long as the kernel's of other sockets.
TEST(Connected, InformationIsAsLongAsTheKernels) {
  Echo echo(kProof);
  char info[1024];
  Fd fresh = tcp_socket();
  const std::string kernels = get(fresh, IPPROTO_TCP, TCP_INFO, info, sizeof info);
  EXPECT_EQ(get(echo.fd, IPPROTO_TCP, TCP_INFO, info, sizeof info), kernels);
  echo.all();
}

TEST(Connected, MapsNothingButSaysWhatThereIs) {
  Echo echo(kProof);
  tcp_zerocopy_receive zc{};
  EXPECT_EQ(get(echo.fd, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &zc, 3), "EINVAL");
  zc.address = 1;
  EXPECT_EQ(get(echo.fd, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &zc, sizeof zc), "EINVAL");
  write_all(echo.fd, "abc");
  EXPECT_EQ(wait_for(echo.fd, POLLIN), POLLIN);
  zc = {};
  EXPECT_EQ(get(echo.fd, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &zc, 24), "24");
  EXPECT_EQ(zc.length, 0u);
  EXPECT_EQ(zc.recv_skip_hint, 3u);
  EXPECT_EQ(zc.inq, 3u);
  EXPECT_EQ(read_exactly(echo.fd, 3), "abc");
  echo.all();
}

// Echoes over IPv6, whatever comes first.
FAR(echo_six) {
  Fd listener = listen_at(any(0, AF_INET6));
  near.say(port_of(listener));
  for (int connections = 0; connections < 2; ++connections) {
    Fd fd = accept_one(listener);
    char buffer[512];
    for (ssize_t n; (n = recv(fd, buffer, sizeof buffer, 0)) > 0;)
      write_all(fd, buffer, static_cast<size_t>(n));
  }
}

TEST(Six, KnowsItsPath) {
  Far far("echo_six");
  const auto port = static_cast<uint16_t>(far.number());
  Fd fd = connect_to(there(port, AF_INET6));
  for (int i = 0; i < kProof; ++i) exchange(fd, ".");
  ip6_mtuinfo path{};
  EXPECT_EQ(get(fd, IPPROTO_IPV6, IPV6_PATHMTU, &path, sizeof path), "32");
  EXPECT_EQ(static_cast<int>(path.ip6m_mtu), get_option(fd, IPPROTO_IPV6, IPV6_MTU));
  EXPECT_EQ(get(fd, IPPROTO_IPV6, IPV6_PATHMTU, &path, sizeof path - 1), "EINVAL");
  fd.reset();
  connect_to(there(port, AF_INET6));
  far.finish();
}

TEST(Six, BecomesIpv4WhereItsPeerIs) {
  Far far("echo_six");
  const auto port = static_cast<uint16_t>(far.number());
  Fd six = connect_to(there(port, AF_INET6));
  EXPECT_EQ(get_option(six, IPPROTO_IPV6, IPV6_ADDRFORM), AF_INET6);
  EXPECT_EQ(set(six, IPPROTO_IPV6, IPV6_ADDRFORM, AF_INET), "EADDRNOTAVAIL");
  for (int i = 0; i < kProof; ++i) exchange(six, ".");
  six.reset();
  const Address to = there(port);
  Address mapped;
  auto* at = reinterpret_cast<sockaddr_in6*>(&mapped.storage);
  *at = {};
  at->sin6_family = AF_INET6;
  at->sin6_port = htons(port);
  at->sin6_addr.s6_addr[10] = at->sin6_addr.s6_addr[11] = 0xff;
  memcpy(&at->sin6_addr.s6_addr[12], &reinterpret_cast<const sockaddr_in*>(to.raw())->sin_addr, 4);
  mapped.size = sizeof *at;
  Fd fd = connect_to(mapped);
  EXPECT_EQ(set(fd, IPPROTO_IPV6, IPV6_ADDRFORM, AF_INET), "0");
  Address name;
  EXPECT_EQ(getpeername(fd, name.raw(), &name.size), 0);
  EXPECT_EQ(name.family(), AF_INET);
  exchange(fd, "still there");
  fd.reset();
  far.finish();
}

// Takes a connection and ends its stream once it is told so.
FAR(ends_stream) {
  Fd listener = listen_at(here());
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  near.number();
  shutdown(fd, SHUT_WR);
  near.say("ended");
  EXPECT_EQ(read_to_end(fd), "x");
}

// Not even with the strictest IP_MINTTL, which nothing but the kernel has.
TEST(HandBack, DoesNotLoseTheEndForItsTtl) {
  Echo proof(kProof);
  Far far("ends_stream");
  Fd fd = connect_to(there(static_cast<uint16_t>(far.number())));
  far.say(1);
  EXPECT_NE(wait_for(fd, POLLRDHUP) & POLLRDHUP, 0);
  EXPECT_EQ(far.word(), "ended");
  EXPECT_EQ(set(fd, IPPROTO_IP, IP_MINTTL, 255), "0");
  EXPECT_NE(wait_for(fd, POLLRDHUP, 3000) & POLLRDHUP, 0);
  EXPECT_EQ(set(fd, IPPROTO_IP, IP_MINTTL, 0), "0");
  write_all(fd, "x");
  fd.reset();
  far.finish();
  proof.all();
}

/// What a call says that makes a socket the kernel's: ACCEL_REQUIRE has it refused.
const char* kernels() {
  return getenv("ACCEL_REQUIRE") != nullptr && getenv("LD_PRELOAD") != nullptr ? "EPROTONOSUPPORT" : "0";
}

// What sends otherwise than ours is the kernel's from the beginning, as it is when it is set later.
TEST(Beforehand, OtherDiscoveryIsTheKernels) {
  Echo proof(kProof);
  Fd fd = tcp_socket();
  set_option(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE);
  const Address at = here();
  ASSERT_EQ(bind(fd, at.raw(), at.size), 0);
  EXPECT_EQ(result(listen(fd, 1)), kernels());
  proof.all();
}

// Connects, sends a byte once it is told so, and sees how the connection ends; twice.
FAR(calls_twice) {
  for (int calls = 0; calls < 2; ++calls) {
    Fd fd = connect_to(there(static_cast<uint16_t>(near.number())));
    near.say("connected");
    near.word();
    write_all(fd, "x");
    char byte;
    near.say(recv(fd, &byte, 1, 0) == 0 ? "end" : strerrorname_np(errno));
  }
}

struct Value {
  int level, name, value;
};
using Values = std::vector<Value>;

const Values kBefore = {{SOL_SOCKET, SO_KEEPALIVE, 1},    {SOL_SOCKET, SO_RCVLOWAT, 3},
                        {SOL_SOCKET, SO_RCVBUF, 30000},   {SOL_SOCKET, SO_SNDBUF, 40000},
                        {IPPROTO_TCP, TCP_NODELAY, 1},    {IPPROTO_TCP, TCP_KEEPIDLE, 111},
                        {IPPROTO_TCP, TCP_KEEPINTVL, 11}, {IPPROTO_TCP, TCP_USER_TIMEOUT, 11000},
                        {IPPROTO_TCP, TCP_INQ, 1},        {IPPROTO_TCP, TCP_NOTSENT_LOWAT, 1111},
                        {IPPROTO_IP, IP_TTL, 33},         {IPPROTO_IP, IP_TOS, 0x10},
                        {SOL_SOCKET, SO_RCVTIMEO, 1},     {SOL_SOCKET, SO_SNDTIMEO, 11},
                        {SOL_SOCKET, SO_LINGER, 0}};
const Values kAfter = {{SOL_SOCKET, SO_KEEPALIVE, 0},    {SOL_SOCKET, SO_RCVLOWAT, 1},
                       {SOL_SOCKET, SO_RCVBUF, 50000},   {SOL_SOCKET, SO_SNDBUF, 60000},
                       {IPPROTO_TCP, TCP_NODELAY, 0},    {IPPROTO_TCP, TCP_KEEPIDLE, 222},
                       {IPPROTO_TCP, TCP_KEEPINTVL, 22}, {IPPROTO_TCP, TCP_USER_TIMEOUT, 22000},
                       {IPPROTO_TCP, TCP_INQ, 0},        {IPPROTO_TCP, TCP_NOTSENT_LOWAT, 2222},
                       {IPPROTO_IP, IP_TTL, 44},         {IPPROTO_IP, IP_TOS, 0x08},
                       {SOL_SOCKET, SO_RCVTIMEO, 20},    {SOL_SOCKET, SO_SNDTIMEO, 22},
                       {SOL_SOCKET, SO_LINGER, -1}};

bool is_timeout(const Value& v) {
  return v.level == SOL_SOCKET && (v.name == SO_RCVTIMEO || v.name == SO_SNDTIMEO);
}

/// Of SO_LINGER the time; -1: off.
void set_values(int fd, const Values& values) {
  for (const Value& v : values) {
    const timeval time{v.value, 0};
    const linger lingers{v.value >= 0, v.value};
    if (is_timeout(v))
      ASSERT_EQ(setsockopt(fd, v.level, v.name, &time, sizeof time), 0);
    else if (v.level == SOL_SOCKET && v.name == SO_LINGER)
      ASSERT_EQ(setsockopt(fd, v.level, v.name, &lingers, sizeof lingers), 0);
    else
      set_option(fd, v.level, v.name, v.value);
  }
}

void expect_values(int fd, const Values& values) {
  for (const Value& v : values) {
    int shown[4] = {};
    socklen_t size = sizeof shown;
    ASSERT_EQ(getsockopt(fd, v.level, v.name, shown, &size), 0);
    const bool lingers = v.level == SOL_SOCKET && v.name == SO_LINGER;
    const bool doubled = v.level == SOL_SOCKET && (v.name == SO_RCVBUF || v.name == SO_SNDBUF);
    if (lingers && shown[0] != 0)
      shown[0] = shown[1];
    else if (lingers)
      shown[0] = -1;
    EXPECT_EQ(shown[0], doubled ? 2 * v.value : v.value) << "level " << v.level << " option " << v.name;
  }
}

bool is_inq(const cmsghdr* c) {
  return c != nullptr && c->cmsg_level == IPPROTO_TCP && c->cmsg_type == TCP_CM_INQ;
}

/// What goes by the options shows it, too: TCP_INQ and SO_RCVTIMEO, and SO_LINGER at the end.
void expect_first_ways(Fd& fd, Far& far) {
  far.say("send");
  EXPECT_NE(wait_for(fd, POLLIN, 100), POLLIN);  // SO_RCVLOWAT
  Message<8> m;
  EXPECT_EQ(recvmsg(fd, &m, 0), 1);  // SO_RCVTIMEO ends it
  const cmsghdr* c = CMSG_FIRSTHDR(&m);
  EXPECT_TRUE(is_inq(c));
  fd.reset();
  EXPECT_EQ(far.word(), "ECONNRESET");
}

void expect_second_ways(Fd& fd, Far& far) {
  far.say("send");
  Message<8> m;
  EXPECT_EQ(recvmsg(fd, &m, 0), 1);
  EXPECT_FALSE(is_inq(CMSG_FIRSTHDR(&m)));
  fd.reset();
  EXPECT_EQ(far.word(), "end");
}

struct Options_OfQueued : testing::TestWithParam<bool> {};

// A connection has its listener's options of when its handshake ended (inet_csk_clone_lock()), whatever is
// set before it is accepted. The parameter: the listener becomes the kernel's meanwhile.
TEST_P(Options_OfQueued, AreThoseOfTheHandshake) {
  Echo proof(kProof);
  Fd listener = listen_at(here());
  set_values(listener, kBefore);
  Far far("calls_twice");
  far.say(port_of(listener));
  EXPECT_EQ(far.word(), "connected");
  ASSERT_EQ(wait_for(listener, POLLIN), POLLIN);
  set_values(listener, kAfter);
  if (GetParam()) set_option(listener, SOL_SOCKET, SO_TIMESTAMP, 1);
  Fd first = accept_one(listener);
  expect_values(first, kBefore);
  expect_values(first, {{SOL_SOCKET, SO_TIMESTAMP, 0}});
  expect_first_ways(first, far);
  far.say(port_of(listener));
  EXPECT_EQ(far.word(), "connected");
  Fd second = accept_one(listener);
  expect_values(second, kAfter);
  expect_values(second, {{SOL_SOCKET, SO_TIMESTAMP, GetParam()}});
  expect_second_ways(second, far);
  far.finish();
  proof.all();
}

INSTANTIATE_TEST_SUITE_P(Listeners, Options_OfQueued, testing::Values(false, true));

// With TCP_DEFER_ACCEPT the handshake ends with the first bytes: what is set before them holds.
TEST(Options_OfDeferred, AreThoseOfTheFirstBytes) {
  Echo proof(kProof);
  Fd listener = listen_at(here());
  set_option(listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, 5);
  set_values(listener, kAfter);
  Far far("calls_twice");
  far.say(port_of(listener));
  EXPECT_EQ(far.word(), "connected");
  set_values(listener, kBefore);
  far.say("send");
  Fd fd = accept_one(listener);
  expect_values(fd, kBefore);
  fd.reset();
  EXPECT_EQ(far.word(), "ECONNRESET");
  far.say(port_of(listener));
  far.word();
  far.say("send");
  fd = accept_one(listener);
  fd.reset();
  far.word();
  far.finish();
  proof.all();
}

}  // namespace
