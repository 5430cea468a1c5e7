// Addresses and ports: binds that meet, ports that many destinations share, addresses that come and go,
// groups of listeners, and what a connection is called when it ends.
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>

#include <chrono>
#include <fstream>
#include <set>
#include <thread>

#include "posix/echo.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

const char* result(int value) { return value >= 0 ? "ok" : strerrorname_np(errno); }

const char* bind_result(int fd, const Address& a) { return result(bind(fd, a.raw(), a.size)); }

/// "10.77.0.1" with another last number, on the device of the test.
std::string neighbour(const Address& of, int last) {
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(of.raw());
  const uint32_t host = ntohl(v4->sin_addr.s_addr);
  char text[32];
  snprintf(text, sizeof(text), "%u.%u.%u.%d", host >> 24, host >> 16 & 255, host >> 8 & 255, last);
  return text;
}

/// The namespace's own `ip`, in a child that libaccel is not in.
void ip(const std::string& words) {
  ASSERT_EQ(
      system(("unset LD_PRELOAD; device=$(ip -br -4 addr | awk '/^veth/ {split($1, d, \"@\"); print d[1]}');"
              " ip " +
              words)
                 .c_str()),
      0)
      << words;
}

/// An address on the test's device, for the time of a test.
class ExtraAddress {
 public:
  explicit ExtraAddress(int last) : text(neighbour(here(), last)) {
    ip("addr add " + text + "/24 dev $device");
  }
  ~ExtraAddress() {
    if (!gone_) remove();
  }
  void remove() {
    gone_ = true;
    ip("addr del " + text + "/24 dev $device");
  }
  const std::string text;

 private:
  bool gone_ = false;
};

// Calls `address port` as often as told; says what it read to the end, or the error.
FAR(dialler) {
  for (std::string order; (order = near.word()) != "end";) {
    const size_t space = order.find(' ');
    const Address to =
        address(order.substr(0, space), static_cast<uint16_t>(std::stoi(order.substr(space + 1))));
    Fd fd = tcp_socket(to.family());
    if (connect(fd, to.raw(), to.size) != 0) {
      near.say(strerrorname_np(errno));
      continue;
    }
    near.say(read_to_end(fd));
  }
}

struct Dialler : Far {
  Dialler() : Far("dialler") {}
  ~Dialler() {
    say("end");
    finish();
  }
  void call(const std::string& to, uint16_t port) { say(to + " " + std::to_string(port)); }
};

void answer(int listener, const std::string& text) {
  Fd fd = accept_one(listener);
  write_all(fd, text);
}

const char* kHere = "POSIX_TEST_HERE";

// ---- binds that meet ----

TEST(Binds, WildcardSpecificAndDualStack) {
  Echo proof(kProof);
  Fd listener = listen_at(here());
  const uint16_t port = port_of(listener);
  Fd specific = tcp_socket(), wild = tcp_socket(), six = tcp_socket(AF_INET6), only = tcp_socket(AF_INET6);
  EXPECT_STREQ(bind_result(specific, here(port)), "EADDRINUSE");
  EXPECT_STREQ(bind_result(wild, any(port)), "EADDRINUSE");
  EXPECT_STREQ(bind_result(six, any(port, AF_INET6)), "EADDRINUSE");
  set_option(only, IPPROTO_IPV6, IPV6_V6ONLY, 1);
  EXPECT_STREQ(bind_result(only, any(port, AF_INET6)), "ok");
  EXPECT_EQ(listen(only, 1), 0);
  proof.all();
}

