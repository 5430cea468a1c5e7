// An epoll echo server with threads and its load: plain socket programs that know nothing of libaccel.
//
//   thread_load echo ADDRESS PORT THREADS shared|group     THREADS loops, each with an epoll set of its own.
//     group: a listener of one SO_REUSEPORT group each; shared: one listener in all sets (EPOLLEXCLUSIVE).
//   thread_load ask ADDRESS PORT CONNECTIONS SECONDS [REQUEST SIZE]   one thread, one request under way on
//   each
//     connection, 64 bytes or that text; an answer has as many bytes or SIZE. Prints {"rate": answers a
//     second}.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "socket_tool.h"

namespace {

constexpr size_t kMessage = 64;
constexpr int kEvents = 64;

int listener(const sockaddr_in& a, bool of_group) {
  const int fd = check(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), "socket");
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (of_group) set_option(fd, SOL_SOCKET, SO_REUSEPORT, 1);
  check(bind(fd, reinterpret_cast<const sockaddr*>(&a), sizeof a), "bind");
  check(listen(fd, 1024), "listen");
  return fd;
}

void add(int set, int fd, uint32_t events) {
  epoll_event e{};
  e.events = events;
  e.data.fd = fd;
  check(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e), "epoll_ctl");
}

void accept_all(int set, int from) {
  for (int fd; (fd = accept4(from, nullptr, nullptr, SOCK_NONBLOCK)) >= 0;) {
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    add(set, fd, EPOLLIN);
  }
}

void answer(int fd) {
  std::array<char, 4096> data;
  const ssize_t n = recv(fd, data.data(), data.size(), 0);
  if (n < 0 && errno == EAGAIN) return;
  if (n <= 0 || send(fd, data.data(), static_cast<size_t>(n), MSG_NOSIGNAL) != n) close(fd);
}

void serve(int from, bool of_group) {
  const int set = check(epoll_create1(0), "epoll_create1");
  add(set, from, of_group ? EPOLLIN : EPOLLIN | EPOLLEXCLUSIVE);
  for (std::array<epoll_event, kEvents> events;;) {
    const int n = check(epoll_wait(set, events.data(), kEvents, -1), "epoll_wait");
    for (int i = 0; i < n; ++i) {
      if (events[i].data.fd == from)
        accept_all(set, from);
      else
        answer(events[i].data.fd);
    }
  }
}

int echo(const sockaddr_in& a, int threads, bool of_group) {
  std::vector<int> listeners;
  for (int i = 0; i < (of_group ? threads : 1); ++i) listeners.push_back(listener(a, of_group));
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i)
    others.emplace_back(serve, listeners[of_group ? static_cast<size_t>(i) : 0], of_group);
  serve(listeners[0], of_group);
  return 0;
}

struct Exchange {
  std::string request = std::string(kMessage, 'x');
  size_t answer = kMessage;
};

int ask(const sockaddr_in& a, int connections, double seconds, const Exchange& exchange) {
  const int set = check(epoll_create1(0), "epoll_create1");
  const auto& [request, answer] = exchange;
  std::vector<char> message(answer);
  for (int i = 0; i < connections; ++i) {
    const int fd = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    check(connect(fd, reinterpret_cast<const sockaddr*>(&a), sizeof a), "connect");
    add(set, fd, EPOLLIN);
    check(send(fd, request.data(), request.size(), 0), "send");
  }
  long count = 0;
  const auto begin = Clock::now();
  auto now = begin;
  for (std::array<epoll_event, kEvents> events; now - begin < std::chrono::duration<double>(seconds);
       now = Clock::now()) {
    const int n = check(epoll_wait(set, events.data(), kEvents, 1000), "epoll_wait");
    for (int i = 0; i < n; ++i) {
      if (recv(events[i].data.fd, message.data(), answer, 0) != static_cast<ssize_t>(answer))
        check(-1, "recv");
      check(send(events[i].data.fd, request.data(), request.size(), 0), "send");
      ++count;
    }
  }
  printf("{\"rate\": %.0f}\n",
         static_cast<double>(count) / std::chrono::duration<double>(now - begin).count());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6 && argc != 8) {
    fprintf(stderr, "usage: see the head of thread_load.cc\n");
    return 2;
  }
  const sockaddr_in a = address(argv[2], argv[3]);
  if (std::string_view(argv[1]) == "echo")
    return echo(a, atoi(argv[4]), std::string_view(argv[5]) == "group");
  Exchange exchange;
  if (argc == 8) exchange = {std::string(argv[6]) + "\r\n", static_cast<size_t>(atoi(argv[7]))};
  return ask(a, atoi(argv[4]), atof(argv[5]), exchange);
}
