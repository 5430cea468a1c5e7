// ICMP errors and what they tell sockets: the error queue (IP_RECVERR), path MTUs, peers that are not there.
#include <time.h>

// Needs timespec:
#include <linux/errqueue.h>
#include <net/if.h>
#include <netinet/icmp6.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>
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

TEST_P(Errors, WhoIsBoundToADeviceHasThemQueued) {
  const Address to = there(9, family);
  Fd fd(socket(family, SOCK_DGRAM, 0));
  const unsigned near = if_nametoindex("veth1"), device = near != 0 ? near : if_nametoindex("veth2");
  set_option(fd, SOL_SOCKET, SO_BINDTOIFINDEX, static_cast<int>(device));
  const Address own = here(0, family);
  ASSERT_EQ(bind(fd, own.raw(), own.size), 0);
  queue_errors(fd, family);
  EXPECT_EQ(shown(sendto(fd, "x", 1, 0, to.raw(), to.size)), "1");
  EXPECT_EQ(wait_for(fd, 0), POLLERR);
  EXPECT_EQ(next_error(fd, to), refused);
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

uint16_t checksum(const void* data, size_t size) {
  uint32_t sum = 0;
  for (size_t i = 0; i < size; i += 2) {
    uint16_t word;
    memcpy(&word, static_cast<const char*>(data) + i, 2);
    sum += word;
  }
  sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(~(sum + (sum >> 16)));
}

udphdr udp_header(uint16_t from, uint16_t to, ssize_t payload) {
  udphdr udp{};
  udp.source = htons(from);
  udp.dest = htons(to);
  udp.len = htons(static_cast<uint16_t>(8 + payload));
  return udp;
}

/// The error about a datagram of `n` bytes that `from` sent to this process's `port`.
void say_too_big(const Address& from, uint16_t port, ssize_t n, uint16_t mtu) {
  struct {
    icmphdr icmp{};
    iphdr ip{};
    udphdr udp{};
  } m;
  m.icmp.type = ICMP_DEST_UNREACH;
  m.icmp.code = ICMP_FRAG_NEEDED;
  m.icmp.un.frag.mtu = htons(mtu);
  m.ip.version = 4;
  m.ip.ihl = 5;
  m.ip.tot_len = htons(static_cast<uint16_t>(28 + n));
  m.ip.ttl = 64;
  m.ip.protocol = IPPROTO_UDP;
  const Address self = here();
  m.ip.saddr = reinterpret_cast<const sockaddr_in*>(from.raw())->sin_addr.s_addr;
  m.ip.daddr = reinterpret_cast<const sockaddr_in*>(self.raw())->sin_addr.s_addr;
  m.udp = udp_header(from.port(), port, n);
  m.ip.check = checksum(&m.ip, sizeof m.ip);
  m.icmp.checksum = checksum(&m, sizeof m);
  Fd raw(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP));
  if (sendto(raw, &m, sizeof m, 0, from.raw(), from.size) < 0) throw std::runtime_error(strerror(errno));
}

void say_too_big6(Address from, uint16_t port, ssize_t n, uint16_t mtu) {
  struct {
    icmp6_hdr icmp{};
    ip6_hdr ip{};
    udphdr udp{};
  } m;
  m.icmp.icmp6_type = ICMP6_PACKET_TOO_BIG;  // its checksum is the socket's to fill in
  m.icmp.icmp6_mtu = htonl(mtu);
  m.ip.ip6_vfc = 0x60;
  m.ip.ip6_plen = htons(static_cast<uint16_t>(8 + n));
  m.ip.ip6_nxt = IPPROTO_UDP;
  m.ip.ip6_hlim = 64;
  const Address self = here(0, AF_INET6);
  m.ip.ip6_src = reinterpret_cast<const sockaddr_in6*>(from.raw())->sin6_addr;
  m.ip.ip6_dst = reinterpret_cast<const sockaddr_in6*>(self.raw())->sin6_addr;
  m.udp = udp_header(from.port(), port, n);
  Fd raw(socket(AF_INET6, SOCK_RAW, IPPROTO_ICMPV6));
  reinterpret_cast<sockaddr_in6*>(from.raw())->sin6_port = 0;  // raw(7)
  if (sendto(raw, &m, sizeof m, 0, from.raw(), from.size) < 0) throw std::runtime_error(strerror(errno));
}

// Takes datagrams, and answers each as a router whose next link has the MTU that near says.
FAR(narrow_link) {
  const int family = std::stoi(args[0]);
  Fd fd = udp_at(here(0, family));
  near.say(port_of(fd));
  for (std::string order; (order = near.word()) != "end";) {
    char bytes[2000];
    Address from;
    const ssize_t n = recvfrom(fd, bytes, sizeof bytes, 0, from.raw(), &from.size);
    const auto mtu = static_cast<uint16_t>(std::stoi(order));
    if (family == AF_INET)
      say_too_big(from, port_of(fd), n, mtu);
    else
      say_too_big6(from, port_of(fd), n, mtu);
    near.say("sent");
  }
}

