// ICMP errors and what they tell sockets: the error queue (IP_RECVERR), path MTUs, peers that are not there.
#include <time.h>

// Needs timespec:
#include <linux/errqueue.h>
#include <netinet/ip.h>
#include <netinet/ip_icmp.h>
#include <netinet/udp.h>
#include <poll.h>

#include "posix/echo.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

std::string shown(long result) { return result >= 0 ? std::to_string(result) : strerrorname_np(errno); }

/// An address on the test's network that nobody has.
Address nobody(uint16_t port, int family = AF_INET) {
  Address a = there(port, family);
  if (family == AF_INET)
    reinterpret_cast<sockaddr_in*>(a.raw())->sin_addr.s_addr ^= htonl(0x40);
  else
    reinterpret_cast<sockaddr_in6*>(a.raw())->sin6_addr.s6_addr[15] ^= 0x40;
  return a;
}

void queue_errors(int fd, int family) {
  set_option(fd, family == AF_INET ? IPPROTO_IP : IPPROTO_IPV6, family == AF_INET ? IP_RECVERR : IPV6_RECVERR,
             1);
}

/// An entry of the error queue: errno, origin, type, code, whether `offender` sent it, and what was sent.
std::string next_error(int fd, const Address& offender) {
  Message<100> m;
  Address to;
  m.msg_name = to.raw();
  m.msg_namelen = to.size;
  const ssize_t n = recvmsg(fd, &m, MSG_ERRQUEUE | MSG_DONTWAIT);
  if (n < 0) return strerrorname_np(errno);
  std::string text(m.bytes, static_cast<size_t>(n));
  for (const cmsghdr* c = CMSG_FIRSTHDR(&m); c != nullptr; c = CMSG_NXTHDR(&m, const_cast<cmsghdr*>(c))) {
    sock_extended_err e;
    memcpy(&e, CMSG_DATA(c), sizeof e);
    const unsigned char* from = CMSG_DATA(c) + sizeof e;
    const bool v4 = offender.family() == AF_INET;
    const bool same = v4 ? memcmp(&reinterpret_cast<const sockaddr_in*>(from)->sin_addr,
                                  &reinterpret_cast<const sockaddr_in*>(offender.raw())->sin_addr, 4) == 0
                         : memcmp(&reinterpret_cast<const sockaddr_in6*>(from)->sin6_addr,
                                  &reinterpret_cast<const sockaddr_in6*>(offender.raw())->sin6_addr, 16) == 0;
    text += std::string(" ") + strerrorname_np(static_cast<int>(e.ee_errno)) + " " +
            std::to_string(e.ee_origin) + " " + std::to_string(e.ee_type) + "/" + std::to_string(e.ee_code) +
            (same ? " there" : " elsewhere");
  }
  return text;
}

class Errors : public testing::TestWithParam<int> {
 protected:
  Echo proof{kProof};
  const int family = GetParam();
  const std::string refused = family == AF_INET ? "x ECONNREFUSED 2 3/3 there" : "x ECONNREFUSED 3 1/4 there";
};
INSTANTIATE_TEST_SUITE_P(Families, Errors, testing::Values(AF_INET, AF_INET6));

TEST_P(Errors, WhoAsksHasThemQueued) {
  const Address to = there(9, family);
  for (const bool connected : {false, true}) {
    Fd fd = udp_at(here(0, family));
    queue_errors(fd, family);
    if (connected) {
      ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
    }
    auto send_one = [&] {
      return shown(sendto(fd, "x", 1, 0, connected ? nullptr : to.raw(), connected ? 0 : to.size));
    };
    ASSERT_EQ(send_one(), "1");
    EXPECT_EQ(wait_for(fd, 0), POLLERR);
    EXPECT_EQ(next_error(fd, to), refused);
    EXPECT_EQ(wait_for(fd, 0, 0), 0);
    EXPECT_EQ(next_error(fd, to), "EAGAIN");
    ASSERT_EQ(send_one(), "1");  // what was read from the queue is no longer pending
    EXPECT_EQ(wait_for(fd, 0), POLLERR);
    EXPECT_EQ(send_one(), "ECONNREFUSED");
    EXPECT_EQ(wait_for(fd, 0), POLLERR);  // the queue still has it
    EXPECT_EQ(next_error(fd, to), refused);
    ASSERT_EQ(send_one(), "1");
    char byte;
    EXPECT_EQ(shown(recv(fd, &byte, 1, 0)), "ECONNREFUSED");
    EXPECT_EQ(next_error(fd, to), refused);
  }
  proof.all();
}

TEST_P(Errors, WhoDoesNotAskHearsNothingUnconnected) {
  const Address to = there(9, family);
  Fd fd = udp_at(here(0, family));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(shown(sendto(fd, "x", 1, 0, to.raw(), to.size)), "1");
  EXPECT_EQ(wait_for(fd, POLLIN, 200), 0);
  EXPECT_EQ(get_option(fd, SOL_SOCKET, SO_ERROR), 0);
  EXPECT_EQ(next_error(fd, to), "EAGAIN");
  proof.all();
}

