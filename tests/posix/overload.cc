// The programs of benchmarks/overload.py and tests/posix/overload.py:
//   overload serve ADDRESS PORT              echoes TCP by one thread, which computes 100 ms once a second;
//                                            a UDP socket at PORT + 1 that it never reads
//   overload ask ADDRESS PORT SECONDS        a byte there and back every 10 ms; JSON: trips, median_us,
//   worst_us overload blast DEVICE KIND RATE SECONDS FROM TO PORT LIVE   frames by a packet socket. KIND: syn
//   (of many
//                                            sources), ack (random numbers for the connection FROM:LIVE),
//                                            udp (to PORT + 1), garbage; JSON: sent
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;
using Frame = std::array<uint8_t, 60>;

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

sockaddr_in at(const char* address, int port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, address, &a.sin_addr) != 1) fail(address);
  return a;
}
const sockaddr* raw(const sockaddr_in& a) { return reinterpret_cast<const sockaddr*>(&a); }

// ---- the server and who asks it ----

/// True: the connection has ended.
bool echo(int fd) {
  char bytes[4096];
  const ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
  if (n > 0) return send(fd, bytes, static_cast<size_t>(n), 0) != n;
  return n == 0 || errno != EAGAIN;
}

int serve(const char* address, int port) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0), unread = socket(AF_INET, SOCK_DGRAM, 0);
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const sockaddr_in name = at(address, port), beside = at(address, port + 1);
  if (bind(listener, raw(name), sizeof name) != 0 || listen(listener, 128) != 0) fail("listen");
  if (bind(unread, raw(beside), sizeof beside) != 0) fail("bind");
  const int set = epoll_create1(0);
  epoll_event event{EPOLLIN, {.fd = listener}};
  epoll_ctl(set, EPOLL_CTL_ADD, listener, &event);
  for (auto computes = Clock::now() + 1s;;) {
    std::array<epoll_event, 64> events;
    const int n = epoll_wait(set, events.data(), static_cast<int>(events.size()), 100);
    for (int i = 0; i < n; ++i) {
      int fd = events[static_cast<size_t>(i)].data.fd;
      if (fd == listener) {
        if ((fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK)) < 0) continue;
        event = {EPOLLIN, {.fd = fd}};
        epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
      } else if (echo(fd)) {
        close(fd);
      }
    }
    if (const auto now = Clock::now(); now >= computes) {
      while (Clock::now() < now + 100ms) {
      }
      computes = Clock::now() + 1s;
    }
  }
}

int ask(const char* address, int port, double seconds) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const sockaddr_in to = at(address, port);
  if (connect(fd, raw(to), sizeof to) != 0) fail("connect");
  sockaddr_in own{};
  socklen_t length = sizeof own;
  getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length);
  std::printf("%d\n", ntohs(own.sin_port));
  std::fflush(stdout);
  std::vector<double> trips;
  char byte = 'x';
  for (const auto end = Clock::now() + std::chrono::duration<double>(seconds); Clock::now() < end;) {
    const auto begin = Clock::now();
    if (send(fd, &byte, 1, 0) != 1 || recv(fd, &byte, 1, 0) != 1) fail("the connection");
    trips.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    std::this_thread::sleep_until(begin + 10ms);
  }
  std::sort(trips.begin(), trips.end());
  std::printf("{\"trips\": %zu, \"median_us\": %.0f, \"worst_us\": %.0f}\n", trips.size(),
              trips[trips.size() / 2], trips.back());
  return 0;
}

// ---- the frames ----

uint16_t sum(const uint8_t* bytes, size_t size, uint32_t s = 0) {
  for (size_t i = 0; i + 1 < size; i += 2) s += uint32_t{bytes[i]} << 8 | bytes[i + 1];
  while (s >> 16) s = (s & 0xffff) + (s >> 16);
  return static_cast<uint16_t>(s);
}
void put16(uint8_t* to, uint32_t value) {
  to[0] = static_cast<uint8_t>(value >> 8), to[1] = static_cast<uint8_t>(value);
}
void put32(uint8_t* to, uint32_t value) { put16(to, value >> 16), put16(to + 2, value); }

struct Blaster {
  std::string device, kind;
  sockaddr_in from, to;
  int live;
  std::array<uint8_t, 6> our_mac{}, their_mac{};
  std::mt19937 generator{7};

