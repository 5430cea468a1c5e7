// sockaddr and Endpoint, the option tables, and places in an iovec array.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <set>

#include "posix/iov_cursor.h"
#include "posix/options.h"
#include "posix/socket.h"
#include "posix/tcp_option_table.h"

namespace accel::posix {
namespace {

sockaddr_in v4_address() {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_port = htons(4711);
  in.sin_addr.s_addr = htonl(0x0a010203);
  return in;
}

Result<Endpoint> read(const void* address, socklen_t length, int domain) {
  return from_sockaddr(static_cast<const sockaddr*>(address), length, domain);
}

TEST(Address, V4) {
  const sockaddr_in in = v4_address();
  Result<Endpoint> end = read(&in, sizeof in, AF_INET);
  ASSERT_TRUE(end);
  EXPECT_EQ(*end, (Endpoint{IpAddress::v4(0x0a010203), 4711}));
  EXPECT_TRUE(read(&in, sizeof in - 1, AF_INET).is(EINVAL));
  EXPECT_TRUE(read(&in, 1, AF_INET).is(EINVAL));
}

TEST(Address, V6WithAndWithoutScope) {
  sockaddr_in6 in6{};
  in6.sin6_family = AF_INET6;
  in6.sin6_port = htons(80);
  in6.sin6_addr.s6_addr[15] = 9;
  EXPECT_TRUE(read(&in6, sizeof in6, AF_INET6));
  EXPECT_TRUE(read(&in6, 24, AF_INET6));  // RFC 2133's, without sin6_scope_id
  EXPECT_TRUE(read(&in6, 23, AF_INET6).is(EINVAL));
  EXPECT_TRUE(read(&in6, sizeof in6, AF_INET).is(EAFNOSUPPORT));
}

TEST(Address, AnswersAreCutAndTellTheirSize) {
  const Endpoint end{IpAddress::v4(0x0a010203), 4711};
  sockaddr_storage out{};
  out.ss_family = 0xffff;
  socklen_t length = 1;
  (void)to_sockaddr(end, AF_INET, reinterpret_cast<sockaddr*>(&out), &length);
  EXPECT_EQ(length, sizeof(sockaddr_in));
  EXPECT_EQ(out.ss_family, 0xff00 | AF_INET);  // one byte was written
  length = sizeof out;
  (void)to_sockaddr(end, AF_INET6, reinterpret_cast<sockaddr*>(&out), &length);
  EXPECT_EQ(length, sizeof(sockaddr_in6));
  EXPECT_TRUE(IN6_IS_ADDR_V4MAPPED(&reinterpret_cast<sockaddr_in6*>(&out)->sin6_addr));
  EXPECT_TRUE(to_sockaddr(end, AF_INET, nullptr, nullptr).is(EFAULT));
}

TEST(Options, EachRowOnceAndMirrorsHaveAnEffect) {
  for (auto table : {tcp_options(), udp_options()}) {
    std::set<std::pair<int, int>> seen;
    for (const Option& o : table) {
      EXPECT_TRUE(seen.emplace(o.level, o.name).second) << o.level << " " << o.name;
      EXPECT_EQ(o.effect == OptionEffect::kMirror, o.apply != nullptr) << o.level << " " << o.name;
    }
  }
}

TEST(Options, MirrorsReachTheSettings) {
  TcpSettings s;
  auto set = [&](int level, int name, int value) {
    find_option(tcp_options(), level, name)->apply(s, value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 7);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 1500);
  set(IPPROTO_TCP, TCP_NOTSENT_LOWAT, 0);
  set(IPPROTO_IP, IP_TOS, 0x10);
  EXPECT_TRUE(s.nodelay);
  EXPECT_EQ(s.keep_idle, 7s);
  EXPECT_EQ(s.user_timeout, 1500ms);
  EXPECT_EQ(s.notsent_low_water, 0u);  // as net.ipv4.tcp_notsent_lowat is
  EXPECT_EQ(s.tos, 0x10);
}

TEST(Options, WhatOnlyTheKernelDoesIsAReasonForIt) {
  const int on = 1, off = 0;
  EXPECT_TRUE(vetoes(tcp_options(), IPPROTO_TCP, TCP_ULP, "tls", 4));
  EXPECT_TRUE(vetoes(tcp_options(), IPPROTO_IP, IP_TRANSPARENT, &on, sizeof on));
  EXPECT_FALSE(vetoes(tcp_options(), IPPROTO_IP, IP_TRANSPARENT, &off, sizeof off));
  EXPECT_FALSE(vetoes(tcp_options(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
  EXPECT_TRUE(vetoes(tcp_options(), SOL_SOCKET, SO_ATTACH_FILTER, &on, sizeof on));  // unknown to the table
  EXPECT_TRUE(vetoes(udp_options(), IPPROTO_UDP, 100 /* UDP_ENCAP */, &on, sizeof on));
  EXPECT_FALSE(vetoes(udp_options(), IPPROTO_UDP, 104 /* UDP_GRO */, &on, sizeof on));
  EXPECT_FALSE(vetoes(udp_options(), IPPROTO_UDP, 103 /* UDP_SEGMENT */, &on, sizeof on));
}

TEST(Options, AnswersAreCut) {
  const int answer = 0x01020304;
  char out[8] = {};
  socklen_t length = 2;
  EXPECT_TRUE(put_option(&answer, sizeof answer, out, &length));
  EXPECT_EQ(length, 2u);
  EXPECT_EQ(out[2], 0);
  length = static_cast<socklen_t>(-1);
  EXPECT_TRUE(put_option(&answer, sizeof answer, out, &length).is(EINVAL));
  length = sizeof out;
  EXPECT_TRUE(put_option(&answer, sizeof answer, nullptr, &length).is(EFAULT));
}

TEST(IovCursor, GoesOnWhereItStopped) {
  char a[3], b[5];
  const iovec v[] = {{a, sizeof a}, {nullptr, 0}, {b, sizeof b}};
  IovCursor cursor(v);
  EXPECT_EQ(cursor.window().size(), 3u);
  cursor.advance(2);
  EXPECT_EQ(cursor.window()[0].iov_base, a + 2);
  cursor.advance(2);
  ASSERT_EQ(cursor.window().size(), 1u);
  EXPECT_EQ(cursor.window()[0].iov_base, b + 1);
  EXPECT_EQ(cursor.window()[0].iov_len, 4u);
  cursor.advance(4);
  EXPECT_TRUE(cursor.window().empty());
}

TEST(IovCursor, BadVectors) {
  iovec v[] = {{nullptr, static_cast<size_t>(-1)}};
  msghdr m{};
  m.msg_iov = v;
  m.msg_iovlen = 1;
  EXPECT_TRUE(iov_bytes(m).is(EINVAL));
  m.msg_iovlen = IOV_MAX + 1;
  EXPECT_TRUE(iov_bytes(m).is(EMSGSIZE));
  m.msg_iovlen = 1;
  v[0].iov_len = size_t{1} << 40;
  EXPECT_EQ(*iov_bytes(m), kMostBytes);
}

}  // namespace
}  // namespace accel::posix
