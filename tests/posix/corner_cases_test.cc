// What programs seldom do: a socket connected to itself, waits of nanoseconds, TLS by the kernel, flow
// labels, foreign addresses.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <linux/in6.h>
#include <linux/inet_diag.h>
#include <linux/sockios.h>
#include <linux/tls.h>
#include <net/ethernet.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include <set>

#include "posix/echo.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

const char* result(int value) { return value >= 0 ? "ok" : strerrorname_np(errno); }

// ---- a socket connected to itself ----

TEST(Self, ConnectsAndHearsItself) {
  Echo proof(kProof);
  for (const int family : {AF_INET, AF_INET6}) {
    Fd fd = tcp_socket(family);
    const Address at = here(0, family);
    ASSERT_STREQ(result(bind(fd, at.raw(), at.size)), "ok");
    const Address self = here(port_of(fd), family);
    ASSERT_STREQ(result(connect(fd, self.raw(), self.size)), "ok");
    Address peer;
    ASSERT_EQ(getpeername(fd, peer.raw(), &peer.size), 0);
    EXPECT_EQ(peer.port(), self.port());
    exchange(fd, "to myself");
    EXPECT_EQ(shutdown(fd, SHUT_WR), 0);
    EXPECT_EQ(read_to_end(fd), "");
    EXPECT_EQ(send(fd, "x", 1, MSG_NOSIGNAL), -1);
    EXPECT_EQ(errno, EPIPE);
  }
  proof.all();
}

TEST(Self, DatagramsComeBack) {
  Echo proof(kProof);
  Fd fd = udp_at(here());
  const Address self = here(port_of(fd));
  ASSERT_EQ(connect(fd, self.raw(), self.size), 0);
  exchange(fd, "to myself");
  proof.all();
}

// ---- waits of nanoseconds ----

timespec now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t;
}
long since(const timespec& t) {
  const timespec n = now();
  return (n.tv_sec - t.tv_sec) * 1'000'000'000 + n.tv_nsec - t.tv_nsec;
}

