// UDP: bound, connected and not; datagrams below and above the MTU.
#include <linux/net_tstamp.h>
#include <linux/sockios.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "posix/far.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

// Returns every datagram to its sender until an empty one comes.
FAR(udp_echo) {
  int family = args.empty() ? AF_INET : std::stoi(args[0]);
  Fd fd = udp_at(here(0, family));
  near.say(port_of(fd));
  std::string buffer(1 << 16, '\0');
  for (;;) {
    Address from;
    ssize_t n = recvfrom(fd, buffer.data(), buffer.size(), 0, from.raw(), &from.size);
    if (n <= 0) break;
    sendto(fd, buffer.data(), static_cast<size_t>(n), 0, from.raw(), from.size);
  }
}

std::string receive(int fd, int flags = 0) {
  std::string buffer(1 << 16, '\0');
  EXPECT_EQ(wait_for(fd, POLLIN) & POLLIN, POLLIN);
  ssize_t n = recv(fd, buffer.data(), buffer.size(), flags | MSG_DONTWAIT);
  EXPECT_GE(n, 0) << strerror(errno);
  buffer.resize(n < 0 ? 0 : static_cast<size_t>(n));
  return buffer;
}

TEST(Datagram, ConnectedEcho) {
  Far far("udp_echo");
  Address to = there(static_cast<uint16_t>(far.number()));
  Fd fd = udp_socket();
  ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
  for (size_t size : {1u, 14u, 64u, 1472u, 1473u, 8000u, 60000u}) {
    std::string sent = pattern(size, static_cast<uint32_t>(size));
    ASSERT_EQ(send(fd, sent.data(), sent.size(), 0), static_cast<ssize_t>(size));
    EXPECT_EQ(receive(fd), sent) << size;
  }
  send(fd, "", 0, 0);
  far.finish();
}

std::string stamp_of(int fd) {
  timeval t{};
  timespec fine{};
  if (ioctl(fd, SIOCGSTAMP, &t) != 0) return strerrorname_np(errno);
  EXPECT_EQ(ioctl(fd, SIOCGSTAMPNS, &fine), 0);
  const time_t now = time(nullptr);
  return now - t.tv_sec <= 5 && now - fine.tv_sec <= 5 ? "now" : "another time";
}

// sock_recv_timestamp(): the time of what came without telling it, by SO_TIMESTAMP.
TEST(Datagram, TheLastOnesTimeIsAskedFor) {
  Far far("udp_echo");
  const Address to = there(static_cast<uint16_t>(far.number()));
  for (const bool told : {false, true}) {
    Fd fd = udp_socket();
    ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
    set_option(fd, SOL_SOCKET, SO_TIMESTAMP, told);
    EXPECT_EQ(stamp_of(fd), "ENOENT");
    for (int i = 0; i < 20; ++i) {
      ASSERT_EQ(send(fd, "x", 1, 0), 1);
      EXPECT_EQ(receive(fd), "x");
    }
    EXPECT_EQ(stamp_of(fd), told ? "ENOENT" : "now");
    if (told) send(fd, "", 0, 0);
  }
  far.finish();
}

// Sends a datagram to near's port from each of so many of its own.
FAR(udp_senders) {
  const Address to = there(static_cast<uint16_t>(std::stoi(args[0])));
  for (int i = 0; i < std::stoi(args[1]); ++i) sendto(udp_socket(), "x", 1, 0, to.raw(), to.size);
}

// SO_REUSEADDR without SO_REUSEPORT: the socket that was bound last has them all, until it is closed.
TEST(Datagram, TheLastThatWasBoundGetsIt) {
  constexpr int kSenders = 20;
  std::vector<Fd> bound;
  Address at = here();
  for (int i = 0; i < 3; ++i) {
    bound.push_back(udp_socket());
    set_option(bound[static_cast<size_t>(i)], SOL_SOCKET, SO_REUSEADDR, 1);
    ASSERT_EQ(bind(bound[static_cast<size_t>(i)], at.raw(), at.size), 0);
    at = here(port_of(bound[0]));
  }
  for (; !bound.empty(); bound.pop_back()) {
    Far far("udp_senders", {std::to_string(at.port()), std::to_string(kSenders)});
    for (int i = 0; i < kSenders; ++i) EXPECT_EQ(receive(bound.back()), "x");
    for (const Fd& fd : bound) EXPECT_EQ(wait_for(fd, POLLIN, 0), 0);
    far.finish();
  }
}