  uint32_t random() { return static_cast<uint32_t>(generator()); }
  void build(Frame& frame) {
    frame.fill(0);
    uint8_t *ip = &frame[14], *l4 = &frame[34];
    std::copy(their_mac.begin(), their_mac.end(), frame.begin());
    std::copy(our_mac.begin(), our_mac.end(), frame.begin() + 6);
    put16(&frame[12], ETHERTYPE_IP);
    if (kind == "garbage") {
      for (size_t i = 14; i < frame.size(); ++i) frame[i] = static_cast<uint8_t>(random());
      return;
    }
    const bool udp = kind == "udp";
    constexpr uint16_t length = 20;
    ip[0] = 0x45, ip[8] = 64, ip[9] = udp ? IPPROTO_UDP : IPPROTO_TCP;
    put16(ip + 2, uint32_t{20} + length);
    std::memcpy(ip + 12, &from.sin_addr, 4);
    std::memcpy(ip + 16, &to.sin_addr, 4);
    if (kind == "syn") ip[15] = static_cast<uint8_t>(10 + random() % 200);  // neighbours that are not there
    put16(ip + 10, static_cast<uint16_t>(~sum(ip, 20)));
    put16(l4, kind == "ack" ? static_cast<uint32_t>(live) : 1024 + random() % 60000);
    put16(l4 + 2, uint32_t{ntohs(to.sin_port)} + (udp ? 1 : 0));
    if (udp) return put16(l4 + 4, length);
    put32(l4 + 4, random()), put32(l4 + 8, random());
    l4[12] = 5 << 4, l4[13] = kind == "syn" ? TH_SYN : TH_ACK;
    put16(l4 + 14, 1000);
    put16(l4 + 16, static_cast<uint16_t>(~sum(l4, length, sum(ip + 12, 8, IPPROTO_TCP + uint32_t{length}))));
  }

  /// By the kernel's table: the caller has talked to it.
  void find_macs(int fd) {
    ifreq request{};
    device.copy(request.ifr_name, sizeof request.ifr_name - 1);
    if (ioctl(fd, SIOCGIFHWADDR, &request) != 0) fail("SIOCGIFHWADDR");
    std::memcpy(our_mac.data(), request.ifr_hwaddr.sa_data, 6);
    std::ifstream table("/proc/net/arp");
    char address[INET_ADDRSTRLEN];
    inet_ntop(AF_INET, &to.sin_addr, address, sizeof address);
    for (std::string line; std::getline(table, line);) {
      char ip[32], mac[32];
      unsigned m[6];
      if (std::sscanf(line.c_str(), "%31s %*s %*s %31s", ip, mac) != 2 || std::string(ip) != address)
        continue;
      if (std::sscanf(mac, "%x:%x:%x:%x:%x:%x", m, m + 1, m + 2, m + 3, m + 4, m + 5) != 6) continue;
      for (size_t i = 0; i < 6; ++i) their_mac[i] = static_cast<uint8_t>(m[i]);
      return;
    }
    fail("no such neighbour");
  }

  int run(double rate, double seconds) {
    constexpr size_t kBatch = 40;
    const int fd = socket(AF_PACKET, SOCK_RAW, 0);
    sockaddr_ll here{};
    here.sll_family = AF_PACKET;
    here.sll_ifindex = static_cast<int>(if_nametoindex(device.c_str()));
    if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&here), sizeof here) != 0) fail("packet socket");
    find_macs(fd);
    std::vector<Frame> frames(kBatch);
    std::vector<iovec> vectors(kBatch);
    std::vector<mmsghdr> messages(kBatch);
    for (size_t i = 0; i < kBatch; ++i) {
      vectors[i] = {frames[i].data(), frames[i].size()};
      messages[i].msg_hdr.msg_iov = &vectors[i];
      messages[i].msg_hdr.msg_iovlen = 1;
    }
    long sent = 0;
    const auto begin = Clock::now(), end = begin + std::chrono::duration_cast<Clock::duration>(
                                                       std::chrono::duration<double>(seconds));
    while (Clock::now() < end) {
      for (Frame& frame : frames) build(frame);
      sent += std::max(sendmmsg(fd, messages.data(), kBatch, 0), 0);
      std::this_thread::sleep_until(begin +
                                    std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(static_cast<double>(sent) / rate)));
    }
    std::printf("{\"sent\": %ld}\n", sent);
    return 0;
  }
};

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "serve" && argc == 4) return serve(argv[2], std::atoi(argv[3]));
  if (what == "ask" && argc == 5) return ask(argv[2], std::atoi(argv[3]), std::atof(argv[4]));
  if (what == "blast" && argc == 10) {
    Blaster b{argv[2], argv[3], at(argv[6], 0), at(argv[7], std::atoi(argv[8])), std::atoi(argv[9])};
    return b.run(std::atof(argv[4]), std::atof(argv[5]));
  }
  std::fprintf(stderr, "see the beginning of overload.cc\n");
  return 2;
}