TEST(Binds, TheMostSpecificListenerIsCalled) {
  Echo proof(kProof);
  Fd specific = tcp_socket(), wild = tcp_socket(), six = tcp_socket(AF_INET6);
  for (int fd : {static_cast<int>(specific), static_cast<int>(wild), static_cast<int>(six)}) {
    set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    set_option(fd, SOL_SOCKET, SO_REUSEPORT, 1);
  }
  set_option(six, IPPROTO_IPV6, IPV6_V6ONLY, 1);
  ASSERT_STREQ(bind_result(specific, here()), "ok");
  const uint16_t port = port_of(specific);
  ASSERT_STREQ(bind_result(wild, any(port)), "ok");
  ASSERT_STREQ(bind_result(six, any(port, AF_INET6)), "ok");
  for (int fd : {static_cast<int>(specific), static_cast<int>(wild), static_cast<int>(six)})
    ASSERT_EQ(listen(fd, 8), 0);
  ExtraAddress extra(51);
  Dialler far;
  far.call(getenv(kHere), port);
  answer(specific, "specific");
  EXPECT_EQ(far.word(), "specific");
  far.call(extra.text, port);
  answer(wild, "wild");
  EXPECT_EQ(far.word(), "wild");
  far.call(getenv("POSIX_TEST_HERE6"), port);
  answer(six, "six");
  EXPECT_EQ(far.word(), "six");
  specific.reset();
  far.call(getenv(kHere), port);
  answer(wild, "wild");
  EXPECT_EQ(far.word(), "wild");
  proof.all();
}

// ---- ports ----

// Four listeners; each takes as many connections as it is told, in whatever order they come, and holds them:
// over soft-iWARP connect() ends with accept().
FAR(four_listeners) {
  std::vector<Fd> listeners, held;
  for (int i = 0; i < 4; ++i) {
    listeners.push_back(listen_at(here(), 64));
    near.say(port_of(listeners.back()));
  }
  std::vector<pollfd> looks;
  for (Fd& listener : listeners) looks.push_back({listener, POLLIN, 0});
  const auto all = 4 * static_cast<size_t>(near.number());
  while (held.size() < all) {
    ASSERT_GT(poll(looks.data(), looks.size(), -1), 0);
    for (const pollfd& look : looks)
      if ((look.revents & POLLIN) != 0) held.push_back(accept_one(look.fd));
  }
  for (Fd& fd : held) write_all(fd, "!");
  for (Fd& fd : held) read_to_end(fd);
  near.say("ended");
}

class PortRange {
 public:
  PortRange(int first, int last) {
    std::ifstream(kFile) >> first_ >> last_;
    std::ofstream(kFile) << first << ' ' << last << '\n';
  }
  ~PortRange() { std::ofstream(kFile) << first_ << ' ' << last_ << '\n'; }

 private:
  static constexpr const char* kFile = "/proc/sys/net/ipv4/ip_local_port_range";
  int first_ = 0, last_ = 0;
};