TEST(Wait, OfNanosecondsIsNotOverEarly) {
  Echo echo;
  Fd set(epoll_create1(0));
  epoll_event e{EPOLLIN, {}};
  ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, echo.fd, &e), 0);
  for (const long limit : {0L, 1L, 999L, 1'500'000L, 20'000'001L}) {
    const timespec timeout{0, limit}, begin = now();
    EXPECT_EQ(epoll_pwait2(set, &e, 1, &timeout, nullptr), 0);
    EXPECT_GE(since(begin), limit);
  }
  for (const timespec wrong : {timespec{0, -1}, timespec{0, 1'000'000'000}, timespec{-1, 0}}) {
    EXPECT_EQ(epoll_pwait2(set, &e, 1, &wrong, nullptr), -1);
    EXPECT_EQ(errno, EINVAL);
  }
  const timespec longest{INT64_MAX, 999'999'999};
  write_all(echo.fd, "a");
  EXPECT_EQ(epoll_pwait2(set, &e, 1, &longest, nullptr), 1);
  EXPECT_EQ(read_exactly(echo.fd, 1), "a");
  write_all(echo.fd, "b");
  EXPECT_EQ(epoll_pwait2(set, &e, 1, nullptr, nullptr), 1);
  EXPECT_EQ(read_exactly(echo.fd, 1), "b");
  for (int i = 0; i < kProof; ++i) exchange(echo.fd, ".");
  echo.all();
}

// ---- TLS by the kernel ----

// Reads to the end and says the first bytes.
FAR(reads_bytes) {
  Fd listener = listen_at(here());
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  for (int i = 0; i < kProof; ++i) write_all(fd, read_exactly(fd, 1));
  const std::string all = read_to_end(fd);
  std::string text;
  for (size_t i = 0; i < all.size() && i < 3; ++i) text += std::to_string(all[i] & 255) + " ";
  near.say(text + std::to_string(all.size()));
}

/// A connection that is the kernel's in any case.
Fd kernels_connection(Fd& other) {
  Fd listener = listen_at(address("127.0.0.1", 0));
  Fd fd = connect_to(address("127.0.0.1", port_of(listener)));
  other = accept_one(listener);
  return fd;
}

std::string start_tls(int fd) {
  std::string all = result(setsockopt(fd, IPPROTO_TCP, TCP_ULP, "tls", 3));
  tls12_crypto_info_aes_gcm_128 keys{};
  keys.info.version = TLS_1_2_VERSION;
  keys.info.cipher_type = TLS_CIPHER_AES_GCM_128;
  return all + " " + result(setsockopt(fd, SOL_TLS, TLS_TX, &keys, sizeof keys));
}

TEST(Tls, IsTheKernelsOrRefusedAsByIt) {
  Fd unconnected = tcp_socket(), other, plain = kernels_connection(other), alone = tcp_socket();
  const std::string kernels = start_tls(plain);
  EXPECT_EQ(start_tls(unconnected), kernels == "ok ok" ? "ENOTCONN ENOPROTOOPT" : "ENOENT ENOPROTOOPT");
  Far far("reads_bytes");
  Fd fd = connect_to(there(static_cast<uint16_t>(far.number())));
  for (int i = 0; i < kProof; ++i) exchange(fd, ".");
  EXPECT_EQ(start_tls(fd), kernels);
  write_all(fd, "secret");
  fd.reset();
  EXPECT_EQ(far.word(), kernels == "ok ok" ? "23 3 3 35" : "115 101 99 6");
  far.finish();
}

// ---- foreign addresses ----

/// What a call says that makes a socket the kernel's: ACCEL_REQUIRE has it refused.
const char* kernels() {
  return getenv("ACCEL_REQUIRE") != nullptr && getenv("LD_PRELOAD") != nullptr ? "EPROTONOSUPPORT" : "ok";
}

TEST(Foreign, AddressesAreBoundWhereAllowed) {
  Echo proof(kProof);
  const Address foreign = address("192.0.2.77", 0), foreign6 = address("2001:db8::77", 0);
  for (const int type : {SOCK_STREAM, SOCK_DGRAM}) {
    for (const auto& [level, option, to] :
         {std::tuple(IPPROTO_IP, IP_FREEBIND, foreign), std::tuple(IPPROTO_IP, IP_TRANSPARENT, foreign),
          std::tuple(IPPROTO_IPV6, IPV6_FREEBIND, foreign6),
          std::tuple(IPPROTO_IPV6, IPV6_TRANSPARENT, foreign6)}) {
      Fd fd(socket(to.family(), type, 0));
      EXPECT_STREQ(result(bind(fd, to.raw(), to.size)), "EADDRNOTAVAIL");
      set_option(fd, level, option, 1);
      EXPECT_EQ(get_option(fd, level, option), 1);
      const bool stream = type == SOCK_STREAM;
      EXPECT_STREQ(result(bind(fd, to.raw(), to.size)), stream ? "ok" : kernels());
      if (stream) {
        EXPECT_STREQ(result(listen(fd, 1)), kernels());
      }
    }
  }
  proof.all();
}

// ---- IP's fields of IPv6 sockets ----

/// DSCP, ECN and hop limit of the last frame so far that came to `port`.
std::string fields_of_last(int tap, uint16_t port) {
  std::string fields = "none";
  char frame[2048];
  while (recv(tap, frame, sizeof frame, MSG_DONTWAIT) >= 44) {
    const auto* four = reinterpret_cast<const iphdr*>(frame);
    const auto* six = reinterpret_cast<const ip6_hdr*>(frame);
    const bool v4 = four->version == 4;
    uint16_t ports[2];
    memcpy(ports, frame + (v4 ? sizeof *four : sizeof *six), sizeof ports);
    if (ntohs(ports[1]) != port) continue;
    const int tos = v4 ? four->tos : static_cast<int>(ntohl(six->ip6_flow) >> 20 & 255);
    fields = std::to_string(tos) + "/" + std::to_string(v4 ? four->ttl : six->ip6_hlim);
  }
  return fields;
}

// Echoes a connection, accepted or (given a port) made; says after each byte with what fields that came.
FAR(fields_reader) {
  const int family = std::stoi(args[0]);
  near.say(getenv("LD_PRELOAD") != nullptr);
  Fd tap(socket(AF_PACKET, SOCK_DGRAM, htons(family == AF_INET ? ETH_P_IP : ETH_P_IPV6)));
  Fd fd;
  if (args.size() > 1) {
    fd = connect_to(there(static_cast<uint16_t>(std::stoi(args[1])), family));
  } else {
    Fd listener = listen_at(here(0, family));
    near.say(port_of(listener));
    fd = accept_one(listener);
  }
  for (char byte; recv(fd, &byte, 1, 0) == 1;) {
    write_all(fd, &byte, 1);
    if (byte == '?') near.say(fields_of_last(tap, port_of(fd)));
  }
}

Address mapped(const Address& a) {
  Address six = here(a.port(), AF_INET6);
  auto& to = *reinterpret_cast<sockaddr_in6*>(six.raw());
  memset(&to.sin6_addr, 0, 10);
  memset(to.sin6_addr.s6_addr + 10, 0xff, 2);
  memcpy(to.sin6_addr.s6_addr + 12, &reinterpret_cast<const sockaddr_in*>(a.raw())->sin_addr, 4);
  return six;
}

void set_fields(int fd, int tos, int ttl, int traffic_class, int hops) {
  set_option(fd, IPPROTO_IP, IP_TOS, tos);
  set_option(fd, IPPROTO_IP, IP_TTL, ttl);
  set_option(fd, IPPROTO_IPV6, IPV6_TCLASS, traffic_class);
  set_option(fd, IPPROTO_IPV6, IPV6_UNICAST_HOPS, hops);
}

void expect_fields(Far& far, bool seen, int fd, const char* fields) {
  exchange(fd, "?");
  const std::string found = far.word();
  if (seen) {
    EXPECT_EQ(found, fields);
  }
}

// What travels by IPv4 has IP_TOS and IP_TTL, what travels by IPv6 the other two, before and after.
TEST(Fields, OfConnectionsAreTheirFamilys) {
  for (const int family : {AF_INET, AF_INET6}) {
    Far far("fields_reader", {std::to_string(family)});
    const bool seen = far.number() == 0;
    const Address at = there(static_cast<uint16_t>(far.number()), family),
                  to = family == AF_INET ? mapped(at) : at;
    Fd fd = tcp_socket(AF_INET6);
    set_fields(fd, 0x20, 33, 0x40, 44);
    ASSERT_STREQ(result(connect(fd, to.raw(), to.size)), "ok");
    for (int i = 0; i < kProof; ++i) exchange(fd, ".");
    expect_fields(far, seen, fd, family == AF_INET ? "32/33" : "64/44");
    set_fields(fd, 0x60, 55, 0x80, 66);
    expect_fields(far, seen, fd, family == AF_INET ? "96/55" : "128/66");
    fd.reset();
    far.finish();
  }
}

TEST(Fields, OfAcceptedConnectionsAreTheirFamilys) {
  Fd listener = tcp_socket(AF_INET6);
  set_fields(listener, 0x20, 33, 0x40, 44);
  const Address at = any(0, AF_INET6);
  ASSERT_STREQ(result(bind(listener, at.raw(), at.size)), "ok");
  ASSERT_STREQ(result(listen(listener, 4)), "ok");
  for (const int family : {AF_INET, AF_INET6}) {
    Far far("fields_reader", {std::to_string(family), std::to_string(port_of(listener))});
    const bool seen = far.number() == 0;
    Fd fd = accept_one(listener);
    for (int i = 0; i < kProof; ++i) exchange(fd, ".");
    expect_fields(far, seen, fd, family == AF_INET ? "32/33" : "64/44");
    fd.reset();
    far.finish();
  }
}

// ---- names that connections hold ----

Fd bound(const Address& at, bool reuse, std::string& how) {
  Fd fd = tcp_socket();
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, reuse);
  how = result(bind(fd, at.raw(), at.size));
  return fd;
}