int64_t now() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

/// Types of the control messages that come with the next datagram, and the time of the last one's first
/// value.
std::vector<int> stamps_of_next(int fd, int64_t* when) {
  EXPECT_EQ(wait_for(fd, POLLIN) & POLLIN, POLLIN);
  Message m;
  EXPECT_EQ(recvmsg(fd, &m, MSG_DONTWAIT), 1);
  std::vector<int> types;
  for (cmsghdr* c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
    EXPECT_EQ(c->cmsg_level, SOL_SOCKET);
    types.push_back(c->cmsg_type);
    timespec first;
    memcpy(&first, CMSG_DATA(c), sizeof first);
    *when = int64_t{first.tv_sec} * 1'000'000'000 + first.tv_nsec;
  }
  return types;
}

/// The kernel stamps what comes while anybody wants that, and begins some time after the call.
Fd until_the_kernel_stamps(const Address& to) {
  Fd fd = udp_socket();
  EXPECT_EQ(connect(fd, to.raw(), to.size), 0);
  set_option(fd, SOL_SOCKET, SO_TIMESTAMPING, SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE);
  int64_t at = 0;
  bool told = false;
  const time_t guard = time(nullptr) + 20;
  while (!told && time(nullptr) < guard) {
    EXPECT_EQ(send(fd, "x", 1, 0), 1);
    told = !stamps_of_next(fd, &at).empty();
  }
  EXPECT_TRUE(told);
  return fd;
}

TEST(Datagram, StampsSayWhenItArrived) {
  Far far("udp_echo");
  Address to = there(static_cast<uint16_t>(far.number()));
  Fd other = until_the_kernel_stamps(to);
  Fd fd = udp_socket();
  ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
  set_option(fd, SOL_SOCKET, SO_TIMESTAMPING,
             SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_RX_HARDWARE | SOF_TIMESTAMPING_SOFTWARE |
                 SOF_TIMESTAMPING_SYS_HARDWARE);
  int64_t last = now();
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(send(fd, "x", 1, 0), 1);
    ASSERT_EQ(wait_for(fd, POLLIN) & POLLIN, POLLIN);
    const int64_t came = now();
    int64_t at = 0;
    EXPECT_EQ(stamps_of_next(fd, &at), std::vector<int>{SO_TIMESTAMPING});
    EXPECT_LE(last, at + 1000);
    EXPECT_LE(at, came + 1000) << "when it arrived, not when it was read";
    last = at;
  }
  send(fd, "", 0, 0);
  far.finish();
}

