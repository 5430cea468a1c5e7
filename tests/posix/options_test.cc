// Every option, flag and request by table: an accelerated socket answers as the kernel's own does, which is a
// socket of this process over loopback. After each the connection still carries bytes.
#include <fcntl.h>
#include <linux/errqueue.h>
#include <linux/in6.h>
#include <linux/net_tstamp.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>

#include <climits>

#include "posix/echo.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

/// The kernel's numbers that glibc 2.36 lacks or hides behind <linux/in6.h> and <linux/tcp.h>.
constexpr int kFlowInfoSend = 33, kTcpInq = 36, kMulticastAll6 = 29;

struct Row {
  const char* text;
  int level, name;
  std::string good;
  /// The two may have other values here: the device's, the connection's own.
  bool own_value = false;
};

template <class T>
std::string bytes(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}
std::string number(int n) { return bytes(n); }

#define OPTION(level, name, ...) \
  Row { #name, level, name, __VA_ARGS__ }

std::vector<Row> of_sockets() {
  return {
      OPTION(SOL_SOCKET, SO_RCVTIMEO, bytes(timeval{2, 500000})),
      OPTION(SOL_SOCKET, SO_SNDTIMEO, bytes(timeval{2, 500000})),
      OPTION(SOL_SOCKET, SO_RCVBUF, number(30000), true),
      OPTION(SOL_SOCKET, SO_SNDBUF, number(30000), true),
      OPTION(SOL_SOCKET, SO_RCVBUFFORCE, number(300000), true),
      OPTION(SOL_SOCKET, SO_SNDBUFFORCE, number(300000), true),
      OPTION(SOL_SOCKET, SO_RCVLOWAT, number(2)),
      OPTION(SOL_SOCKET, SO_SNDLOWAT, number(2)),
      OPTION(SOL_SOCKET, SO_LINGER, bytes(linger{1, 3})),
      OPTION(SOL_SOCKET, SO_REUSEADDR, number(1)),
      OPTION(SOL_SOCKET, SO_REUSEPORT, number(1)),
      OPTION(SOL_SOCKET, SO_ERROR, number(0)),
      OPTION(SOL_SOCKET, SO_KEEPALIVE, number(1)),
      OPTION(SOL_SOCKET, SO_BROADCAST, number(1)),
      OPTION(SOL_SOCKET, SO_OOBINLINE, number(1)),
      OPTION(SOL_SOCKET, SO_BINDTODEVICE, "nosuch0"),
      OPTION(SOL_SOCKET, SO_TIMESTAMP, number(1)),
      OPTION(SOL_SOCKET, SO_TIMESTAMPNS, number(1)),
      OPTION(SOL_SOCKET, SO_TIMESTAMPING, number(SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE)),
      OPTION(SOL_SOCKET, SO_ACCEPTCONN, number(1)),
      OPTION(SOL_SOCKET, SO_PROTOCOL, number(1)),
      OPTION(SOL_SOCKET, SO_DOMAIN, number(1)),
      OPTION(SOL_SOCKET, SO_TYPE, number(1)),
      OPTION(SOL_SOCKET, SO_INCOMING_CPU, number(0), true),
      OPTION(SOL_SOCKET, SO_INCOMING_NAPI_ID, number(0), true),
      OPTION(SOL_SOCKET, SO_PRIORITY, number(5)),
      OPTION(SOL_SOCKET, SO_MARK, number(7)),
      OPTION(SOL_SOCKET, SO_BUSY_POLL, number(50)),
      OPTION(SOL_SOCKET, SO_COOKIE, number(0), true),
      OPTION(SOL_SOCKET, SO_PEEK_OFF, number(0)),
      OPTION(SOL_SOCKET, SO_RXQ_OVFL, number(1)),
      OPTION(SOL_SOCKET, SO_ZEROCOPY, number(1)),
      OPTION(SOL_SOCKET, 9999, number(1)),
      OPTION(IPPROTO_IP, IP_TOS, number(0x10)),
      OPTION(IPPROTO_IP, IP_TTL, number(33)),
      OPTION(IPPROTO_IP, IP_PKTINFO, number(1)),
      OPTION(IPPROTO_IP, IP_RECVERR, number(1)),
      OPTION(IPPROTO_IP, IP_RECVTOS, number(1)),
      OPTION(IPPROTO_IP, IP_RECVTTL, number(1)),
      OPTION(IPPROTO_IP, IP_FREEBIND, number(1)),
      OPTION(IPPROTO_IP, IP_TRANSPARENT, number(1)),
      OPTION(IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, number(1)),
      OPTION(IPPROTO_IP, IP_MTU_DISCOVER, number(IP_PMTUDISC_DO)),
      OPTION(IPPROTO_IP, IP_MTU, number(1000), true),
      OPTION(IPPROTO_IP, IP_MULTICAST_TTL, number(3)),
      OPTION(IPPROTO_IP, IP_MULTICAST_LOOP, number(0)),
      OPTION(IPPROTO_IP, IP_MULTICAST_ALL, number(0)),
      OPTION(IPPROTO_IP, 9999, number(1)),
      OPTION(777, 1, number(1)),
  };
}

std::vector<Row> of_groups() {
  const Address own = here();
  ip_mreqn member{};
  ip_mreq_source source{};
  member.imr_multiaddr.s_addr = source.imr_multiaddr.s_addr = htonl(0xef010203);
  member.imr_address = source.imr_interface = reinterpret_cast<const sockaddr_in*>(own.raw())->sin_addr;
  source.imr_sourceaddr.s_addr = htonl(0x0a4d0002);
  group_req group{};
  auto* name = reinterpret_cast<sockaddr_in*>(&group.gr_group);
  name->sin_family = AF_INET;
  name->sin_addr = member.imr_multiaddr;
  group_source_req source_group{};
  source_group.gsr_group = group.gr_group;
  auto* sender = reinterpret_cast<sockaddr_in*>(&source_group.gsr_source);
  sender->sin_family = AF_INET;
  sender->sin_addr = source.imr_sourceaddr;
  ip_msfilter filter{};
  filter.imsf_multiaddr = member.imr_multiaddr;
  filter.imsf_interface = member.imr_address;
  return {
      OPTION(IPPROTO_IP, IP_MULTICAST_IF, bytes(member.imr_address)),
      OPTION(IPPROTO_IP, IP_ADD_MEMBERSHIP, bytes(member)),
      OPTION(IPPROTO_IP, IP_DROP_MEMBERSHIP, bytes(member)),
      OPTION(IPPROTO_IP, IP_ADD_SOURCE_MEMBERSHIP, bytes(source)),
      OPTION(IPPROTO_IP, IP_DROP_SOURCE_MEMBERSHIP, bytes(source)),
      OPTION(IPPROTO_IP, IP_BLOCK_SOURCE, bytes(source)),
      OPTION(IPPROTO_IP, IP_UNBLOCK_SOURCE, bytes(source)),
      OPTION(IPPROTO_IP, MCAST_JOIN_GROUP, bytes(group)),
      OPTION(IPPROTO_IP, MCAST_LEAVE_GROUP, bytes(group)),
      OPTION(IPPROTO_IP, MCAST_JOIN_SOURCE_GROUP, bytes(source_group)),
      OPTION(IPPROTO_IP, MCAST_LEAVE_SOURCE_GROUP, bytes(source_group)),
      OPTION(IPPROTO_IP, MCAST_BLOCK_SOURCE, bytes(source_group)),
      OPTION(IPPROTO_IP, MCAST_UNBLOCK_SOURCE, bytes(source_group)),
      OPTION(IPPROTO_IP, IP_MSFILTER, bytes(filter)),
  };
}

std::vector<Row> of_tcp() {
  return {
      OPTION(IPPROTO_TCP, TCP_NODELAY, number(1)),
      OPTION(IPPROTO_TCP, TCP_CORK, number(1)),
      OPTION(IPPROTO_TCP, TCP_QUICKACK, number(1), true),
      OPTION(IPPROTO_TCP, TCP_DEFER_ACCEPT, number(3)),
      OPTION(IPPROTO_TCP, TCP_USER_TIMEOUT, number(5000)),
      OPTION(IPPROTO_TCP, TCP_KEEPIDLE, number(30)),
      OPTION(IPPROTO_TCP, TCP_KEEPINTVL, number(5)),
      OPTION(IPPROTO_TCP, TCP_KEEPCNT, number(4)),
      OPTION(IPPROTO_TCP, TCP_MAXSEG, number(1000), true),
      OPTION(IPPROTO_TCP, TCP_INFO, number(1), true),
      // The value is the kernel's where the host's default is one that the stack has.
      OPTION(IPPROTO_TCP, TCP_CONGESTION, "reno", true),
      OPTION(IPPROTO_TCP, TCP_CONGESTION, "nonsense", true),
      OPTION(IPPROTO_TCP, TCP_NOTSENT_LOWAT, number(20000)),
      OPTION(IPPROTO_TCP, kTcpInq, number(1)),
      OPTION(IPPROTO_TCP, TCP_SYNCNT, number(3)),
      OPTION(IPPROTO_TCP, TCP_LINGER2, number(7)),
      OPTION(IPPROTO_TCP, TCP_WINDOW_CLAMP, number(20000), true),
      OPTION(IPPROTO_TCP, TCP_ULP, "nonsense"),
      OPTION(IPPROTO_TCP, 9999, number(1)),
  };
}

std::vector<Row> of_udp() {
  return {
      OPTION(IPPROTO_UDP, UDP_CORK, number(1)),    OPTION(IPPROTO_UDP, UDP_SEGMENT, number(1000)),
      OPTION(IPPROTO_UDP, UDP_GRO, number(1)),     OPTION(IPPROTO_UDP, 9999, number(1)),
      OPTION(IPPROTO_TCP, TCP_NODELAY, number(1)),
  };
}

std::vector<Row> of_ipv6() {
  ipv6_mreq member{};
  member.ipv6mr_multiaddr.s6_addr[0] = 0xff;
  member.ipv6mr_multiaddr.s6_addr[1] = 0x12;
  member.ipv6mr_multiaddr.s6_addr[15] = 7;
  group_req group{};
  group_source_req source{};
  auto* name = reinterpret_cast<sockaddr_in6*>(&group.gr_group);
  name->sin6_family = AF_INET6;
  name->sin6_addr = member.ipv6mr_multiaddr;
  source.gsr_group = group.gr_group;
  source.gsr_source = there(0, AF_INET6).storage;
  in6_flowlabel_req label{};  // the two sockets share it
  label.flr_label = htonl(0x12345);
  label.flr_action = IPV6_FL_A_GET;
  label.flr_share = IPV6_FL_S_ANY;
  label.flr_flags = IPV6_FL_F_CREATE;
  label.flr_dst = reinterpret_cast<const sockaddr_in6&>(source.gsr_source).sin6_addr;
  in6_flowlabel_req renewed = label, given_back = label;
  renewed.flr_action = IPV6_FL_A_RENEW;
  renewed.flr_expires = 10;
  given_back.flr_action = IPV6_FL_A_PUT;
  return {
      OPTION(IPPROTO_IPV6, IPV6_V6ONLY, number(1)),
      OPTION(IPPROTO_IPV6, IPV6_TCLASS, number(0x20)),
      OPTION(IPPROTO_IPV6, IPV6_UNICAST_HOPS, number(33)),
      OPTION(IPPROTO_IPV6, IPV6_RECVPKTINFO, number(1)),
      OPTION(IPPROTO_IPV6, IPV6_RECVERR, number(1)),
      OPTION(IPPROTO_IPV6, IPV6_RECVTCLASS, number(1)),
      OPTION(IPPROTO_IPV6, IPV6_RECVHOPLIMIT, number(1)),
      OPTION(IPPROTO_IPV6, IPV6_FREEBIND, number(1)),
      OPTION(IPPROTO_IPV6, IPV6_TRANSPARENT, number(1)),
      OPTION(IPPROTO_IPV6, IPV6_MTU_DISCOVER, number(IPV6_PMTUDISC_DO)),
      OPTION(IPPROTO_IPV6, IPV6_MTU, number(1400), true),
      OPTION(IPPROTO_IPV6, IPV6_MULTICAST_HOPS, number(3)),
      OPTION(IPPROTO_IPV6, IPV6_MULTICAST_LOOP, number(0)),
      OPTION(IPPROTO_IPV6, IPV6_MULTICAST_IF, number(0)),
      OPTION(IPPROTO_IPV6, kMulticastAll6, number(0)),
      OPTION(IPPROTO_IPV6, IPV6_ADD_MEMBERSHIP, bytes(member)),
      OPTION(IPPROTO_IPV6, IPV6_DROP_MEMBERSHIP, bytes(member)),
      OPTION(IPPROTO_IPV6, MCAST_JOIN_GROUP, bytes(group)),
      OPTION(IPPROTO_IPV6, MCAST_LEAVE_GROUP, bytes(group)),
      OPTION(IPPROTO_IPV6, MCAST_JOIN_SOURCE_GROUP, bytes(source)),
      OPTION(IPPROTO_IPV6, MCAST_LEAVE_SOURCE_GROUP, bytes(source)),
      OPTION(IPPROTO_IPV6, MCAST_BLOCK_SOURCE, bytes(source)),
      OPTION(IPPROTO_IPV6, MCAST_UNBLOCK_SOURCE, bytes(source)),
      OPTION(IPPROTO_IPV6, IPV6_FLOWLABEL_MGR, bytes(label)),
      OPTION(IPPROTO_IPV6, IPV6_FLOWLABEL_MGR, bytes(renewed)),
      OPTION(IPPROTO_IPV6, IPV6_FLOWLABEL_MGR, bytes(given_back)),
      OPTION(IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, number(0)),
      OPTION(IPPROTO_IPV6, kFlowInfoSend, number(1)),
      OPTION(IPPROTO_IPV6, 9999, number(1)),
  };
}

// ---- the two sockets ----

// Echoes one connection or datagram socket after the other.
FAR(echo_all) {
  const int family = std::stoi(args[0]);
  if (args[1] == "udp") {
    Fd fd = udp_at(here(0, family));
    near.say(port_of(fd));
    for (char buffer[2048];;) {
      Address from;
      const ssize_t n = recvfrom(fd, buffer, sizeof(buffer), 0, from.raw(), &from.size);
      if (n <= 0) return;
      sendto(fd, buffer, static_cast<size_t>(n), 0, from.raw(), from.size);
    }
  }
  Fd listener = listen_at(here(0, family), 64);
  near.say(port_of(listener));
  for (bool more = true; more;) {
    Fd fd = accept_one(listener);
    char buffer[2048];
    ssize_t n;
    more = false;
    while ((n = recv(fd, buffer, sizeof(buffer), 0)) > 0) {
      write_all(fd, buffer, static_cast<size_t>(n));
      more = true;
    }
  }
}

enum class Kind { kStream, kListener, kDatagram };

struct Peers {
  Peers(Kind of, int in)
      : kind(of),
        family(in),
        far("echo_all", {std::to_string(family), kind == Kind::kDatagram ? "udp" : "tcp"}),
        to(there(static_cast<uint16_t>(far.number()), family)),
        loopback(listen_at(address(family == AF_INET ? "127.0.0.1" : "::1", 0))) {
    Fd first = make();
    for (int i = 0; i < kProof; ++i) check(first, "the proof");
  }
  ~Peers() {
    Fd last = make(Kind::kDatagram == kind ? Kind::kDatagram : Kind::kStream);
    if (kind == Kind::kDatagram) send(last, "", 0, 0);
    last.reset();
    far.finish();
  }
  Fd make() { return make(kind == Kind::kListener ? Kind::kStream : kind); }
  Fd make(Kind what) {
    if (what == Kind::kListener) return listen_at(here(0, family));
    if (what == Kind::kStream) return connect_to(to);
    Fd fd = udp_socket(family);
    EXPECT_EQ(connect(fd, to.raw(), to.size), 0);
    return fd;
  }
  /// The kernel's: over loopback.
  Fd reference() {
    Address name;
    getsockname(loopback, name.raw(), &name.size);
    if (kind == Kind::kListener) return listen_at(address(family == AF_INET ? "127.0.0.1" : "::1", 0));
    if (kind == Kind::kDatagram) {
      Fd fd = udp_socket(family);
      EXPECT_EQ(connect(fd, name.raw(), name.size), 0);
      return fd;
    }
    Fd fd = connect_to(name);
    other = accept_one(loopback);
    return fd;
  }
  void check(int fd, const char* after) {
    ASSERT_EQ(send(fd, "x", 1, MSG_NOSIGNAL), 1) << after << ": " << strerror(errno);
    ASSERT_EQ(wait_for(fd, POLLIN, 5000) & POLLIN, POLLIN) << after;
    char byte = 0;
    ASSERT_EQ(recv(fd, &byte, 1, 0), 1) << after << ": " << strerror(errno);
  }
  const Kind kind;
  const int family;
  Far far;
  const Address to;
  Fd loopback;
  Fd other;  ///< the reference connection's other end
};

std::string result(long value) { return value >= 0 ? std::to_string(value) : strerrorname_np(errno); }

std::string hex(const std::string& text) {
  std::string out;
  for (unsigned char c : text) {
    char two[4];
    snprintf(two, sizeof(two), "%02x", c);
    out += two;
  }
  return out;
}

std::string set(int fd, const Row& row, const void* value, size_t size) {
  return result(setsockopt(fd, row.level, row.name, value, static_cast<socklen_t>(size)));
}

std::string get(int fd, const Row& row, int room, bool value = true) {
  std::string got(static_cast<size_t>(std::max(room, 0)), '\x5a');
  auto size = static_cast<socklen_t>(room);
  const int r = getsockopt(fd, row.level, row.name, got.data(), &size);
  if (r != 0) return result(r);
  return std::to_string(static_cast<int>(size)) + (value ? ":" + hex(got) : "");
}

/// What is tried, and what came of it, line by line.
std::string answers(int fd, const Row& row) {
  std::string log;
  auto add = [&](const char* what, const std::string& came) { log += std::string(what) + " " + came + "\n"; };
  add("get", get(fd, row, 16, !row.own_value));
  add("get into 1 byte", get(fd, row, 1, !row.own_value));
  add("get into none", get(fd, row, 0));
  add("get, negative size", get(fd, row, -1));
  socklen_t size = 4;
  add("get, no pointer", result(getsockopt(fd, row.level, row.name, nullptr, &size)));
  const std::string none;
  add("set of no bytes", set(fd, row, none.data(), 0));
  add("set, no pointer", set(fd, row, nullptr, row.good.size()));
  add("set, negative size", set(fd, row, row.good.data(), static_cast<size_t>(-1)));
  add("set of a byte less", set(fd, row, row.good.data(), row.good.size() - 1));
  add("get", get(fd, row, 16, !row.own_value));
  for (int value : {-1, INT_MAX, INT_MIN, 0}) {
    add("set", std::to_string(value) + " " + set(fd, row, &value, sizeof(value)));
    add("get", get(fd, row, 16, !row.own_value));
  }
  add("set good", set(fd, row, row.good.data(), row.good.size()));
  add("get", get(fd, row, 16, !row.own_value));
  return log;
}

void compare(Kind kind, int family, std::initializer_list<std::vector<Row>> tables) {
  Peers peers(kind, family);
  for (const auto& table : tables)
    for (const Row& row : table) {
      Fd ours = peers.make(kind), kernels = peers.reference();
      std::string before(64, '\0');
      socklen_t size = 64;
      const bool known = getsockopt(ours, row.level, row.name, before.data(), &size) == 0;
      EXPECT_EQ(answers(ours, row), answers(kernels, row)) << row.text;
      if (known) (void)setsockopt(ours, row.level, row.name, before.data(), size);
      if (kind != Kind::kListener) peers.check(ours, row.text);
    }
}

TEST(Options, OfAConnection) { compare(Kind::kStream, AF_INET, {of_sockets(), of_groups(), of_tcp()}); }
TEST(Options, OfAConnectionOverIpv6) { compare(Kind::kStream, AF_INET6, {of_ipv6()}); }
TEST(Options, OfAListener) { compare(Kind::kListener, AF_INET, {of_sockets(), of_tcp()}); }
TEST(Options, OfADatagramSocket) { compare(Kind::kDatagram, AF_INET, {of_sockets(), of_groups(), of_udp()}); }
TEST(Options, OfADatagramSocketOverIpv6) { compare(Kind::kDatagram, AF_INET6, {of_ipv6()}); }

// ---- flags ----

struct Flag {
  const char* text;
  int flag;
};
#define FLAG(name) \
  Flag { #name, name }
const Flag kFlags[] = {FLAG(MSG_PEEK),     FLAG(MSG_WAITALL),  FLAG(MSG_DONTWAIT),     FLAG(MSG_TRUNC),
                       FLAG(MSG_CTRUNC),   FLAG(MSG_MORE),     FLAG(MSG_NOSIGNAL),     FLAG(MSG_OOB),
                       FLAG(MSG_ERRQUEUE), FLAG(MSG_ZEROCOPY), FLAG(MSG_CMSG_CLOEXEC), FLAG(MSG_DONTROUTE),
                       FLAG(MSG_EOR),      FLAG(MSG_CONFIRM),  FLAG(MSG_WAITFORONE),   FLAG(MSG_PROXY)};

std::string receive(int fd, int flags) {
  std::string buffer(8, 'z');
  iovec one{buffer.data(), buffer.size()};
  alignas(cmsghdr) char control[128] = {};
  msghdr message{};
  message.msg_iov = &one;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t n = recvmsg(fd, &message, flags | MSG_DONTWAIT);
  if (n < 0) return result(n);
  return std::to_string(n) + " " + buffer + " " + hex(bytes(message.msg_flags));
}

// With nothing there, with three bytes there, and with none again.
TEST(Flags, OfReceiving) {
  Peers peers(Kind::kStream, AF_INET);
  for (const Flag& flag : kFlags) {
    Fd ours = peers.make(), kernels = peers.reference();
    EXPECT_EQ(receive(ours, flag.flag), receive(kernels, flag.flag)) << flag.text;
    write_all(ours, "abc");
    write_all(peers.other, "abc");
    for (int fd : {static_cast<int>(ours), static_cast<int>(kernels)})
      ASSERT_EQ(wait_for(fd, POLLIN), POLLIN);
    EXPECT_EQ(receive(ours, flag.flag), receive(kernels, flag.flag)) << flag.text;
    EXPECT_EQ(receive(ours, 0), receive(kernels, 0)) << flag.text;
  }
}

TEST(Flags, OfSending) {
  Peers peers(Kind::kStream, AF_INET);
  for (const Flag& flag : kFlags) {
    if (flag.flag == MSG_OOB) continue;  // its byte is not in the echo
    Fd ours = peers.make(), kernels = peers.reference();
    const auto log = [&](int fd, int echo) {
      std::string all;
      size_t sent = 0;
      for (const auto& [text, flags] : {std::pair("abc", flag.flag), {"", flag.flag}, {"def", 0}}) {
        const ssize_t n = send(fd, text, strlen(text), flags);
        sent += n > 0 ? static_cast<size_t>(n) : 0;
        all += result(n) + " ";
      }
      return all + read_exactly(echo, sent);
    };
    EXPECT_EQ(log(ours, ours), log(kernels, peers.other)) << flag.text;
  }
}

// ---- time stamps ----

/// ee_info and ee_data of the next time stamp in the error queue.
std::pair<uint32_t, uint32_t> next_stamp(int fd) {
  EXPECT_EQ(wait_for(fd, POLLERR) & POLLERR, POLLERR);
  Message m;
  EXPECT_EQ(recvmsg(fd, &m, MSG_ERRQUEUE), 0) << strerror(errno);
  sock_extended_err error{};
  for (cmsghdr* c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
    if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVERR)
      memcpy(&error, CMSG_DATA(c), sizeof(error));
  EXPECT_EQ(error.ee_origin, SO_EE_ORIGIN_TIMESTAMPING);
  return {error.ee_info, error.ee_data};
}

constexpr int kStampsOfSent = SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE |
                              SOF_TIMESTAMPING_OPT_ID | SOF_TIMESTAMPING_OPT_TSONLY;
using Stamp = std::pair<uint32_t, uint32_t>;

TEST(Stamps, OfDatagramsSent) {
  Peers peers(Kind::kDatagram, AF_INET);
  Fd fd = peers.make();
  set_option(fd, SOL_SOCKET, SO_TIMESTAMPING, kStampsOfSent);
  for (uint32_t i = 0; i < 3; ++i) {
    ASSERT_EQ(send(fd, "x", 1, 0), 1);
    EXPECT_EQ(next_stamp(fd), (Stamp{SCM_TSTAMP_SND, i}));
    ASSERT_EQ(wait_for(fd, POLLIN) & POLLIN, POLLIN);
    char byte = 0;
    ASSERT_EQ(recv(fd, &byte, 1, 0), 1);
  }
}

TEST(Stamps, OfBytesSentAndReceived) {
  Peers peers(Kind::kStream, AF_INET);
  Fd fd = peers.make();
  peers.check(fd, "before");
  set_option(fd, SOL_SOCKET, SO_TIMESTAMPING,
             kStampsOfSent | SOF_TIMESTAMPING_TX_ACK | SOF_TIMESTAMPING_RX_SOFTWARE);
  bool told = false;  // the kernel begins some time after the call
  const time_t guard = time(nullptr) + 20;
  for (uint32_t last = 2; !told && time(nullptr) < guard; last += 3) {
    write_all(fd, "abc");
    EXPECT_EQ(next_stamp(fd), (Stamp{SCM_TSTAMP_SND, last}));
    EXPECT_EQ(next_stamp(fd), (Stamp{SCM_TSTAMP_ACK, last}));
    ASSERT_EQ(wait_for(fd, POLLIN) & POLLIN, POLLIN);
    Message<8> m;
    ASSERT_EQ(recvmsg(fd, &m, 0), 3);
    const cmsghdr* stamp = CMSG_FIRSTHDR(&m);
    told = stamp && stamp->cmsg_type == SO_TIMESTAMPING;
  }
  EXPECT_TRUE(told);
}

TEST(Stamps, OfOneCallsBytes) {
  Peers peers(Kind::kStream, AF_INET);
  Fd fd = peers.make();
  peers.check(fd, "before");
  Message<1, CMSG_SPACE(sizeof(uint32_t))> m;
  m.bytes[0] = 'x';
  cmsghdr* c = CMSG_FIRSTHDR(&m);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SO_TIMESTAMPING;
  c->cmsg_len = CMSG_LEN(sizeof(uint32_t));
  const uint32_t flags = SOF_TIMESTAMPING_TX_ACK;
  memcpy(CMSG_DATA(c), &flags, sizeof(flags));
  ASSERT_EQ(sendmsg(fd, &m, 0), 1) << strerror(errno);
  EXPECT_EQ(wait_for(fd, POLLERR) & POLLERR, POLLERR);
  EXPECT_EQ(read_exactly(fd, 1), "x");
}

// ---- ioctl and fcntl ----

TEST(Requests, AnswerAsTheKernels) {
  Peers peers(Kind::kStream, AF_INET);
  Fd ours = peers.make(), kernels = peers.reference();
  write_all(ours, "abc");
  write_all(peers.other, "abc");
  for (int fd : {static_cast<int>(ours), static_cast<int>(kernels)}) ASSERT_EQ(wait_for(fd, POLLIN), POLLIN);
  const auto log = [](int fd) {
    std::string all;
    auto add = [&](const char* what, const std::string& came) {
      all += std::string(what) + " " + came + "\n";
    };
    for (unsigned long request :
         {static_cast<unsigned long>(FIONREAD), static_cast<unsigned long>(SIOCOUTQ),
          static_cast<unsigned long>(SIOCOUTQNSD), static_cast<unsigned long>(SIOCATMARK), 0x5678ul}) {
      int value = 77;
      const std::string came = result(ioctl(fd, request, &value));
      add("ioctl", came + " " + std::to_string(value));
      add("without pointer", result(ioctl(fd, request, nullptr)));
    }
    for (int on : {1, 0}) {
      add("FIONBIO", result(ioctl(fd, FIONBIO, &on)) + result(fcntl(fd, F_GETFL)));
      add("FIOASYNC", result(ioctl(fd, FIOASYNC, &on)) + result(fcntl(fd, F_GETFL)));
    }
    add("FIONBIO", result(ioctl(fd, FIONBIO, nullptr)));
    add("FIOCLEX", result(ioctl(fd, FIOCLEX)) + result(fcntl(fd, F_GETFD)));
    add("FIONCLEX", result(ioctl(fd, FIONCLEX)) + result(fcntl(fd, F_GETFD)));
    add("F_SETOWN",
        result(fcntl(fd, F_SETOWN, 0)) + result(fcntl(fd, F_SETOWN, INT_MAX)) + result(fcntl(fd, F_GETOWN)));
    add("F_SETSIG",
        result(fcntl(fd, F_SETSIG, SIGUSR1)) + result(fcntl(fd, F_GETSIG)) + result(fcntl(fd, F_SETSIG, 99)));
    add("F_SETLEASE", result(fcntl(fd, F_SETLEASE, F_RDLCK)));
    add("F_GETPIPE_SZ", result(fcntl(fd, F_GETPIPE_SZ)));
    return all;
  };
  EXPECT_EQ(log(ours), log(kernels));
  EXPECT_EQ(read_exactly(ours, 3), "abc");
  peers.check(ours, "requests");
}

volatile sig_atomic_t arrived = 0;

// As a program that does something else until SIGIO comes.
TEST(Requests, AsynchronousReadinessIsASignal) {
  Peers peers(Kind::kStream, AF_INET);
  Fd fd = peers.make();
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) { arrived = 1; };
  sigaction(SIGIO, &action, &before);
  ASSERT_EQ(fcntl(fd, F_SETOWN, getpid()), 0);
  int on = 1;
  ASSERT_EQ(ioctl(fd, FIOASYNC, &on), 0);
  arrived = 0;
  write_all(fd, "x");
  timespec until{};
  clock_gettime(CLOCK_MONOTONIC, &until);
  for (timespec now = until; arrived == 0 && now.tv_sec < until.tv_sec + 10;
       clock_gettime(CLOCK_MONOTONIC, &now)) {
    const timespec tick{0, 1'000'000};
    nanosleep(&tick, nullptr);
  }
  EXPECT_EQ(arrived, 1);
  EXPECT_EQ(read_exactly(fd, 1), "x");
  sigaction(SIGIO, &before, nullptr);
}

int told_fd = -1;
long told_band = 0;
void take_told(int, siginfo_t* info, void*) {
  told_fd = info->si_fd;
  told_band = info->si_band;
  arrived = 1;
}

/// Waits for `arrived`, as a program that does something else meanwhile.
void until_arrived() {
  for (int i = 0; i < 10000 && arrived == 0; ++i) usleep(1000);
  EXPECT_EQ(arrived, 1);
}

TEST(Requests, ASignalOfTheProgramsChoiceTellsTheDescriptor) {
  Peers peers(Kind::kStream, AF_INET);
  Fd fd = peers.make();
  struct sigaction action {
  }, before{};
  action.sa_sigaction = take_told;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGRTMIN, &action, &before);
  ASSERT_EQ(fcntl(fd, F_SETOWN, getpid()), 0);
  ASSERT_EQ(fcntl(fd, F_SETSIG, SIGRTMIN), 0);
  ASSERT_EQ(fcntl(fd, F_SETFL, O_RDWR | O_ASYNC), 0);
  arrived = 0;
  told_band = 0;
  write_all(fd, "x");
  for (int i = 0; i < 10000 && (told_band & POLLIN) == 0; ++i)
    usleep(1000);  // room to send may be told first
  EXPECT_NE(told_band & POLLIN, 0);
  EXPECT_EQ(told_fd, static_cast<int>(fd));
  EXPECT_EQ(read_exactly(fd, 1), "x");
  ASSERT_EQ(fcntl(fd, F_SETFL, O_RDWR), 0);
  sigaction(SIGRTMIN, &before, nullptr);
}

// Sends a byte of urgent data.
FAR(sends_urgent) {
  Fd listener = listen_at(here());
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  near.word();
  EXPECT_EQ(send(fd, "!", 1, MSG_OOB), 1);
  near.word();
}

TEST(Requests, UrgentDataIsASignal) {
  Far far("sends_urgent");
  Fd fd = connect_to(there(static_cast<uint16_t>(far.number())));
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) { arrived = 1; };
  sigaction(SIGURG, &action, &before);
  arrived = 0;
  ASSERT_EQ(fcntl(fd, F_SETOWN, getpid()), 0);
  far.say("now");
  until_arrived();
  char byte = 0;
  EXPECT_EQ(recv(fd, &byte, 1, MSG_OOB), 1);
  EXPECT_EQ(byte, '!');
  far.say("end");
  far.finish();
  sigaction(SIGURG, &before, nullptr);
}

}  // namespace
