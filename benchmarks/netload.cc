// The plain socket program that latency and throughput are measured with: knows nothing of libaccel.
//
//   netload echo tcp|udp ADDRESS PORT SIZE          answers each SIZE-byte message (UDP: any datagram)
//   netload pingpong tcp|udp ADDRESS PORT SIZE N    N round trips; prints {"median_us", "p99_us", "rate",
//   "shares_us"}
//     shares_us: [share, microseconds] pairs, the share of round trips that took no longer
//   netload sink tcp|udp ADDRESS PORT               counts; TCP: one connection until its end, then prints
//   bits and seconds; UDP: until an empty datagram netload source tcp|udp ADDRESS PORT SIZE SECONDS
// With NETLOAD_SPIN=1 receivers spin on MSG_DONTWAIT instead of blocking.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "socket_tool.h"

namespace {

bool tcp = true;
bool spin = false;

ssize_t receive(int fd, void* data, size_t size) {
  for (;;) {
    ssize_t n = recv(fd, data, size, spin ? MSG_DONTWAIT : 0);
    if (n >= 0 || (errno != EAGAIN && errno != EINTR)) return n;
  }
}

bool receive_all(int fd, char* data, size_t size) {
  for (size_t have = 0; have < size;) {
    ssize_t n = receive(fd, data + have, size - have);
    if (n < 0 && errno != ECONNRESET) fail("recv");
    if (n <= 0) return false;
    have += static_cast<size_t>(n);
  }
  return true;
}

void send_all(int fd, const char* data, size_t size) {
  while (size > 0) {
    ssize_t n = check(send(fd, data, size, MSG_NOSIGNAL), "send");
    data += n;
    size -= static_cast<size_t>(n);
  }
}

int bound(const sockaddr_in& a) {
  int fd = check(socket(AF_INET, tcp ? SOCK_STREAM : SOCK_DGRAM, 0), "socket");
  int on = 1, space = 4 << 20;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (!tcp) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &space, sizeof(space));
  check(bind(fd, reinterpret_cast<const sockaddr*>(&a), sizeof(a)), "bind");
  return fd;
}

int accepted(const sockaddr_in& a) {
  int listener = bound(a);
  check(listen(listener, 8), "listen");
  int fd = check(accept(listener, nullptr, nullptr), "accept");
  int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return fd;
}

int connected(const sockaddr_in& a) {
  int fd = check(socket(AF_INET, tcp ? SOCK_STREAM : SOCK_DGRAM, 0), "socket");
  int on = 1;
  if (tcp) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  check(connect(fd, reinterpret_cast<const sockaddr*>(&a), sizeof(a)), "connect");
  return fd;
}

int echo(const sockaddr_in& a, size_t size) {
  std::vector<char> buffer(std::max<size_t>(size, 65536));
  if (tcp) {
    int fd = accepted(a);
    while (receive_all(fd, buffer.data(), size)) send_all(fd, buffer.data(), size);
    return 0;
  }
  int fd = bound(a);
  for (;;) {
    sockaddr_in from{};
    socklen_t length = sizeof(from);
    ssize_t n = recvfrom(fd, buffer.data(), buffer.size(), spin ? MSG_DONTWAIT : 0,
                         reinterpret_cast<sockaddr*>(&from), &length);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n <= 0) return n < 0;
    sendto(fd, buffer.data(), static_cast<size_t>(n), 0, reinterpret_cast<sockaddr*>(&from), length);
  }
}

int pingpong(const sockaddr_in& a, size_t size, long count) {
  int fd = connected(a);
  if (!tcp) {  // a lost datagram must not hang the measurement
    timeval t{1, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
  }
  std::vector<char> buffer(size, 'x');
  std::vector<double> times;
  times.reserve(static_cast<size_t>(count));
  long warm = count / 10;
  Clock::time_point begin = Clock::now();
  for (long i = 0; i < count + warm; ++i) {
    if (i == warm) begin = Clock::now();
    auto start = Clock::now();
    send_all(fd, buffer.data(), size);
    if (!receive_all(fd, buffer.data(), size)) fail("peer ended");
    if (i >= warm) times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  if (!tcp) send(fd, "", 0, 0);
  std::sort(times.begin(), times.end());
  printf("{\"median_us\": %.3f, \"p99_us\": %.3f, \"rate\": %.0f, \"shares_us\": [", times[times.size() / 2],
         times[times.size() * 99 / 100], static_cast<double>(count) / seconds);
  constexpr double kShares[] = {0.01, 0.05, 0.1,  0.2,  0.3,  0.4,   0.5,   0.6,   0.7,
                                0.8,  0.9,  0.95, 0.98, 0.99, 0.995, 0.999, 0.9999};
  for (const double share : kShares)
    printf("%s[%g, %.3f]", share > kShares[0] ? ", " : "", share,
           times[std::min(times.size() - 1, static_cast<size_t>(share * static_cast<double>(times.size())))]);
  printf("]}\n");
  return 0;
}

int sink(const sockaddr_in& a) {
  std::vector<char> buffer(1 << 18);
  int fd = tcp ? accepted(a) : bound(a);
  unsigned long long bytes = 0, messages = 0;
  Clock::time_point first, last;
  for (ssize_t n; (n = receive(fd, buffer.data(), buffer.size())) > 0;) {
    last = Clock::now();
    if (messages++ == 0) first = last;
    bytes += static_cast<unsigned long long>(n);
  }
  double seconds = std::chrono::duration<double>(last - first).count();
  printf(
      "{\"bytes\": %llu, \"messages\": %llu, \"seconds\": %.6f, \"bits_per_second\": %.0f, "
      "\"messages_per_second\": %.0f}\n",
      bytes, messages, seconds, seconds > 0 ? static_cast<double>(bytes) * 8 / seconds : 0,
      seconds > 0 ? static_cast<double>(messages) / seconds : 0);
  return 0;
}

int source(const sockaddr_in& a, size_t size, double seconds) {
  int fd = connected(a);
  std::vector<char> buffer(size, 'x');
  auto end = Clock::now() + std::chrono::duration<double>(seconds);
  unsigned long long sent = 0;
  while (Clock::now() < end) {
    for (int i = 0; i < 16; ++i) {
      if (tcp) {
        send_all(fd, buffer.data(), size);
      } else if (send(fd, buffer.data(), size, 0) < 0 && errno != ENOBUFS && errno != EAGAIN) {
        fail("send");
      }
      ++sent;
    }
  }
  if (tcp) {
    shutdown(fd, SHUT_WR);
    char byte;
    receive(fd, &byte, 1);
  } else {
    for (int i = 0; i < 100; ++i) {  // the end mark may be dropped like any datagram
      send(fd, "", 0, 0);
      usleep(10000);
    }
  }
  printf("{\"messages\": %llu}\n", sent);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    fprintf(stderr, "usage: see the head of netload.cc\n");
    return 2;
  }
  std::string verb = argv[1];
  tcp = std::string(argv[2]) == "tcp";
  spin = getenv("NETLOAD_SPIN") != nullptr;
  sockaddr_in a = address(argv[3], argv[4]);
  size_t size = argc > 5 ? static_cast<size_t>(atol(argv[5])) : 64;
  if (verb == "echo") return echo(a, size);
  if (verb == "pingpong") return pingpong(a, size, argc > 6 ? atol(argv[6]) : 20000);
  if (verb == "sink") return sink(a);
  if (verb == "source") return source(a, size, argc > 6 ? atof(argv[6]) : 1.0);
  return 2;
}