/// Sixteen ports are there, from `first`; each of four destinations gets `each` connections. No two tests
/// have the same: a destination may be one of an earlier test's, to which connections are in TIME-WAIT.
void share_ports(bool bind_late, long each, int first) {
  Far far("four_listeners");
  std::vector<Address> to;
  for (int i = 0; i < 4; ++i) to.push_back(there(static_cast<uint16_t>(far.number())));
  std::vector<Fd> connections;
  std::set<uint16_t> ports;
  {
    const PortRange range(first, first + 15);
    far.say(each);
    for (long i = 0; i < each; ++i)
      for (const Address& a : to) {
        Fd fd = tcp_socket();
        if (bind_late) {
          set_option(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
          EXPECT_STREQ(bind_result(fd, here()), "ok");
          EXPECT_EQ(port_of(fd), 0);
        }
        EXPECT_STREQ(result(connect(fd, a.raw(), a.size)), "ok") << connections.size();
        ports.insert(port_of(fd));
        connections.push_back(std::move(fd));
      }
    if (each == 16) {  // no tuple is left to the first destination
      Fd more = tcp_socket();
      EXPECT_STREQ(result(connect(more, to[0].raw(), to[0].size)), "EADDRNOTAVAIL");
    }
  }
  for (Fd& fd : connections) EXPECT_EQ(read_exactly(fd, 1), "!");
  EXPECT_LE(ports.size(), 16u);
  connections.clear();
  EXPECT_EQ(far.word(), "ended");  // all is acknowledged: no connection is the kernel's to end
  far.finish();
}

TEST(Ports, AreSharedByDestinations) { share_ports(false, 6, 40000); }
TEST(Ports, AreSharedByDestinationsWhenBoundLate) { share_ports(true, 6, 40016); }
TEST(Ports, OfOneDestinationComeToAnEnd) { share_ports(false, 16, 40032); }
TEST(Ports, OfOneDestinationComeToAnEndWhenBoundLate) { share_ports(true, 16, 40048); }

// Listens until it is told of the end; of so many that it accepts it closes each once the other end has.
FAR(closes_second) {
  Fd listener = listen_at(here(), 64);
  near.say(port_of(listener));
  for (long left = near.number(); left > 0; --left) {
    Fd fd = accept_one(listener);
    read_to_end(fd);
  }
  (void)near.word();
}

/// A connection that this end closes first: its tuple is in TIME-WAIT here.
const char* connect_and_close(const Address& to) {
  Fd fd = tcp_socket();
  const char* made = result(connect(fd, to.raw(), to.size));
  if (std::string(made) != "ok") return made;
  shutdown(fd, SHUT_WR);
  read_to_end(fd);
  return made;
}

TEST(Ports, AllCanBeInTimeWait) {
  constexpr int kPorts = 60;
  Far far("closes_second");
  const Address to = there(static_cast<uint16_t>(far.number()));
  far.say(kPorts);
  const PortRange range(40100, 40100 + kPorts - 1);
  for (int i = 0; i < kPorts; ++i) ASSERT_STREQ(connect_and_close(to), "ok") << i;
  // Now and then (one run in sixty) the kernel has a port or two free again.
  std::vector<Fd> others;
  const char* last = "ok";
  while (others.size() < 5 && std::string(last) == "ok") {
    others.push_back(tcp_socket());
    last = result(connect(others.back(), to.raw(), to.size));
  }
  EXPECT_STREQ(last, "EADDRNOTAVAIL");
  far.say("end");
  far.finish();
}

TEST(Ports, NobodyIsAtPortZero) {
  Far far("echo_stream");
  const Address to = there(static_cast<uint16_t>(far.number())), nobody = there(0);
  Fd fd = tcp_socket();
  EXPECT_STREQ(result(connect(fd, nobody.raw(), nobody.size)), "ECONNREFUSED");
  Fd other = tcp_socket();
  set_nonblocking(other);
  EXPECT_STREQ(result(connect(other, nobody.raw(), nobody.size)), "EINPROGRESS");
  EXPECT_NE(wait_for(other, POLLOUT) & POLLERR, 0);
  EXPECT_EQ(get_option(other, SOL_SOCKET, SO_ERROR), ECONNREFUSED);
  ASSERT_STREQ(result(connect(fd, to.raw(), to.size)), "ok");
  for (int i = 0; i < kProof; ++i) exchange(fd, ".");
  fd.reset();
  EXPECT_EQ(far.word(), std::string(kProof, '.'));
  far.finish();
}

// ---- addresses that come and go ----

TEST(Addresses, OneIsAddedAndRemovedUnderAWildcardListener) {
  Echo proof(kProof);
  Fd listener = listen_at(any());
  const uint16_t port = port_of(listener);
  Dialler far;
  ExtraAddress extra(52);
  far.call(extra.text, port);
  answer(listener, "added");
  EXPECT_EQ(far.word(), "added");
  extra.remove();
  far.call(getenv(kHere), port);
  answer(listener, "first");
  EXPECT_EQ(far.word(), "first");
  proof.all();
}

TEST(Addresses, AListenersOwnIsRemovedAndComesBack) {
  Echo proof(kProof);
  Dialler far;
  std::string text;
  Fd listener;
  {
    ExtraAddress extra(53);
    text = extra.text;
    listener = listen_at(address(text, 0));
    far.call(text, port_of(listener));
    answer(listener, "one");
    EXPECT_EQ(far.word(), "one");
  }
  ExtraAddress again(53);
  far.call(text, port_of(listener));
  answer(listener, "two");
  EXPECT_EQ(far.word(), "two");
  proof.all();
}

// The kernel's TCP goes on sending from an address that is gone; when it is back nothing was lost.
TEST(Addresses, AConnectionsOwnIsRemovedAndComesBack) {
  Far far("echo_stream");
  const Address to = there(static_cast<uint16_t>(far.number()));
  Fd fd = tcp_socket();
  std::string text;
  {
    ExtraAddress extra(54);
    text = extra.text;
    ASSERT_STREQ(bind_result(fd, address(text, 0)), "ok");
    ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
    for (int i = 0; i < kProof; ++i) exchange(fd, ".");
  }
  ExtraAddress again(54);
  exchange(fd, "back");
  fd.reset();
  EXPECT_EQ(far.word(), std::string(kProof, '.') + "back");
  far.finish();
}

// Accepts, and sends a byte for each word.
FAR(sends_when_told) {
  Fd listener = listen_at(here());
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  while (near.word() != "end") write_all(fd, "x");
}

TEST(Addresses, AConnectionHearsNothingWhileItsOwnIsGone) {
  Echo proof(kProof);
  Far far("sends_when_told");
  const Address to = there(static_cast<uint16_t>(far.number()));
  Fd fd = tcp_socket();
  int told = 0, heard = 0;
  {
    ExtraAddress extra(55);
    ASSERT_STREQ(bind_result(fd, address(extra.text, 0)), "ok");
    ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
  }
  bool deaf = false;  // the news may take a moment, and what comes before is heard
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (; !deaf && std::chrono::steady_clock::now() < end; ++told) {
    far.say("send");
    deaf = wait_for(fd, POLLIN, 1000) == 0;
    if (!deaf) heard += static_cast<int>(read_exactly(fd, 1).size());
  }
  EXPECT_TRUE(deaf) << heard << " bytes came";
  ExtraAddress again(55);
  EXPECT_EQ(read_exactly(fd, static_cast<size_t>(told - heard)).size(), static_cast<size_t>(told - heard));
  far.say("end");
  far.finish();
  proof.all();
}

// ---- groups ----

Fd member(int type, const Address& a) {
  Fd fd(socket(AF_INET, type, 0));
  set_option(fd, SOL_SOCKET, SO_REUSEPORT, 1);
  EXPECT_STREQ(bind_result(fd, a), "ok");
  if (type == SOCK_STREAM) {
    EXPECT_EQ(listen(fd, 16), 0);
  }
  return fd;
}

TEST(Groups, AStrangerIsRefused) {
  Echo proof(kProof);
  Fd first = member(SOCK_STREAM, here());
  Fd datagrams = member(SOCK_DGRAM, here());
  Fd stranger = tcp_socket(), other = udp_socket();
  EXPECT_STREQ(bind_result(stranger, here(port_of(first))), "EADDRINUSE");
  EXPECT_STREQ(bind_result(other, here(port_of(datagrams))), "EADDRINUSE");
  Fd friendly = member(SOCK_STREAM, here(port_of(first)));
  Fd second = member(SOCK_DGRAM, here(port_of(datagrams)));
  proof.all();
}

// ---- ends ----

// Accepts, then does as near says.
FAR(ender) {
  Fd listener = listen_at(here());
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  for (std::string order; (order = near.word()) != "end";) {
    if (order == "shut") shutdown(fd, SHUT_WR);
    if (order == "read") near.say(read_to_end(fd).empty() ? "end" : "bytes");
  }
}

int state_of(int fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size), 0);
  return info.tcpi_state;
}