// The neighbour does not answer: three seconds, not the two minutes of a connection that times out.
TEST_P(Errors, NobodyIsThere) {
  const Address to = nobody(9, family);
  Fd fd = tcp_socket(family), asks = udp_at(here(0, family)), silent = udp_socket(family);
  queue_errors(asks, family);
  ASSERT_EQ(connect(asks, to.raw(), to.size), 0);
  ASSERT_EQ(connect(silent, to.raw(), to.size), 0);
  EXPECT_EQ(shown(send(asks, "x", 1, 0)), "1");
  EXPECT_EQ(shown(send(silent, "x", 1, 0)), "1");
  const time_t began = time(nullptr);
  EXPECT_EQ(shown(connect(fd, to.raw(), to.size)), "EHOSTUNREACH");
  EXPECT_LT(time(nullptr) - began, 10);
  EXPECT_EQ(wait_for(asks, 0), POLLERR);
  EXPECT_EQ(next_error(asks, here(0, family)),
            family == AF_INET ? "x EHOSTUNREACH 2 3/1 there" : "x EHOSTUNREACH 3 1/3 there");
  EXPECT_EQ(get_option(silent, SOL_SOCKET, SO_ERROR), 0);
  EXPECT_EQ(shown(connect(fd, to.raw(), to.size)), "EHOSTUNREACH");  // and again
  proof.all();
}

// Takes a datagram and answers as a router whose next link has the MTU that near says.
FAR(narrow_link) {
  Fd fd = udp_at(here());
  near.say(port_of(fd));
  char bytes[2000];
  Address from;
  const ssize_t n = recvfrom(fd, bytes, sizeof bytes, 0, from.raw(), &from.size);
  struct {
    icmphdr icmp{};
    iphdr ip{};
    udphdr udp{};
  } m;
  m.icmp.type = ICMP_DEST_UNREACH;
  m.icmp.code = ICMP_FRAG_NEEDED;
  m.icmp.un.frag.mtu = htons(static_cast<uint16_t>(std::stoi(args[0])));
  m.ip.version = 4;
  m.ip.ihl = 5;
  m.ip.tot_len = htons(static_cast<uint16_t>(28 + n));
  m.ip.ttl = 64;
  m.ip.protocol = IPPROTO_UDP;
  m.ip.saddr = reinterpret_cast<sockaddr_in*>(from.raw())->sin_addr.s_addr;
  const Address self = here();
  m.ip.daddr = reinterpret_cast<const sockaddr_in*>(self.raw())->sin_addr.s_addr;
  m.udp.source = htons(from.port());
  m.udp.dest = htons(port_of(fd));
  m.udp.len = htons(static_cast<uint16_t>(8 + n));
  auto checksum = [](const void* data, size_t size) {
    uint32_t sum = 0;
    for (size_t i = 0; i < size; i += 2) {
      uint16_t word;
      memcpy(&word, static_cast<const char*>(data) + i, 2);
      sum += word;
    }
    sum = (sum & 0xffff) + (sum >> 16);
    return static_cast<uint16_t>(~(sum + (sum >> 16)));
  };
  m.ip.check = checksum(&m.ip, sizeof m.ip);
  m.icmp.checksum = checksum(&m, sizeof m);
  Fd raw(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP));
  if (sendto(raw, &m, sizeof m, 0, from.raw(), from.size) < 0) near.say(strerror(errno));
  near.say("sent");
  near.word();  // the port stays open
}

TEST(PathMtu, ADatagramThatMustNotBeCutIsRefused) {
  Echo proof(kProof);
  Far far("narrow_link", {"1300"});
  const Address to = there(static_cast<uint16_t>(far.number()));
  Fd fd = udp_socket(), cut = udp_socket();
  set_option(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
  for (int s : {static_cast<int>(fd), static_cast<int>(cut)}) ASSERT_EQ(connect(s, to.raw(), to.size), 0);
  const std::string large(1400, 'x');
  EXPECT_EQ(shown(send(fd, large.data(), large.size(), 0)), "1400");
  EXPECT_EQ(far.word(), "sent");
  EXPECT_EQ(wait_for(fd, 0), POLLERR);
  char byte;
  EXPECT_EQ(shown(recv(fd, &byte, 1, 0)), "EMSGSIZE");
  EXPECT_EQ(shown(send(fd, large.data(), large.size(), 0)), "EMSGSIZE");
  EXPECT_EQ(get_option(fd, IPPROTO_IP, IP_MTU), 1300);
  EXPECT_EQ(shown(send(fd, large.data(), 1272, 0)), "1272");
  EXPECT_EQ(shown(send(cut, large.data(), large.size(), 0)), "1400");
  EXPECT_EQ(get_option(cut, IPPROTO_IP, IP_MTU), 1300);
  set_option(fd, IPPROTO_IP, IP_RECVERR, 1);  // a local error is queued as well
  EXPECT_EQ(shown(send(fd, large.data(), large.size(), 0)), "EMSGSIZE");
  EXPECT_EQ(wait_for(fd, 0, 0), POLLERR);
  EXPECT_EQ(next_error(fd, to).find(" EMSGSIZE 1 0/0") != std::string::npos, true);
  far.say("end");
  far.finish();
  proof.all();
}

}  // namespace