// Connects to near's port and says so; leaves when it is told.
FAR(holder) {
  Fd fd = connect_to(there(static_cast<uint16_t>(std::stoi(args[0]))));
  for (int i = 0; i < kProof; ++i) write_all(fd, read_exactly(fd, 1));
  read_to_end(fd);
}

// inet_csk_bind_conflict(): an accepted connection holds its listener's port, in TIME-WAIT too.
TEST(Names, AConnectionHoldsItsListenersPort) {
  Fd listener = tcp_socket();
  const Address here_at = here();
  ASSERT_STREQ(result(bind(listener, here_at.raw(), here_at.size)), "ok");
  ASSERT_STREQ(result(listen(listener, 4)), "ok");
  const Address at = here(port_of(listener)), elsewhere = address("127.0.0.1", at.port());
  Far far("holder", {std::to_string(at.port())});
  Fd fd = accept_one(listener);
  for (int i = 0; i < kProof; ++i) exchange(fd, ".");
  listener.reset();
  std::string how;
  for (const char* state : {"open", "in TIME-WAIT"}) {
    bound(at, false, how);
    EXPECT_EQ(how, "EADDRINUSE") << state;
    bound(any(at.port()), false, how);
    EXPECT_EQ(how, "EADDRINUSE") << state;
    bound(at, true, how);
    EXPECT_EQ(how, "EADDRINUSE") << state;  // the connection did not have it
    bound(elsewhere, false, how);
    EXPECT_EQ(how, "ok") << state;
    if (fd < 0) break;
    shutdown(fd, SHUT_WR);
    read_to_end(fd);
    fd.reset();
  }
  far.finish();
}