int until_state(int fd, int wanted) {
  for (int i = 0; i < 5000 && state_of(fd) != wanted; ++i) poll(nullptr, 0, 1);
  return state_of(fd);
}

/// What each call says of a connection in that state.
std::string words_of(int fd) {
  std::string all;
  auto add = [&](long r) { all += std::string(r >= 0 ? std::to_string(r) : strerrorname_np(errno)) + " "; };
  char byte;
  add(recv(fd, &byte, 1, MSG_DONTWAIT));
  add(send(fd, "x", 1, MSG_NOSIGNAL));
  Address peer;
  add(getpeername(fd, peer.raw(), &peer.size));
  add(shutdown(fd, SHUT_WR));
  add(shutdown(fd, SHUT_RD));
  add(listen(fd, 1));
  add(get_option(fd, SOL_SOCKET, SO_ERROR));
  add(wait_for(fd, POLLIN | POLLOUT | POLLRDHUP, 0));
  return all;
}

TEST(Ends, OfBothSides) {
  Far far("ender");
  Fd fd = connect_to(there(static_cast<uint16_t>(far.number())));
  far.say("shut");
  ASSERT_EQ(wait_for(fd, POLLRDHUP), POLLRDHUP);
  EXPECT_EQ(state_of(fd), TCP_CLOSE_WAIT);
  ASSERT_EQ(shutdown(fd, SHUT_WR), 0);
  EXPECT_EQ(until_state(fd, TCP_CLOSE), TCP_CLOSE);
  EXPECT_EQ(words_of(fd), "0 EPIPE ENOTCONN ENOTCONN ENOTCONN EINVAL 0 8213 ");
  far.say("end");
  far.finish();
}

