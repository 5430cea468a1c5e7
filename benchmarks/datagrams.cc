// UDP datagrams one way or both ways, one a call or by batches: a plain socket program that knows nothing of
// libaccel.
//
//   datagrams receive ADDRESS PORT BATCH [GROUP SOCKETS]
//     Counts, and prints {"messages", "per_second"}. GROUP: so many sockets of the port join it on ADDRESS's
//     device, and their sum is told.
//   datagrams send FROM TO PORT BATCH SIZE SECONDS RATE
//     RATE datagrams a second, 0: as fast as it can. Prints {"messages", "per_second"}, and tells of the end
//     until its input ends.
//   datagrams exchange ADDRESS PEER PORT BATCH SIZE SECONDS
//     Both at once on one socket, from a line of input on. Prints {"messages", "per_second", "sent"}.
//
// Receivers say "ready" first. BATCH 1: send() and recv(); more: sendmmsg() and recvmmsg(). An empty datagram
// is the end of what is sent, and comes again each 10 ms, since it may be lost as any other. Datagrams to a
// group are not looped back.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <string_view>
#include <thread>
#include <vector>

#include "socket_tool.h"

namespace {

using Seconds = std::chrono::duration<double>;
constexpr size_t kLongest = 2048;
constexpr int kMarkMs = 10;

bool is_group(const sockaddr_in& a) { return IN_MULTICAST(ntohl(a.sin_addr.s_addr)); }

int bound(const sockaddr_in& a) {
  const int fd = check(socket(AF_INET, SOCK_DGRAM, 0), "socket");
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  set_option(fd, SOL_SOCKET, SO_RCVBUF, 4 << 20);
  check(bind(fd, reinterpret_cast<const sockaddr*>(&a), sizeof a), "bind");
  return fd;
}

void say_ready() {
  printf("ready\n");
  fflush(stdout);
}

/// Datagrams that one call moves.
class Batch {
 public:
  Batch(unsigned count, size_t size)
      : size_(size), bytes_(count * size, 'x'), parts_(count), messages_(count) {
    for (unsigned i = 0; i < count; ++i) {
      parts_[i] = {&bytes_[i * size], size};
      messages_[i].msg_hdr.msg_iov = &parts_[i];
      messages_[i].msg_hdr.msg_iovlen = 1;
    }
  }
  size_t count() const { return messages_.size(); }
  /// Sockets that are not connected need it.
  void address_to(sockaddr_in& to) {
    to_ = &to;
    for (auto& each : messages_) {
      each.msg_hdr.msg_name = &to;
      each.msg_hdr.msg_namelen = sizeof to;
    }
  }
  /// Returns how many the call took.
  int send(int fd) {
    if (count() > 1) return sendmmsg(fd, messages_.data(), static_cast<unsigned>(count()), 0);
    return send_one(fd, size_) < 0 ? -1 : 1;
  }
  void send_mark(int fd) const { send_one(fd, 0); }
  int receive(int fd, int flags) {
    if (count() > 1)
      return recvmmsg(fd, messages_.data(), static_cast<unsigned>(count()), flags | MSG_WAITFORONE, nullptr);
    const ssize_t length = recv(fd, bytes_.data(), size_, flags);
    messages_[0].msg_len = static_cast<unsigned>(length);
    return length < 0 ? -1 : 1;
  }
  bool is_mark(int i) const { return messages_[static_cast<size_t>(i)].msg_len == 0; }

 private:
  ssize_t send_one(int fd, size_t size) const {
    if (to_ == nullptr) return ::send(fd, bytes_.data(), size, 0);
    return sendto(fd, bytes_.data(), size, 0, reinterpret_cast<const sockaddr*>(to_), sizeof *to_);
  }
  size_t size_;
  std::vector<char> bytes_;
  std::vector<iovec> parts_;
  std::vector<mmsghdr> messages_;
  const sockaddr_in* to_ = nullptr;
};

/// Counts what has come, and when.
class Tally {
 public:
  /// Returns true at the end of what is sent.
  bool add(const Batch& batch, int n) {
    last_ = Clock::now();
    if (messages_ == 0) first_ = last_;
    for (int i = 0; i < n; ++i) {
      if (batch.is_mark(i)) {
        last_ = before_;
        return true;
      }
      ++messages_;
    }
    before_ = last_;
    return false;
  }
  void print(const char* more = "") const {
    const double seconds = Seconds(last_ - first_).count();
    printf("{\"messages\": %llu, \"per_second\": %.0f%s}\n", messages_,
           seconds > 0 ? static_cast<double>(messages_) / seconds : 0, more);
    fflush(stdout);
  }