// ---- net.ipv4 of this namespace ----

std::string read_file(const char* path) {
  Fd fd(open(path, O_RDONLY));
  char text[256] = {};
  EXPECT_GT(read(fd, text, sizeof text - 1), 0) << path;
  return text;
}

class Sysctl {
 public:
  Sysctl(const char* name, const char* value) : path_(std::string("/proc/sys/net/ipv4/") + name) {
    before_ = put(value);
  }
  ~Sysctl() { put(before_); }
  Sysctl(const Sysctl&) = delete;
  Sysctl& operator=(const Sysctl&) = delete;

 private:
  std::string put(const std::string& value) {
    const std::string before = read_file(path_.c_str());
    Fd fd(open(path_.c_str(), O_WRONLY));
    EXPECT_GT(pwrite(fd, value.data(), value.size(), 0), 0) << path_;
    return before;
  }
  const std::string path_;
  std::string before_;
};

// They hold for what a process begins after they were set.
TEST(Sysctls, OfTheHandshake) {
  const Sysctl scaling("tcp_window_scaling", "0"), sack("tcp_sack", "0"), stamps("tcp_timestamps", "0");
  Echo echo(kProof);
  tcp_info info{};
  socklen_t size = sizeof info;
  ASSERT_EQ(getsockopt(echo.fd, IPPROTO_TCP, TCP_INFO, &info, &size), 0);
  EXPECT_EQ(info.tcpi_options & (TCPI_OPT_WSCALE | TCPI_OPT_SACK | TCPI_OPT_TIMESTAMPS), 0);
  echo.all();
}