TEST(Ends, OfOneSide) {
  Far far("ender");
  Fd fd = connect_to(there(static_cast<uint16_t>(far.number())));
  ASSERT_EQ(shutdown(fd, SHUT_WR), 0);
  EXPECT_EQ(until_state(fd, TCP_FIN_WAIT2), TCP_FIN_WAIT2);
  EXPECT_EQ(words_of(fd), "EAGAIN EPIPE 0 0 0 EINVAL 0 8213 ");
  far.say("end");
  far.finish();
}

TEST(Ends, ByADisconnectTheSocketConnectsAgain) {
  const sockaddr none{AF_UNSPEC, {}};
  Far first("echo_stream"), second("echo_stream");
  const Address one = there(static_cast<uint16_t>(first.number())),
                two = there(static_cast<uint16_t>(second.number()));
  Fd fd = connect_to(one);
  exchange(fd, "one");
  EXPECT_EQ(connect(fd, &none, sizeof(none)), 0);
  Address peer;
  EXPECT_STREQ(result(getpeername(fd, peer.raw(), &peer.size)), "ENOTCONN");
  EXPECT_STREQ(result(static_cast<int>(send(fd, "x", 1, MSG_NOSIGNAL))), "ECONNRESET");
  EXPECT_STREQ(result(static_cast<int>(send(fd, "x", 1, MSG_NOSIGNAL))), "EPIPE");
  ASSERT_STREQ(result(connect(fd, two.raw(), two.size)), "ok");
  for (int i = 0; i < kProof; ++i) exchange(fd, ".");
  fd.reset();
  EXPECT_EQ(first.word(), "Connection reset by peer");
  EXPECT_EQ(second.word(), std::string(kProof, '.'));
  first.finish();
  second.finish();
}

// bind() to port 0 holds the address for good, the port as long as there is a connection
// (SOCK_BINDPORT_LOCK).
TEST(Ends, ADisconnectGivesUpThePortThatWasNotAskedFor) {
  const sockaddr none{AF_UNSPEC, {}};
  Echo proof(kProof);
  for (const bool by_number : {false, true}) {
    Far far("echo_stream");
    const Address to = there(static_cast<uint16_t>(far.number()));
    Fd fd(socket(AF_INET, SOCK_STREAM, 0));
    const Address own = here(by_number ? port_of(listen_at(here())) : 0);
    ASSERT_STREQ(result(bind(fd, own.raw(), own.size)), "ok");
    ASSERT_STREQ(result(connect(fd, to.raw(), to.size)), "ok");
    EXPECT_STREQ(result(bind(fd, own.raw(), own.size)), "EINVAL");
    EXPECT_EQ(connect(fd, &none, sizeof(none)), 0);
    const Address other = here();
    EXPECT_STREQ(result(bind(fd, other.raw(), other.size)), by_number ? "EINVAL" : "ok");
    EXPECT_EQ(far.word(), "Connection reset by peer");
    far.finish();
  }
  proof.all();
}

/// FINs that come into, or leave, this namespace's kernel are lost meanwhile. An accelerated connection
/// passes by no rule, and would become the kernel's.
class LostFins {
 public:
  explicit LostFins(const std::string& way) {
    run("add table inet fins { chain c { type filter hook " + way +
        " priority 0; tcp flags & fin == fin drop; }; }");
  }
  ~LostFins() { run("delete table inet fins"); }