 private:
  unsigned long long messages_ = 0;
  Clock::time_point first_, before_, last_;
};

/// One socket, waited for in the call.
void receive_from(int fd, unsigned count, Tally& tally) {
  for (Batch batch(count, kLongest);;) {
    const int n = batch.receive(fd, 0);
    if (n < 0 && errno != EINTR) check(n, "receive");
    if (n > 0 && tally.add(batch, n)) return;
  }
}

/// Several sockets, each read as far as it has something, until each has had the end.
void receive_from(const std::vector<int>& fds, unsigned count, Tally& tally) {
  const int set = check(epoll_create1(0), "epoll_create1");
  for (const int fd : fds) {
    epoll_event e{};
    e.events = EPOLLIN;
    e.data.fd = fd;
    check(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e), "epoll_ctl");
  }
  Batch batch(count, kLongest);
  size_t open = fds.size();
  for (std::array<epoll_event, 16> events; open > 0;) {
    const int ready = check(epoll_wait(set, events.data(), events.size(), -1), "epoll_wait");
    for (int i = 0; i < ready; ++i) {
      const int fd = events[static_cast<size_t>(i)].data.fd;
      for (int n; (n = batch.receive(fd, MSG_DONTWAIT)) > 0;) {
        if (!tally.add(batch, n)) continue;
        check(epoll_ctl(set, EPOLL_CTL_DEL, fd, nullptr), "epoll_ctl");
        --open;
        break;
      }
    }
  }
}

int receive(const char* own, const char* port, unsigned count, const char* group, int sockets) {
  std::vector<int> fds;
  for (int i = 0; i < sockets; ++i) fds.push_back(bound(address(group != nullptr ? "0.0.0.0" : own, port)));
  if (group != nullptr) {
    const ip_mreq membership{address(group, port).sin_addr, address(own, port).sin_addr};
    for (const int fd : fds) set_option(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, membership);
  }
  say_ready();
  Tally tally;
  if (sockets == 1)
    receive_from(fds[0], count, tally);
  else
    receive_from(fds, count, tally);
  tally.print();
  return 0;
}

struct Load {
  size_t size;
  double seconds;
  double rate;  ///< a second; 0: as fast as it can
};

/// Returns how many the calls took.
unsigned long long send_for(int fd, Batch& batch, const Load& load) {
  const auto begin = Clock::now();
  unsigned long long sent = 0;
  for (double due = 0; due < load.seconds;) {
    const int n = batch.send(fd);
    if (n < 0 && errno != ENOBUFS && errno != EAGAIN && errno != ECONNREFUSED) check(n, "send");
    if (n > 0) sent += static_cast<unsigned>(n);
    if (load.rate == 0) {
      due = Seconds(Clock::now() - begin).count();
    } else {
      due += static_cast<double>(batch.count()) / load.rate;
      std::this_thread::sleep_until(begin + std::chrono::duration_cast<Clock::duration>(Seconds(due)));
    }
  }
  return sent;
}

void send_marks(int fd, const Batch& batch) {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  do batch.send_mark(fd);
  while (poll(&input, 1, kMarkMs) == 0);
}

int send(const char* from, sockaddr_in to, unsigned count, const Load& load) {
  const int fd = bound(address(from, "0"));
  Batch batch(count, load.size);
  if (is_group(to)) {
    set_option(fd, IPPROTO_IP, IP_MULTICAST_IF, address(from, "0").sin_addr);
    set_option(fd, IPPROTO_IP, IP_MULTICAST_LOOP, 0);
    batch.address_to(to);
  } else {
    check(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to), "connect");
  }
  const auto begin = Clock::now();
  const unsigned long long sent = send_for(fd, batch, load);
  printf("{\"messages\": %llu, \"per_second\": %.0f}\n", sent,
         static_cast<double>(sent) / Seconds(Clock::now() - begin).count());
  fflush(stdout);
  send_marks(fd, batch);
  return 0;
}

int exchange(const sockaddr_in& own, const sockaddr_in& peer, unsigned count, const Load& load) {
  const int fd = bound(own);
  check(connect(fd, reinterpret_cast<const sockaddr*>(&peer), sizeof peer), "connect");
  say_ready();
  if (getchar() != '\n') return 1;
  std::promise<unsigned long long> sent;
  std::thread sender([&] {
    Batch batch(count, load.size);
    sent.set_value(send_for(fd, batch, load));
    send_marks(fd, batch);
  });
  Tally tally;
  receive_from(fd, count, tally);
  std::array<char, 40> more{};
  snprintf(more.data(), more.size(), ", \"sent\": %llu", sent.get_future().get());
  tally.print(more.data());
  sender.join();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view verb = argc > 1 ? argv[1] : "";
  const auto number = [&](int i) { return static_cast<unsigned>(atoi(argv[i])); };
  if (verb == "receive" && (argc == 5 || argc == 7))
    return receive(argv[2], argv[3], number(4), argc == 7 ? argv[5] : nullptr, argc == 7 ? atoi(argv[6]) : 1);
  if (verb == "send" && argc == 9)
    return send(argv[2], address(argv[3], argv[4]), number(5), {number(6), atof(argv[7]), atof(argv[8])});
  if (verb == "exchange" && argc == 8)
    return exchange(address(argv[2], argv[4]), address(argv[3], argv[4]), number(5),
                    {number(6), atof(argv[7]), 0});
  fprintf(stderr, "usage: see the head of datagrams.cc\n");
  return 2;
}
