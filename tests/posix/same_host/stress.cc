// Connections of one host that move into shared memory and back while bytes are under way: an echo server and
// its client, each waiting in every way there is. The server forks and the client sets an option that only
// the kernel serves, so that connections go back at any point. Each byte is compared.
//
//   stress --serve                           prints its ports, forks until standard input ends
//   stress SECONDS SEED THREADS PORT...      connections, one after the other in each thread
//
// A wait that is not over after kPatience is a hang, and ends the program with a message. With STRESS_KILLED
// the server may end at any time: what it has sent before is compared, and every call returns.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kPatience = 30'000;  ///< milliseconds
constexpr size_t kMost = 300'000;  ///< bytes of a connection in each direction
enum Style { kBlocking, kEdges, kLevels, kPoll, kStyles };
constexpr const char* kNames[kStyles] = {"blocking calls", "epoll by edges", "epoll by levels", "poll"};

[[noreturn]] void end(const char* what) {
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  _exit(1);
}

uint8_t byte_at(uint64_t key, size_t position) {
  return static_cast<uint8_t>((key + position * 2654435761u) >> 11);
}

// ---- the server ----

/// A connection without threads of its own: what it has read and not written yet.
struct Echo {
  int fd;
  std::string unsent{};
  bool ended = false;

  /// False: it is over.
  bool run() {
    char data[20'000];
    for (bool moved = true; moved;) {
      moved = false;
      while (!ended && unsent.size() < 100'000) {
        const ssize_t n = recv(fd, data, sizeof data, 0);
        if (n < 0 && errno != EAGAIN) return false;
        if (n < 0) break;
        moved = true;
        ended = n == 0;
        unsent.append(data, static_cast<size_t>(n));
      }
      while (!unsent.empty()) {
        const ssize_t n = send(fd, unsent.data(), unsent.size(), MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN) return false;
        if (n < 0) break;
        moved = true;
        unsent.erase(0, static_cast<size_t>(n));
      }
    }
    return !ended || !unsent.empty();
  }
};

void serve_blocking(int fd) {
  char data[20'000];
  for (ssize_t n; (n = recv(fd, data, sizeof data, 0)) > 0;)
    for (ssize_t done = 0; done < n;) {
      const ssize_t some = send(fd, data + done, static_cast<size_t>(n - done), MSG_NOSIGNAL);
      if (some < 0) {
        close(fd);
        return;
      }
      done += some;
    }
  close(fd);
}

void serve_by_epoll(int listener, uint32_t edges) {
  const int set = epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{EPOLLIN, {.fd = listener}};
  epoll_ctl(set, EPOLL_CTL_ADD, listener, &event);
  std::map<int, Echo> all;
  for (;;) {
    epoll_event events[16];
    const int n = epoll_wait(set, events, 16, -1);
    for (int i = 0; i < n; ++i) {
      const int fd = events[i].data.fd;
      if (fd == listener) {
        const int fresh = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fresh < 0) continue;
        event = {EPOLLIN | EPOLLRDHUP | edges | (edges != 0 ? uint32_t{EPOLLOUT} : 0), {.fd = fresh}};
        epoll_ctl(set, EPOLL_CTL_ADD, fresh, &event);
        all.emplace(fresh, Echo{fresh});
        continue;
      }
      Echo& echo = all.at(fd);
      if (!echo.run()) {
        epoll_ctl(set, EPOLL_CTL_DEL, fd, nullptr);  // a child may have it open still
        close(fd);
        all.erase(fd);
      } else if (edges == 0) {
        const bool full = echo.unsent.size() >= 100'000 || echo.ended;
        event = {(full ? 0 : uint32_t{EPOLLIN}) | (echo.unsent.empty() ? 0 : uint32_t{EPOLLOUT}), {.fd = fd}};
        epoll_ctl(set, EPOLL_CTL_MOD, fd, &event);
      }
    }
  }
}

void serve_by_poll(int fd) {
  Echo echo{fd};
  while (echo.run()) {
    pollfd p{fd, 0, 0};
    if (echo.unsent.size() < 100'000 && !echo.ended) p.events |= POLLIN;
    if (!echo.unsent.empty()) p.events |= POLLOUT;
    poll(&p, 1, -1);
  }
  close(fd);
}

int serve() {
  for (int style = 0; style < kStyles; ++style) {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in name{AF_INET, 0, {htonl(INADDR_LOOPBACK)}, {}};
    socklen_t size = sizeof name;
    if (bind(listener, reinterpret_cast<sockaddr*>(&name), size) != 0 || listen(listener, 200) != 0)
      end("listen");
    getsockname(listener, reinterpret_cast<sockaddr*>(&name), &size);
    printf("%d ", ntohs(name.sin_port));
    if (style == kEdges || style == kLevels) {
      fcntl(listener, F_SETFL, O_NONBLOCK);
      std::thread(serve_by_epoll, listener, style == kEdges ? uint32_t{EPOLLET} : 0).detach();
    } else {
      std::thread([listener, style] {
        for (int fd; (fd = accept4(listener, nullptr, nullptr,
                                   SOCK_CLOEXEC | (style == kPoll ? SOCK_NONBLOCK : 0))) >= 0;)
          std::thread(style == kPoll ? serve_by_poll : serve_blocking, fd).detach();
      }).detach();
    }
  }
  puts("");
  fflush(stdout);
  std::mt19937 random(1);
  const char* const pause = getenv("STRESS_FORK_PAUSE");
  const unsigned longest = pause != nullptr ? static_cast<unsigned>(atoi(pause)) : 100;
  for (;;) {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (poll(&input, 1, static_cast<int>(1 + random() % longest)) != 0) return 0;
    const pid_t child = fork();
    if (child == 0) _exit(0);
    if (child > 0) waitpid(child, nullptr, 0);
  }
}

// ---- the client ----

std::atomic<uint64_t> connections{0}, bytes{0}, longest{0};
const bool may_be_killed = getenv("STRESS_KILLED") != nullptr;
std::atomic<bool> server_gone{false};

/// errno is that of a connection whose other end was killed.
bool killed() {
  if (!may_be_killed || (errno != ECONNRESET && errno != EPIPE && errno != ENOTCONN)) return false;
  return server_gone = true;
}

struct Exchange {
  int fd;
  Style style;
  std::mt19937 random;
  uint64_t key;
  size_t size;
  int server;
  size_t sent = 0, got = 0;
  bool ended = false;

  [[noreturn]] void hang(const char* where) {
    fprintf(stderr, "hang in %s: %s, server by %s: %zu of %zu bytes sent, %zu back, fd %d of process %d\n",
            where, kNames[style], kNames[server], sent, size, got, fd, getpid());
    if (getenv("STRESS_STOPS")) pause();
    _exit(1);
  }
  [[noreturn]] void wrong(const char* what) {
    fprintf(stderr, "%s (%s): %s, server by %s: %zu of %zu bytes sent, %zu back\n", what, strerror(errno),
            kNames[style], kNames[server], sent, size, got);
    if (getenv("STRESS_STOPS")) pause();
    _exit(1);
  }

  size_t piece() {
    constexpr size_t kSizes[] = {1, 100, 1500, 9000, 60'000, 200'000};
    return 1 + random() % kSizes[random() % 6];
  }
  /// What only the kernel serves.
  void go_back() {
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on);
  }
  /// False: EAGAIN.
  bool write_some() {
    std::vector<uint8_t> data(std::min(piece(), size - sent));
    for (size_t i = 0; i < data.size(); ++i) data[i] = byte_at(key, sent + i);
    const ssize_t n = send(fd, data.data(), data.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EAGAIN) return false;
    if (n < 0 && killed()) {
      sent = size;
      return true;
    }
    if (n <= 0) wrong("send");
    sent += static_cast<size_t>(n);
    if (sent == size && shutdown(fd, SHUT_WR) != 0 && !killed()) wrong("shutdown");
    return true;
  }
  bool read_some() {
    std::vector<uint8_t> data(piece());
    const ssize_t n = recv(fd, data.data(), data.size(), 0);
    if (n < 0 && errno == EAGAIN) return false;
    if (n < 0 && killed()) return ended = true;
    if (n < 0) wrong("recv");
    for (ssize_t i = 0; i < n; ++i)
      if (data[static_cast<size_t>(i)] != byte_at(key, got + static_cast<size_t>(i))) wrong("another byte");
    got += static_cast<size_t>(n);
    if (n == 0 && got != size) {
      if (!may_be_killed) wrong("an early end");
      server_gone = true;
      sent = size;
    }
    ended = n == 0;
    return true;
  }

  void run_blocking() {
    const timeval patience{kPatience / 1000, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    Exchange writer = *this;
    writer.random.seed(random());
    const size_t back_at = random() % 4 == 0 ? random() % (size + 1) : SIZE_MAX;
    std::thread thread([&] {
      while (writer.sent < size) {
        if (writer.sent >= back_at) writer.go_back();
        if (!writer.write_some()) writer.hang("send");
      }
    });
    while (!ended)
      if (!read_some()) {
        sent = writer.sent;
        hang("recv");
      }
    thread.join();
    sent = writer.sent;
  }

  /// Reads and writes until neither goes on, or for a while.
  void run_some() {
    bool readable = true, writable = true;
    while ((readable && !ended) || (writable && sent < size)) {
      if (readable && !ended) readable = read_some();
      if (writable && sent < size) writable = write_some();
    }
  }

  void run_waiting() {
    fcntl(fd, F_SETFL, O_NONBLOCK);
    const int set = style == kPoll ? -1 : epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{EPOLLIN | EPOLLOUT | EPOLLRDHUP | (style == kEdges ? uint32_t{EPOLLET} : 0), {}};
    if (set >= 0) epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    const size_t back_at = random() % 4 == 0 ? random() % (size + 1) : SIZE_MAX;
    while (!ended) {
      if (style == kEdges) {
        run_some();
      } else {
        read_some();
        if (sent < size && random() % 2 == 0) write_some();
      }
      if (sent >= back_at) go_back();
      if (ended) break;
      int ready = 0;
      if (style == kEdges) {
        ready = epoll_wait(set, &event, 1, kPatience);
      } else if (style == kLevels) {
        event.events = EPOLLIN | (sent < size ? uint32_t{EPOLLOUT} : 0);
        epoll_ctl(set, EPOLL_CTL_MOD, fd, &event);
        ready = epoll_wait(set, &event, 1, kPatience);
      } else {
        pollfd p{fd, static_cast<short>(POLLIN | (sent < size ? POLLOUT : 0)), 0};
        ready = poll(&p, 1, kPatience);
      }
      if (ready == 0) hang("the wait");
    }
    if (set >= 0) close(set);
  }
};

void connections_of(Clock::time_point until, uint32_t seed, const std::vector<int>& ports) {
  std::mt19937 random(seed);
  while (Clock::now() < until && !server_gone) {
    const int server = static_cast<int>(random() % kStyles);
    const auto style = static_cast<Style>(random() % kStyles);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in name{AF_INET,
                     htons(static_cast<uint16_t>(ports[static_cast<size_t>(server)])),
                     {htonl(INADDR_LOOPBACK)},
                     {}};
    if (connect(fd, reinterpret_cast<sockaddr*>(&name), sizeof name) != 0) {
      if (may_be_killed && errno == ECONNREFUSED) return;
      if (!killed()) end("connect");
      return;
    }
    const auto began = Clock::now();
    Exchange e{fd,
               style,
               std::mt19937(random()),
               random(),
               1 + random() % (random() % 8 == 0 ? kMost : kMost / 6),
               server};
    if (style == kBlocking)
      e.run_blocking();
    else
      e.run_waiting();
    close(fd);
    const auto took = static_cast<uint64_t>((Clock::now() - began) / std::chrono::milliseconds(1));
    for (uint64_t before = longest; before < took && !longest.compare_exchange_weak(before, took);) {
    }
    if (const char* const told = getenv("STRESS_TELLS"); told != nullptr && took > strtoul(told, nullptr, 10))
      printf("%lu ms: %s, server by %s, %zu bytes\n", took, kNames[style], kNames[server], e.size);
    ++connections;
    bytes += 2 * e.got;
  }
}

}  // namespace

int main(int count, char** words) {
  if (count == 2 && strcmp(words[1], "--serve") == 0) return serve();
  if (count != 4 + kStyles) return 2;
  const auto until = Clock::now() + std::chrono::seconds(atoi(words[1]));
  const auto seed = static_cast<uint32_t>(atoi(words[2]));
  std::vector<int> ports;
  for (int i = 0; i < kStyles; ++i) ports.push_back(atoi(words[4 + i]));
  std::vector<std::thread> threads;
  for (int i = 0; i < atoi(words[3]); ++i)
    threads.emplace_back(connections_of, until, seed * 1000 + static_cast<uint32_t>(i), ports);
  for (std::thread& t : threads) t.join();
  printf("%lu connections, %lu bytes, the longest took %lu ms\n", connections.load(), bytes.load(),
         longest.load());
  return 0;
}