 private:
  static void run(const std::string& words) {
    if (getenv("LD_PRELOAD") != nullptr) return;
    EXPECT_EQ(system(("nft '" + words + "'").c_str()), 0) << words;
  }
};

// Accepts and closes when told, having heard nothing of near's FIN.
FAR(closes_at_once) {
  Fd listener = listen_at(here());
  near.say(getenv("LD_PRELOAD") != nullptr);
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  for (int i = 0; i < kProof; ++i) write_all(fd, read_exactly(fd, 1));
  {
    const LostFins lost("input");
    near.say("ready");
    near.word();
    shutdown(fd, SHUT_WR);
    near.say("shut");
    near.word();
  }
  near.say(read_to_end(fd).empty() ? "end" : "bytes");
}

// The FINs cross: RFC 9293 figure 13. Where both ends are libaccel's no kernel can lose one.
TEST(Ends, OfBothSidesAtOnce) {
  Far far("closes_at_once");
  const bool lossless = far.number() != 0 && getenv("LD_PRELOAD") != nullptr;
  Fd fd = connect_to(there(static_cast<uint16_t>(far.number())));
  for (int i = 0; i < kProof; ++i) exchange(fd, ".");
  EXPECT_EQ(far.word(), "ready");
  {
    const LostFins lost("output");
    ASSERT_EQ(shutdown(fd, SHUT_WR), 0);
    if (!lossless) {
      EXPECT_EQ(state_of(fd), TCP_FIN_WAIT1);
    }
    far.say("close");
    EXPECT_EQ(far.word(), "shut");
    if (!lossless) {
      EXPECT_EQ(until_state(fd, TCP_CLOSING), TCP_CLOSING);
      EXPECT_EQ(words_of(fd), "0 EPIPE 0 0 0 EINVAL 0 8213 ");
    }
  }
  far.say("hear");
  EXPECT_EQ(far.word(), "end");
  EXPECT_EQ(until_state(fd, TCP_CLOSE), TCP_CLOSE);
  far.finish();
}

// A connect() over IPv6 that fails leaves a dual-stack socket dual-stack.
TEST(Ends, AfterARefusalOverIpv6AMappedAddressIsReached) {
  Far far("echo_stream");
  const auto port = static_cast<uint16_t>(far.number());
  Fd fd = tcp_socket(AF_INET6);
  const Address refused = there(1, AF_INET6);
  EXPECT_STREQ(result(connect(fd, refused.raw(), refused.size)), "ECONNREFUSED");
  EXPECT_EQ(get_option(fd, IPPROTO_IPV6, IPV6_V6ONLY), 0);
  const Address mapped = address(std::string("::ffff:") + getenv("POSIX_TEST_THERE"), port);
  ASSERT_STREQ(result(connect(fd, mapped.raw(), mapped.size)), "ok");
  for (int i = 0; i < kProof; ++i) exchange(fd, ".");
  fd.reset();
  EXPECT_EQ(far.word(), std::string(kProof, '.'));
  far.finish();
}

TEST(Networks, ASocketIsOfTheOneInWhichItWasMade) {
  Echo far(kProof);
  exchange(far.fd, "x");
  Address to;
  ASSERT_EQ(getpeername(far.fd, to.raw(), &to.size), 0);
  Fd before = tcp_socket();
  std::thread([&] {
    ASSERT_EQ(unshare(CLONE_NEWNET), 0);
    Fd stream = tcp_socket(), datagram = udp_socket(), receiver = udp_socket(), listener = tcp_socket();
    EXPECT_STREQ(result(connect(stream, to.raw(), to.size)), "ENETUNREACH");
    EXPECT_STREQ(result(static_cast<int>(sendto(datagram, "x", 1, 0, to.raw(), to.size))), "ENETUNREACH");
    EXPECT_STREQ(bind_result(receiver, any()), "ok");
    EXPECT_STREQ(bind_result(listener, any(to.port())), "ok");
    EXPECT_STREQ(result(listen(listener, 1)), "ok");
  }).join();
  EXPECT_STREQ(result(connect(before, to.raw(), to.size)), "ok");
  exchange(far.fd, "y");
  EXPECT_EQ(far.all(), "xy");
}

}  // namespace