TEST(Datagram, StampsAreThoseAskedFor) {
  constexpr int kSoft = SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE, kFilter = 1 << 17;
  const struct {
    std::vector<std::pair<int, int>> set;
    std::vector<int> told;
  } rows[] = {
      {{{SO_TIMESTAMPING, kSoft}}, {SO_TIMESTAMPING}},
      {{{SO_TIMESTAMPING, SOF_TIMESTAMPING_RX_SOFTWARE}}, {}},
      {{{SO_TIMESTAMPING, SOF_TIMESTAMPING_SOFTWARE | kFilter}}, {}},
      {{{SO_TIMESTAMPING, SOF_TIMESTAMPING_RX_HARDWARE | SOF_TIMESTAMPING_RAW_HARDWARE | kFilter | kSoft}},
       {SO_TIMESTAMPING}},
      {{{SO_TIMESTAMPING_NEW, kSoft | SOF_TIMESTAMPING_OPT_ID | SOF_TIMESTAMPING_OPT_TSONLY}},
       {SO_TIMESTAMPING_NEW}},
      {{{SO_TIMESTAMP, 1}}, {SO_TIMESTAMP}},
      {{{SO_TIMESTAMP_NEW, 1}}, {SO_TIMESTAMP_NEW}},
      {{{SO_TIMESTAMPNS_NEW, 1}}, {SO_TIMESTAMPNS_NEW}},
      {{{SO_TIMESTAMPNS, 1}, {SO_TIMESTAMPING, kSoft}}, {SO_TIMESTAMPNS, SO_TIMESTAMPING}},
      {{{SO_TIMESTAMP, 1}, {SO_TIMESTAMPING, SOF_TIMESTAMPING_SOFTWARE}}, {SO_TIMESTAMP, SO_TIMESTAMPING}},
      {{{SO_TIMESTAMP, 1}, {SO_TIMESTAMPING, SOF_TIMESTAMPING_SOFTWARE | kFilter}}, {SO_TIMESTAMP}},
      {{{SO_TIMESTAMP, 1}, {SO_TIMESTAMPING_NEW, kSoft}}, {SO_TIMESTAMP_NEW, SO_TIMESTAMPING_NEW}},
  };
  Far far("udp_echo");
  Address to = there(static_cast<uint16_t>(far.number()));
  Fd other = until_the_kernel_stamps(to);
  for (const bool before_it_has_a_path : {true, false}) {
    for (const auto& row : rows) {
      Fd fd = udp_socket();
      if (!before_it_has_a_path) {
        ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
      }
      for (const auto& [option, value] : row.set) set_option(fd, SOL_SOCKET, option, value);
      if (before_it_has_a_path) {
        ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
      }
      ASSERT_EQ(send(fd, "x", 1, 0), 1);
      int64_t at = 0;
      EXPECT_EQ(stamps_of_next(fd, &at), row.told) << "row " << &row - rows;
    }
  }
  send(other, "", 0, 0);
  far.finish();
}

TEST(Datagram, ConnectedEchoOverIpv6) {
  Far far("udp_echo", {std::to_string(AF_INET6)});
  Address to = there(static_cast<uint16_t>(far.number()), AF_INET6);
  Fd fd = udp_socket(AF_INET6);
  ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
  for (size_t size : {1u, 1452u, 4000u}) {
    std::string sent = pattern(size);
    ASSERT_EQ(send(fd, sent.data(), sent.size(), 0), static_cast<ssize_t>(size));
    EXPECT_EQ(receive(fd), sent) << size;
  }
  send(fd, "", 0, 0);
  far.finish();
}

TEST(Datagram, UnconnectedKnowsTheSender) {
  Far far("udp_echo");
  Address to = there(static_cast<uint16_t>(far.number()));
  Fd fd = udp_at(here());
  ASSERT_EQ(sendto(fd, "abc", 3, 0, to.raw(), to.size), 3);
  ASSERT_EQ(wait_for(fd, POLLIN), POLLIN);
  int waiting = 0;
  EXPECT_EQ(ioctl(fd, FIONREAD, &waiting), 0);
  EXPECT_EQ(waiting, 3);
  char buffer[8];
  Address from;
  EXPECT_EQ(recvfrom(fd, buffer, sizeof(buffer), 0, from.raw(), &from.size), 3);
  EXPECT_EQ(from.port(), to.port());
  EXPECT_EQ(from.size, sizeof(sockaddr_in));
  sendto(fd, "", 0, 0, to.raw(), to.size);
  far.finish();
}