/// The path's MTU as the kernel knows it: no stack but its own has raw sockets.
int kernels_path_mtu(Address to) {
  const bool v4 = to.family() == AF_INET;
  Fd fd(socket(to.family(), SOCK_RAW, v4 ? int{IPPROTO_ICMP} : int{IPPROTO_ICMPV6}));
  if (!v4) reinterpret_cast<sockaddr_in6*>(to.raw())->sin6_port = 0;
  EXPECT_EQ(connect(fd, to.raw(), to.size), 0) << strerror(errno);
  return get_option(fd, v4 ? int{IPPROTO_IP} : int{IPPROTO_IPV6}, v4 ? IP_MTU : IPV6_MTU);
}

// What the socket sends by the kernel, datagrams that are cut into fragments, would else be too large.
TEST_P(Errors, TheKernelKnowsThePathsMtu) {
  Far far("narrow_link", {std::to_string(family)});
  const Address to = there(static_cast<uint16_t>(far.number()), family);
  int mtu = 1300;
  for (const bool connected : {false, true}) {
    Fd fd = udp_socket(family);
    if (connected) {
      ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
    }
    mtu -= 5;
    far.say(mtu);
    const std::string large(1310, 'x');
    ASSERT_EQ(shown(sendto(fd, large.data(), large.size(), 0, connected ? nullptr : to.raw(),
                           connected ? 0 : to.size)),
              "1310");
    EXPECT_EQ(far.word(), "sent");
    for (int i = 0; i < 300 && kernels_path_mtu(to) != mtu; ++i) {
      pollfd nothing{fd, POLLIN, 0};  // the program does what programs do
      poll(&nothing, 1, 10);
    }
    EXPECT_EQ(kernels_path_mtu(to), mtu);
    EXPECT_EQ(connected || get_option(fd, SOL_SOCKET, SO_ERROR) == 0, true);
  }
  far.say("end");
  far.finish();
  proof.all();
}

// Echoes a connection; from a '!' on its host says of what comes for it that the host is unreachable, until
// near has said so.
FAR(unreachable) {
  const bool able = getenv("LD_PRELOAD") == nullptr;  // by the kernel's filter
  near.say(able);
  Fd listener = listen_at(here());
  const uint16_t port = port_of(listener);
  near.say(port);
  Fd fd = accept_one(listener);
  for (char byte; recv(fd, &byte, 1, 0) == 1;) {
    write_all(fd, &byte, 1);
    if (byte != '!') continue;
    const std::string rule =
        "nft 'add table ip unreachable { chain c { type filter hook input priority 0; tcp dport " +
        std::to_string(port) + " reject with icmp type host-unreachable; }; }'";
    near.say(system(rule.c_str()));
    near.word();
    near.say(system("nft delete table ip unreachable"));
  }
}

// tcp_v4_err(): a connection lives on, and SO_ERROR tells once (sk_err_soft).
TEST(Soft, AnErrorIsToldOnce) {
  Far far("unreachable");
  const bool able = far.number() != 0;
  Fd fd = connect_to(there(static_cast<uint16_t>(far.number())));
  for (int i = 0; i < kProof; ++i) exchange(fd, ".");
  if (able) {
    exchange(fd, "!");
    EXPECT_EQ(far.number(), 0);
    write_all(fd, "y");
    int error = 0;
    for (int i = 0; i < 500 && error == 0; ++i) {
      pollfd nothing{fd, POLLIN, 0};  // the program does what programs do
      EXPECT_EQ(poll(&nothing, 1, 10), 0);
      error = get_option(fd, SOL_SOCKET, SO_ERROR);
    }
    EXPECT_EQ(error, EHOSTUNREACH);
    EXPECT_EQ(get_option(fd, SOL_SOCKET, SO_ERROR), 0);
    far.say("told");
    EXPECT_EQ(far.number(), 0);
    EXPECT_EQ(read_exactly(fd, 1), "y");
  }
  fd.reset();
  far.finish();
}

TEST(PathMtu, ADatagramThatMustNotBeCutIsRefused) {
  Echo proof(kProof);
  Far far("narrow_link", {std::to_string(AF_INET)});
  const Address to = there(static_cast<uint16_t>(far.number()));
  Fd fd = udp_socket(), cut = udp_socket();
  set_option(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
  for (int s : {static_cast<int>(fd), static_cast<int>(cut)}) ASSERT_EQ(connect(s, to.raw(), to.size), 0);
  const std::string large(1400, 'x');
  far.say(1300);
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