// IP_PMTUDISC_DONT for all sockets.
TEST(Sysctls, NoDiscoveryOfPathMtus) {
  const Sysctl off("ip_no_pmtu_disc", "1");
  Echo echo(kProof);
  EXPECT_EQ(get_option(echo.fd, IPPROTO_IP, IP_MTU_DISCOVER), IP_PMTUDISC_DONT);
  set_option(echo.fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
  set_option(echo.fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT);
  exchange(echo.fd, "on");
  echo.all();
}

// Accepts and reads nothing until it is told to end.
FAR(reads_nothing) {
  Fd listener = tcp_socket();
  set_option(listener, SOL_SOCKET, SO_RCVBUF, 8192);
  const Address at = here();
  bind(listener, at.raw(), at.size);
  listen(listener, 1);
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  near.word();
}

// Less waits in the buffer than it has room for.
TEST(Sysctls, LowWaterOfWhatIsNotSent) {
  const Sysctl low("tcp_notsent_lowat", "4096");
  Echo proof(kProof);
  Far far("reads_nothing");
  Fd fd = connect_to(there(static_cast<uint16_t>(far.number())));
  set_option(fd, SOL_SOCKET, SO_SNDBUF, 200'000);
  EXPECT_EQ(get_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT), 0);
  set_nonblocking(fd);
  const std::string chunk = pattern(1000);
  while (send(fd, chunk.data(), chunk.size(), 0) > 0) {
  }
  int waiting = 0;
  ASSERT_EQ(ioctl(fd, SIOCOUTQNSD, &waiting), 0);
  EXPECT_GE(waiting, 4096);
  EXPECT_LT(waiting, 4096 + 66'000);  // the last buffer is filled
  far.say(1);
  fd.reset();
  far.finish();
  proof.all();
}

/// Whether poll() says so within so many looks of 100 ms.
bool becomes_writable(int fd, bool wanted) {
  for (int i = 0; i < 150; ++i) {
    if ((wait_for(fd, POLLOUT, 0) != 0) == wanted) return true;
    usleep(100'000);
  }
  return false;
}

// The kernel looks at it at once, libaccel within five seconds.
TEST(Sysctls, LowWaterOfWhatIsNotSentIsFollowed) {
  Echo proof(kProof);
  Far far("reads_nothing");
  Fd fd = connect_to(there(static_cast<uint16_t>(far.number())));
  set_option(fd, SOL_SOCKET, SO_SNDBUF, 200'000);
  set_nonblocking(fd);
  const std::string chunk = pattern(1000);
  for (int waiting = 0; waiting < 10'000 && send(fd, chunk.data(), chunk.size(), 0) > 0;)
    ASSERT_EQ(ioctl(fd, SIOCOUTQNSD, &waiting), 0);
  EXPECT_TRUE(becomes_writable(fd, true));
  {
    const Sysctl low("tcp_notsent_lowat", "4096");
    EXPECT_TRUE(becomes_writable(fd, false));
    set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 100'000);  // the socket's own goes before it
    EXPECT_TRUE(wait_for(fd, POLLOUT, 0));
    set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 0);
    EXPECT_FALSE(wait_for(fd, POLLOUT, 0));
  }
  EXPECT_TRUE(becomes_writable(fd, true));
  far.say(1);
  fd.reset();
  far.finish();
  proof.all();
}

std::string congestion_of(int fd) {
  char name[16] = {};
  socklen_t size = sizeof name;
  EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size), 0);
  return name;
}

/// TCP_CC_INFO. All of it 0: the connection has none.
tcp_bbr_info bbr_of(int fd) {
  tcp_cc_info info{};
  socklen_t size = sizeof info;
  EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_CC_INFO, &info, &size), 0);
  EXPECT_TRUE(size == 0 || size == sizeof info.bbr) << size;
  return size != 0 ? info.bbr : tcp_bbr_info{};
}