// The port was found by connect(), so it is lost at the disconnect; what has come by it is not.
TEST(Datagram, DisconnectKeepsTheQueue) {
  Far far("udp_echo");
  Address to = there(static_cast<uint16_t>(far.number()));
  Fd fd = udp_socket();
  const sockaddr none{AF_UNSPEC, {}};
  auto queue_and_disconnect = [&](const char* word) {
    ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
    ASSERT_EQ(send(fd, word, 3, 0), 3);
    ASSERT_EQ(wait_for(fd, POLLIN) & POLLIN, POLLIN);
    ASSERT_EQ(connect(fd, &none, sizeof none), 0);
    EXPECT_EQ(port_of(fd), 0);
  };
  queue_and_disconnect("one");
  EXPECT_EQ(wait_for(fd, POLLIN) & POLLIN, POLLIN);
  EXPECT_EQ(receive(fd), "one");
  EXPECT_EQ(recv(fd, nullptr, 0, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  queue_and_disconnect("two");
  ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
  ASSERT_EQ(send(fd, "three", 5, 0), 5);
  EXPECT_EQ(receive(fd), "two");
  EXPECT_EQ(receive(fd), "three");
  queue_and_disconnect("old");
  ASSERT_EQ(sendto(fd, "new", 3, 0, to.raw(), to.size), 3);  // finds a port, unconnected
  EXPECT_EQ(receive(fd), "old");
  EXPECT_EQ(receive(fd), "new");
  sendto(fd, "", 0, 0, to.raw(), to.size);
  far.finish();
}

TEST(Datagram, TruncationIsTold) {
  Far far("udp_echo");
  Address to = there(static_cast<uint16_t>(far.number()));
  Fd fd = udp_socket();
  ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
  send(fd, "0123456789", 10, 0);
  ASSERT_EQ(wait_for(fd, POLLIN), POLLIN);
  char small[4];
  iovec v{small, sizeof(small)};
  msghdr m{};
  m.msg_iov = &v;
  m.msg_iovlen = 1;
  EXPECT_EQ(recvmsg(fd, &m, MSG_PEEK), 4);
  EXPECT_TRUE(m.msg_flags & MSG_TRUNC);
  EXPECT_EQ(recv(fd, small, sizeof(small), MSG_TRUNC), 10);
  EXPECT_EQ(recv(fd, small, sizeof(small), MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  send(fd, "", 0, 0);
  far.finish();
}

TEST(Datagram, PacketInfoAndTtlCome) {
  Far far("udp_echo");
  Address to = there(static_cast<uint16_t>(far.number()));
  Fd fd = udp_at(any());
  set_option(fd, IPPROTO_IP, IP_PKTINFO, 1);
  set_option(fd, IPPROTO_IP, IP_RECVTTL, 1);
  ASSERT_EQ(sendto(fd, "q", 1, 0, to.raw(), to.size), 1);
  ASSERT_EQ(wait_for(fd, POLLIN), POLLIN);
  Message m;
  ASSERT_EQ(recvmsg(fd, &m, 0), 1);
  bool info = false, ttl = false;
  for (cmsghdr* c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
    if (c->cmsg_level != IPPROTO_IP) continue;
    if (c->cmsg_type == IP_PKTINFO) {
      in_pktinfo p;
      memcpy(&p, CMSG_DATA(c), sizeof(p));
      Address mine = here();
      info = p.ipi_addr.s_addr == reinterpret_cast<sockaddr_in*>(&mine.storage)->sin_addr.s_addr &&
             p.ipi_ifindex > 0;
    }
    if (c->cmsg_type == IP_TTL) ttl = true;
  }
  EXPECT_TRUE(info);
  EXPECT_TRUE(ttl);
  sendto(fd, "", 0, 0, to.raw(), to.size);
  far.finish();
}

TEST(Datagram, AClosedPortRefuses) {
  Fd fd = udp_socket();
  Address to = there(9);
  ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
  ASSERT_EQ(send(fd, "x", 1, 0), 1);
  EXPECT_TRUE(wait_for(fd, POLLIN) & (POLLIN | POLLERR));
  char byte;
  EXPECT_EQ(recv(fd, &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
}

TEST(Datagram, AnErrorOutlivesADisconnect) {
  Fd fd = udp_socket();
  Address to = there(9);
  const sockaddr none{AF_UNSPEC, {}};
  ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
  ASSERT_EQ(send(fd, "x", 1, 0), 1);
  EXPECT_TRUE(wait_for(fd, POLLIN) & POLLERR);
  ASSERT_EQ(connect(fd, &none, sizeof none), 0);
  EXPECT_EQ(sendto(fd, "x", 1, 0, to.raw(), to.size), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
}

// The port is lost and another one found; what had come is no news then.
TEST(Datagram, WhatADisconnectKeepsIsNoEdge) {
  Far far("udp_echo");
  Address to = there(static_cast<uint16_t>(far.number()));
  Fd fd = udp_socket();
  const sockaddr none{AF_UNSPEC, {}};
  ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
  ASSERT_EQ(send(fd, "one", 3, 0), 3);
  ASSERT_EQ(wait_for(fd, POLLIN) & POLLIN, POLLIN);
  Fd set(epoll_create1(EPOLL_CLOEXEC));
  epoll_event e{};
  e.events = EPOLLIN | EPOLLET;
  ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e), 0);
  EXPECT_EQ(epoll_wait(set, &e, 1, 0), 1);
  ASSERT_EQ(connect(fd, &none, sizeof none), 0);
  while (epoll_wait(set, &e, 1, 0) > 0) {
  }
  ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
  EXPECT_EQ(epoll_wait(set, &e, 1, 0), 0);
  EXPECT_EQ(receive(fd), "one");
  sendto(fd, "", 0, 0, to.raw(), to.size);
  far.finish();
}

/// A control message appended to `m`, which begins with none.
template <class T>
void add_control(msghdr& m, char* room, int level, int type, const T& value) {
  m.msg_control = room;
  auto* c = reinterpret_cast<cmsghdr*>(room + m.msg_controllen);
  c->cmsg_level = level;
  c->cmsg_type = type;
  c->cmsg_len = CMSG_LEN(sizeof value);
  memcpy(CMSG_DATA(c), &value, sizeof value);
  m.msg_controllen += CMSG_SPACE(sizeof value);
}

// A server on the wildcard address: each answer from where it was asked, marked as the question was, with
// its first byte for a TTL, two by one sendmmsg(). An empty one ends it.
FAR(udp_named) {
  const bool v6 = std::stoi(args[0]) == AF_INET6;
  Fd fd = udp_at(any(0, std::stoi(args[0])));
  set_option(fd, v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? IPV6_RECVPKTINFO : IP_PKTINFO, 1);
  set_option(fd, v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? IPV6_RECVTCLASS : IP_RECVTOS, 1);
  set_option(fd, v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? IPV6_MTU_DISCOVER : IP_MTU_DISCOVER, IP_PMTUDISC_OMIT);
  near.say(port_of(fd));
  for (;;) {
    Address from;
    Message<1500> m;
    m.msg_name = from.raw();
    m.msg_namelen = from.size;
    const ssize_t n = recvmsg(fd, &m, 0);
    if (n <= 0) break;
    mmsghdr answers[2]{};
    alignas(cmsghdr) char room[2][256] = {};
    iovec v{m.bytes, static_cast<size_t>(n)};
    for (int i = 0; i < 2; ++i) {
      msghdr& a = answers[i].msg_hdr;
      a.msg_name = from.raw();
      a.msg_namelen = m.msg_namelen;
      a.msg_iov = &v;
      a.msg_iovlen = 1;
      add_control(a, room[i], v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? IPV6_HOPLIMIT : IP_TTL, int{m.bytes[0]});
      for (cmsghdr* c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        if (c->cmsg_type == (v6 ? IPV6_PKTINFO : IP_PKTINFO) && v6)
          add_control(a, room[i], IPPROTO_IPV6, IPV6_PKTINFO, *reinterpret_cast<in6_pktinfo*>(CMSG_DATA(c)));
        if (c->cmsg_type == (v6 ? IPV6_PKTINFO : IP_PKTINFO) && !v6)
          add_control(a, room[i], IPPROTO_IP, IP_PKTINFO, *reinterpret_cast<in_pktinfo*>(CMSG_DATA(c)));
        if (c->cmsg_type == (v6 ? IPV6_TCLASS : IP_TOS))
          add_control(a, room[i], v6 ? IPPROTO_IPV6 : IPPROTO_IP, c->cmsg_type, int{*CMSG_DATA(c)});
      }
    }
    if (sendmmsg(fd, answers, 2, 0) != 2) throw std::runtime_error("sendmmsg");
  }
}

TEST(Datagram, AnswersAreAsTheirControlMessagesSay) {
  for (const bool v6 : {false, true}) {
    const int family = v6 ? AF_INET6 : AF_INET, level = v6 ? IPPROTO_IPV6 : IPPROTO_IP;
    Far far("udp_named", {std::to_string(family)});
    Address to = there(static_cast<uint16_t>(far.number()), family);
    Fd fd = udp_socket(family);
    ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
    set_option(fd, level, v6 ? IPV6_RECVHOPLIMIT : IP_RECVTTL, 1);
    set_option(fd, level, v6 ? IPV6_RECVTCLASS : IP_RECVTOS, 1);
    for (int i = 1; i <= 100; ++i) {
      const int tos = i % 2 != 0 ? 0x28 : 0x10;
      Message m;
      m.bytes[0] = static_cast<char>(i);
      m.msg_controllen = 0;
      add_control(m, m.control, level, v6 ? IPV6_TCLASS : IP_TOS, tos);
      ASSERT_EQ(sendmsg(fd, &m, 0), 1);
      for (int answer = 0; answer < 2; ++answer) {
        ASSERT_EQ(wait_for(fd, POLLIN), POLLIN);
        Message got;
        ASSERT_EQ(recvmsg(fd, &got, MSG_DONTWAIT), 1);
        EXPECT_EQ(got.bytes[0], i);
        int seen = 0;
        for (cmsghdr* c = CMSG_FIRSTHDR(&got); c; c = CMSG_NXTHDR(&got, c)) {
          const bool ttl = c->cmsg_type == (v6 ? IPV6_HOPLIMIT : IP_TTL);
          EXPECT_EQ(*CMSG_DATA(c), ttl ? i : tos);
          ++seen;
        }
        EXPECT_EQ(seen, 2);
      }
    }
    send(fd, "", 0, 0);
    far.finish();
  }
}

TEST(Datagram, EveryKindOfMtuDiscoveryEchoes) {
  for (const int family : {AF_INET, AF_INET6}) {
    const bool v6 = family == AF_INET6;
    Far far("udp_echo", {std::to_string(family)});
    Address to = there(static_cast<uint16_t>(far.number()), family);
    for (const int kind : {IP_PMTUDISC_DONT, IP_PMTUDISC_WANT, IP_PMTUDISC_DO, IP_PMTUDISC_PROBE,
                           IP_PMTUDISC_INTERFACE, IP_PMTUDISC_OMIT}) {
      Fd fd = udp_socket(family);
      set_option(fd, v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? IPV6_MTU_DISCOVER : IP_MTU_DISCOVER, kind);
      for (size_t size = 1; size <= (v6 ? 1452u : 1472u); size += 63) {
        const std::string sent = pattern(size);
        ASSERT_EQ(sendto(fd, sent.data(), size, 0, to.raw(), to.size), static_cast<ssize_t>(size));
        ASSERT_EQ(receive(fd), sent);
      }
    }
    Fd last = udp_socket(family);
    sendto(last, "", 0, 0, to.raw(), to.size);
    far.finish();
  }
}

TEST(Datagram, SegmentsComeOneByOne) {
  Far far("udp_echo");
  Address to = there(static_cast<uint16_t>(far.number()));
  Fd fd = udp_socket();
  ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
  const std::string text = pattern(20000);
  for (const bool by_control : {false, true}) {
    set_option(fd, IPPROTO_UDP, UDP_SEGMENT, by_control ? 77 : 1100);
    Message m;
    m.data = {const_cast<char*>(text.data()), text.size()};
    m.msg_controllen = 0;
    if (by_control) add_control(m, m.control, IPPROTO_UDP, UDP_SEGMENT, uint16_t{1100});
    ASSERT_EQ(sendmsg(fd, &m, 0), static_cast<ssize_t>(text.size()));
    for (size_t at = 0; at < text.size(); at += 1100) ASSERT_EQ(receive(fd), text.substr(at, 1100)) << at;
  }
  set_option(fd, IPPROTO_UDP, UDP_SEGMENT, 0);
  send(fd, "", 0, 0);
  far.finish();
}

// Each call sends or takes one whole datagram, however many threads share the socket.
TEST(Datagram, ThreadsShareASocket) {
  Far far("udp_echo");
  Address to = there(static_cast<uint16_t>(far.number()));
  Fd fd = udp_socket();
  ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
  const timeval limit{3, 0};
  ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  std::atomic<int> sent{0}, whole{0}, torn{0};
  constexpr int kOnTheWay = 64;  // which fit in the buffers on the way
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const std::string text(static_cast<size_t>(100 + 50 * i), static_cast<char>('a' + i));
      for (int n = 0; n < 300; ++n) {
        for (int looks = 0; sent - whole - torn >= kOnTheWay && looks < 20000; ++looks) usleep(100);
        ++sent;
        EXPECT_EQ(send(fd, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
      }
    });
    threads.emplace_back([&] {
      char bytes[1000];
      for (ssize_t n; (n = recv(fd, bytes, sizeof bytes, 0)) > 0;) {
        const bool good = n == 100 + 50 * (bytes[0] - 'a') && std::count(bytes, bytes + n, bytes[0]) == n;
        ++(good ? whole : torn);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(whole, 1200);
  send(fd, "", 0, 0);
  far.finish();
}

TEST(Datagram, ManyMessagesAtOnce) {
  Far far("udp_echo");
  Address to = there(static_cast<uint16_t>(far.number()));
  Fd fd = udp_socket();
  ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
  std::string texts[4] = {"a", "bb", "ccc", "dddd"};
  iovec v[4];
  mmsghdr m[4]{};
  for (int i = 0; i < 4; ++i) {
    v[i] = {texts[i].data(), texts[i].size()};
    m[i].msg_hdr.msg_iov = &v[i];
    m[i].msg_hdr.msg_iovlen = 1;
  }
  ASSERT_EQ(sendmmsg(fd, m, 4, 0), 4);
  char buffers[4][8];
  for (int i = 0; i < 4; ++i) v[i] = {buffers[i], 8};
  int have = 0;
  while (have < 4) {
    ASSERT_EQ(wait_for(fd, POLLIN) & POLLIN, POLLIN);
    int n = recvmmsg(fd, m + have, static_cast<unsigned>(4 - have), MSG_DONTWAIT, nullptr);
    ASSERT_GT(n, 0);
    have += n;
  }
  for (int i = 0; i < 4; ++i) EXPECT_EQ(std::string(buffers[i], m[i].msg_len), texts[i]);
  send(fd, "", 0, 0);
  far.finish();
}

// A message of sendmmsg() is one of sendmsg() (___sys_sendmsg()): the first one ends what MSG_MORE began.
TEST(Datagram, ManyMessagesEndTheOneThatIsCollected) {
  for (const int family : {AF_INET, AF_INET6}) {
    Far far("udp_echo", {std::to_string(family)});
    Address to = there(static_cast<uint16_t>(far.number()), family);
    Fd fd = udp_socket(family);
    ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
    for (int i = 0; i < 40; ++i) {  // what the kernel sends is a small part
      ASSERT_EQ(send(fd, "alone", 5, 0), 5);
      EXPECT_EQ(receive(fd), "alone");
    }
    std::string texts[3] = {"one", "two", "three"};
    iovec v[3];
    mmsghdr m[3]{};
    for (int i = 0; i < 3; ++i) {
      v[i] = {texts[i].data(), texts[i].size()};
      m[i].msg_hdr.msg_iov = &v[i];
      m[i].msg_hdr.msg_iovlen = 1;
    }
    for (const int flags : {0, int{MSG_DONTWAIT}}) {
      ASSERT_EQ(send(fd, "begun ", 6, MSG_MORE), 6);
      ASSERT_EQ(sendmmsg(fd, m, 3, flags), 3);
      EXPECT_EQ(m[0].msg_len, 3u);
      std::vector<std::string> got = {receive(fd), receive(fd), receive(fd)};
      std::sort(got.begin(), got.end());  // the kernel's and the port's have no order
      EXPECT_EQ(got, (std::vector<std::string>{"begun one", "three", "two"}));
    }
    send(fd, "", 0, 0);
    far.finish();
  }
}

// Before it has a name, and afterwards (udpv6_sendmsg()).
TEST(Datagram, OneOfIpv6OnlyReachesNoMappedAddress) {
  Fd fd = udp_socket(AF_INET6);
  set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
  const Address to = address(std::string("::ffff:") + getenv("POSIX_TEST_THERE"), 9);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(sendto(fd, "x", 1, 0, to.raw(), to.size), -1);
    EXPECT_EQ(errno, ENETUNREACH);
  }
}

}  // namespace