// The host's default, and the program's own choice.
TEST(Sysctls, BbrAsTheDefaultOfCongestionControl) {
  if (read_file("/proc/sys/net/ipv4/tcp_available_congestion_control").find("bbr") == std::string::npos)
    GTEST_SKIP() << "this kernel has no bbr";
  const Sysctl other("tcp_congestion_control", "bbr");
  Echo echo(kProof);
  EXPECT_EQ(congestion_of(echo.fd), "bbr");
  posix_test::exchange(echo.fd, std::string(50'000, 'x'));
  const tcp_bbr_info bbr = bbr_of(echo.fd);
  EXPECT_GT(bbr.bbr_bw_lo, 0u);
  EXPECT_GT(bbr.bbr_min_rtt, 0u);
  EXPECT_LT(bbr.bbr_min_rtt, 10'000'000u);  // µs; ~0: none
  // Start-up, drain, and the cycle that probes for bandwidth.
  EXPECT_TRUE((std::set{739u, 88u, 320u, 192u, 256u}.contains(bbr.bbr_pacing_gain))) << bbr.bbr_pacing_gain;
  EXPECT_TRUE((std::set{739u, 512u}.contains(bbr.bbr_cwnd_gain))) << bbr.bbr_cwnd_gain;
  tcp_bbr_info cut{};
  socklen_t room = sizeof cut.bbr_bw_lo;
  EXPECT_EQ(getsockopt(echo.fd, IPPROTO_TCP, TCP_CC_INFO, &cut, &room), 0);
  EXPECT_EQ(room, sizeof cut.bbr_bw_lo);
  EXPECT_GT(cut.bbr_bw_lo, 0u);
  EXPECT_EQ(cut.bbr_min_rtt, 0u);
  ASSERT_EQ(setsockopt(echo.fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5), 0);
  EXPECT_EQ(congestion_of(echo.fd), "cubic");
  EXPECT_EQ(bbr_of(echo.fd).bbr_bw_lo, 0u);
  posix_test::exchange(echo.fd, std::string(50'000, 'y'));
  ASSERT_EQ(setsockopt(echo.fd, IPPROTO_TCP, TCP_CONGESTION, "bbr", 3), 0);
  EXPECT_EQ(congestion_of(echo.fd), "bbr");
  exchange(echo.fd, "on");
  echo.all();
  Fd listener = listen_at(here());
  EXPECT_EQ(congestion_of(listener), "bbr");
  ASSERT_EQ(setsockopt(listener, IPPROTO_TCP, TCP_CONGESTION, "reno", 4), 0);
  EXPECT_EQ(congestion_of(listener), "reno");
  ASSERT_EQ(setsockopt(listener, IPPROTO_TCP, TCP_CONGESTION, "bbr", 3), 0);
  EXPECT_EQ(congestion_of(listener), "bbr");
}

// ---- repair ----

TEST(Repair, OfALiveConnection) {
  Echo echo(kProof);
  set_option(echo.fd, IPPROTO_TCP, TCP_REPAIR, 1);
  EXPECT_EQ(get_option(echo.fd, IPPROTO_TCP, TCP_REPAIR), 1);
  set_option(echo.fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, TCP_SEND_QUEUE);
  set_option(echo.fd, IPPROTO_TCP, TCP_REPAIR, -1);  // TCP_REPAIR_OFF_NO_WP
  exchange(echo.fd, "as before");
  echo.all();
}

// ---- a group whose members a program chooses ----

constexpr int kCalls = 40;  // all to one of two members: one chance in 2^39

// Connects or sends to near's port, each time from another of its own.
FAR(calls) {
  const Address to = there(static_cast<uint16_t>(near.number()));
  std::vector<Fd> held;
  for (int i = 0; i < kCalls; ++i) {
    if (args[0] == "tcp")
      held.push_back(connect_to(to));
    else
      sendto(udp_socket(), "?", 1, 0, to.raw(), to.size);
  }
  near.say("done");
}

/// The second member has whatever comes, whenever the others came.
void attach_program(int fd) {
  sock_filter code[] = {{BPF_RET | BPF_K, 0, 0, 1}};
  const sock_fprog program{1, code};
  ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof program), 0);
}

Fd member(int type, const Address& at, bool with_program = false) {
  Fd fd(socket(AF_INET, type, 0));
  set_option(fd, SOL_SOCKET, SO_REUSEPORT, 1);
  if (with_program) attach_program(fd);
  EXPECT_STREQ(result(bind(fd, at.raw(), at.size)), "ok");
  if (type == SOCK_STREAM) {
    EXPECT_STREQ(result(listen(fd, 2 * kCalls)), "ok");
  }
  return fd;
}

void program_of_a_group(int type, bool before_bind = false) {
  Echo proof(kProof);
  Far far("calls", {type == SOCK_STREAM ? "tcp" : "udp"});
  Fd first = member(type, here(), before_bind);
  const Address at = here(port_of(first));
  Fd second = member(type, at), third;
  if (!before_bind) attach_program(second);
  if (getenv("ACCEL_REQUIRE") == nullptr) third = member(type, at);  // which would refuse it
  far.say(at.port());
  EXPECT_EQ(far.word(), "done");
  for (int i = 0; i < kCalls; ++i) {
    ASSERT_EQ(wait_for(second, POLLIN), POLLIN);
    char byte;
    if (type == SOCK_STREAM)
      accept_one(second);
    else
      EXPECT_EQ(recv(second, &byte, 1, 0), 1);
  }
  EXPECT_EQ(wait_for(first, POLLIN, 0), 0);
  if (third >= 0) {
    EXPECT_EQ(wait_for(third, POLLIN, 0), 0);
  }
  far.finish();
  proof.all();
}

TEST(Program, ChoosesAmongAllListeners) { program_of_a_group(SOCK_STREAM); }
TEST(Program, ChoosesAmongAllDatagramSockets) { program_of_a_group(SOCK_DGRAM); }
TEST(Program, MayComeBeforeTheName) {
  if (getenv("ACCEL_REQUIRE") != nullptr) GTEST_SKIP() << "refuses what the kernel serves";
  for (const int type : {SOCK_STREAM, SOCK_DGRAM}) program_of_a_group(type, true);
}

// ---- control messages, names ----

TEST(Messages, OfSizesThatCannotBe) {
  Echo echo(kProof);
  Message<64> m;
  memset(m.control, 0, sizeof m.control);
  m.data.iov_len = 1;
  EXPECT_EQ(sendmsg(echo.fd, &m, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  write_all(echo.fd, "x");
  EXPECT_EQ(wait_for(echo.fd, POLLIN), POLLIN);
  Address from;
  msghdr named = m;
  named.msg_name = from.raw();
  named.msg_namelen = static_cast<socklen_t>(-1);
  EXPECT_EQ(recvmsg(echo.fd, &named, MSG_PEEK), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(read_exactly(echo.fd, 1), "x");
  echo.all();
}

// ---- flow labels ----

/// The flow label of a frame that comes to `port` over IPv6; nothing within a while: none.
long label_of_frame(int tap, uint16_t port) {
  for (;;) {
    char frame[2048];
    pollfd wait{tap, POLLIN, 0};
    if (poll(&wait, 1, 10000) != 1) return -1;
    if (recv(tap, frame, sizeof frame, 0) < 44) continue;
    const auto* ip = reinterpret_cast<const ip6_hdr*>(frame);
    const auto* ports = reinterpret_cast<const uint16_t*>(ip + 1);
    if (ntohs(ports[1]) == port) return ntohl(ip->ip6_flow);
  }
}

// Sees a connection's first segments by a tap, which XDP would not let them reach.
FAR(label_reader) {
  near.say(getenv("LD_PRELOAD") != nullptr);
  Fd tap(socket(AF_PACKET, SOCK_DGRAM, htons(ETH_P_IPV6)));
  Fd listener = listen_at(here(0, AF_INET6));
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  for (int i = 0; i < kProof; ++i) write_all(fd, read_exactly(fd, 1));
  if (getenv("LD_PRELOAD") == nullptr) near.say(label_of_frame(tap, port_of(listener)) & 0x0fffffff);
}

struct Label {
  bool seen;
  long value = 0;
};

/// The traffic class and flow label that a connection has after `prepare(fd, to)`.
template <class F>
Label label(F prepare) {
  Far far("label_reader");
  Label l{far.number() == 0};
  Address to = there(static_cast<uint16_t>(far.number()), AF_INET6);
  Fd fd = tcp_socket(AF_INET6);
  prepare(static_cast<int>(fd), *reinterpret_cast<sockaddr_in6*>(to.raw()));
  EXPECT_STREQ(result(connect(fd, to.raw(), to.size)), "ok");
  for (int i = 0; i < kProof; ++i) exchange(fd, ".");
  if (l.seen) l.value = far.number();
  far.finish();
  return l;
}

void choose_label(int fd, sockaddr_in6& to) {
  in6_flowlabel_req request{};
  request.flr_dst = to.sin6_addr;
  request.flr_label = to.sin6_flowinfo = htonl(0x12345);
  request.flr_action = IPV6_FL_A_GET;
  request.flr_flags = IPV6_FL_F_CREATE;
  request.flr_share = IPV6_FL_S_ANY;
  EXPECT_EQ(setsockopt(fd, IPPROTO_IPV6, IPV6_FLOWLABEL_MGR, &request, sizeof request), 0) << strerror(errno);
  set_option(fd, IPPROTO_IPV6, IPV6_FLOWINFO_SEND, 1);
}

TEST(Flow, LabelOfTheProgramsChoice) {
  Echo proof(kProof);
  const Label l = label(choose_label);
  if (l.seen) {
    EXPECT_EQ(l.value & 0xfffff, 0x12345);
  }
  proof.all();
}

TEST(Flow, NoLabelWhereNoneIsWanted) {
  const Label off = label([](int fd, sockaddr_in6&) { set_option(fd, IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, 0); });
  if (off.seen) {
    EXPECT_EQ(off.value & 0xfffff, 0);
  }
}

}  // namespace
