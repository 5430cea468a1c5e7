#include "posix/far.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <map>
#include <stdexcept>
#include <thread>

namespace posix_test {
namespace {

std::map<std::string, FarPart>& parts() {
  static auto& all = *new std::map<std::string, FarPart>;  // detached threads outlive main()
  return all;
}

const char* environment(const char* name) {
  const char* value = getenv(name);
  if (!value) {
    fprintf(stderr, "%s is not set: run this program by tests/posix/run.py\n", name);
    exit(2);
  }
  return value;
}

[[noreturn]] void fail(const char* what) {
  throw std::runtime_error(std::string(what) + ": " + strerror(errno));
}

int check(int result, const char* what) {
  if (result < 0) fail(what);
  return result;
}

sockaddr_un control_address() {
  sockaddr_un a{};
  a.sun_family = AF_UNIX;
  snprintf(a.sun_path, sizeof(a.sun_path), "%s", environment("POSIX_TEST_CONTROL"));
  return a;
}

// One FAR part: the first line names it, arguments separated by tabs; ends with "done" or "failed: ...".
void serve(Fd fd) {
  Control near(std::move(fd));
  try {
    std::string line = near.word();
    std::vector<std::string> fields;
    for (size_t at = 0; at <= line.size();) {
      size_t tab = std::min(line.find('\t', at), line.size());
      fields.push_back(line.substr(at, tab - at));
      at = tab + 1;
    }
    auto part = parts().find(fields[0]);
    if (part == parts().end()) throw std::runtime_error("no such part: " + fields[0]);
    fields.erase(fields.begin());
    part->second(near, fields);
    near.say("done");
  } catch (const std::exception& e) {
    try {
      near.say(std::string("failed: ") + e.what());
    } catch (const std::exception&) {
      // near is gone: nobody is left to tell
    }
  }
}

int run_far() {
  sockaddr_un a = control_address();
  Fd listener(check(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), "control socket"));
  check(bind(listener, reinterpret_cast<sockaddr*>(&a), sizeof(a)), "control bind");
  check(listen(listener, 64), "control listen");
  printf("ready\n");
  fflush(stdout);
  pollfd wait[2] = {{listener, POLLIN, 0},
                    {0, POLLIN, 0}};  // standard input ends when run.py wants us to end
  while (poll(wait, 2, -1) > 0 || errno == EINTR) {
    if (wait[1].revents) return 0;
    if (wait[0].revents & POLLIN) {
      int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd >= 0) std::thread([fd] { serve(Fd(fd)); }).detach();
    }
  }
  return 1;
}

}  // namespace

Address address(const std::string& text, uint16_t port) {
  Address a;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&a.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&a.storage);
  if (inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    a.size = sizeof(sockaddr_in);
  } else if (inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    a.size = sizeof(sockaddr_in6);
  } else {
    throw std::runtime_error("not an address: " + text);
  }
  return a;
}

Address here(uint16_t port, int family) {
  return address(environment(family == AF_INET6 ? "POSIX_TEST_HERE6" : "POSIX_TEST_HERE"), port);
}
Address there(uint16_t port, int family) {
  return address(environment(family == AF_INET6 ? "POSIX_TEST_THERE6" : "POSIX_TEST_THERE"), port);
}
Address any(uint16_t port, int family) { return address(family == AF_INET6 ? "::" : "0.0.0.0", port); }

Fd tcp_socket(int family, int flags) { return Fd(check(socket(family, SOCK_STREAM | flags, 0), "socket")); }
Fd udp_socket(int family, int flags) { return Fd(check(socket(family, SOCK_DGRAM | flags, 0), "socket")); }

Fd listen_at(const Address& a, int backlog) {
  Fd fd = tcp_socket(a.family());
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  check(bind(fd, a.raw(), a.size), "bind");
  check(listen(fd, backlog), "listen");
  return fd;
}

Fd udp_at(const Address& a) {
  Fd fd = udp_socket(a.family());
  check(bind(fd, a.raw(), a.size), "bind");
  return fd;
}

Fd connect_to(const Address& a) {
  Fd fd = tcp_socket(a.family());
  check(connect(fd, a.raw(), a.size), "connect");
  return fd;
}

Fd accept_one(int listener) { return Fd(check(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC), "accept")); }

uint16_t port_of(int fd) {
  Address a;
  check(getsockname(fd, a.raw(), &a.size), "getsockname");
  return a.port();
}

void write_all(int fd, const void* data, size_t size) {
  auto* p = static_cast<const char*>(data);
  while (size > 0) {
    ssize_t n = send(fd, p, size, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("send");
    p += n;
    size -= static_cast<size_t>(n);
  }
}
void write_all(int fd, const std::string& text) { write_all(fd, text.data(), text.size()); }

std::string read_exactly(int fd, size_t size) {
  std::string all(size, '\0');
  size_t have = 0;
  while (have < size) {
    ssize_t n = recv(fd, &all[have], size - have, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("recv");
    if (n == 0) break;
    have += static_cast<size_t>(n);
  }
  all.resize(have);
  return all;
}

std::string read_to_end(int fd) {
  std::string all;
  std::string buffer(1 << 16, '\0');
  for (;;) {
    ssize_t n = recv(fd, buffer.data(), buffer.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("recv");
    if (n == 0) return all;
    all.append(buffer.data(), static_cast<size_t>(n));
  }
}

short wait_for(int fd, short events, int timeout_ms) {
  pollfd p{fd, events, 0};
  int n = poll(&p, 1, timeout_ms);
  if (n < 0) fail("poll");
  return n == 0 ? static_cast<short>(0) : p.revents;
}

short wait_for_end(int fd, short events) {
  const time_t guard = time(nullptr) + 20;
  for (;;) {
    const short found = wait_for(fd, events);
    if (found != POLLERR || time(nullptr) > guard) return found;
    sched_yield();  // the kernel may have been taken off its CPU between the error and the end
  }
}

void set_nonblocking(int fd, bool on) {
  int flags = check(fcntl(fd, F_GETFL), "F_GETFL");
  check(fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK), "F_SETFL");
}

/// True when all that was sent is acknowledged, and no window is open for the rest. A sender keeps back what
/// is less than a segment and fits the window (RFC 9293, 3.8.6.2.1): it leaves later.
static bool stopped_by_peer(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  check(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size), "TCP_INFO");
  return info.tcpi_unacked == 0 && (info.tcpi_notsent_bytes == 0 || info.tcpi_snd_wnd == 0);
}

long fill(int fd) {
  constexpr int kIdleMs = 300;
  set_nonblocking(fd);
  const std::string chunk = pattern(1 << 16);
  long all = 0;
  do {
    for (ssize_t n; (n = send(fd, chunk.data(), chunk.size(), MSG_NOSIGNAL)) > 0;) all += n;
    // There may be room for less than POLLOUT asks for, and an acknowledgement that is late makes room.
  } while (wait_for(fd, POLLOUT, kIdleMs) != 0 || !stopped_by_peer(fd) ||
           (send(fd, "x", 1, MSG_NOSIGNAL) == 1 && ++all != 0));
  set_nonblocking(fd, false);
  return all;
}

void set_option(int fd, int level, int name, int value) {
  check(setsockopt(fd, level, name, &value, sizeof(value)), "setsockopt");
}

int get_option(int fd, int level, int name) {
  int value = -1;
  socklen_t size = sizeof(value);
  check(getsockopt(fd, level, name, &value, &size), "getsockopt");
  return value;
}

void until_asleep(const std::atomic<pid_t>& thread) {
  for (char state = 'R'; state != 'S'; usleep(1000)) {
    if (thread == 0) continue;
    std::ifstream stat("/proc/self/task/" + std::to_string(thread) + "/stat");
    std::string id, name;
    if (!(stat >> id >> name >> state)) return;  // it has ended
  }
}

std::string pattern(size_t size, uint32_t seed) {
  std::string text(size, '\0');
  uint64_t state = seed * 0x9e3779b97f4a7c15ULL + 1;
  for (auto& c : text) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    c = static_cast<char>(state);
  }
  return text;
}

void Control::say(const std::string& line) {
  std::string text = line + "\n";
  for (size_t at = 0; at < text.size();) {
    ssize_t n = send(fd_, text.data() + at, text.size() - at, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("control send");
    at += static_cast<size_t>(n);
  }
}

std::string Control::word() {
  for (;;) {
    if (size_t end = rest_.find('\n'); end != std::string::npos) {
      std::string line = rest_.substr(0, end);
      rest_.erase(0, end + 1);
      return line;
    }
    if (wait_for(fd_, POLLIN, 60000) == 0) throw std::runtime_error("control: nothing heard for 60 s");
    char buffer[512];
    ssize_t n = recv(fd_, buffer, sizeof(buffer), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("control recv");
    if (n == 0) throw std::runtime_error("control: the other side is gone");
    rest_.append(buffer, static_cast<size_t>(n));
  }
}

namespace {
Fd dial() {
  sockaddr_un a = control_address();
  Fd fd(check(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), "control socket"));
  check(connect(fd, reinterpret_cast<sockaddr*>(&a), sizeof(a)), "control connect");
  return fd;
}
}  // namespace

int status_of(pid_t child) {
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

/// One byte with one descriptor (unix(7)).
using DescriptorMessage = Message<1, CMSG_SPACE(sizeof(int))>;

void send_descriptor(int channel, int fd) {
  DescriptorMessage message;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(header), &fd, sizeof fd);
  EXPECT_EQ(sendmsg(channel, &message, MSG_NOSIGNAL), 1) << strerror(errno);
}

Fd receive_descriptor(int channel) {
  DescriptorMessage message;
  EXPECT_EQ(recvmsg(channel, &message, MSG_CMSG_CLOEXEC), 1);
  int fd = -1;
  if (CMSG_FIRSTHDR(&message) != nullptr) memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
  EXPECT_GE(fd, 0);
  return Fd(fd);
}

Far::Far(const std::string& part, const std::vector<std::string>& arguments) : Control(dial()) {
  std::string line = part;
  for (auto& a : arguments) line += "\t" + a;
  say(line);
}

Far::~Far() = default;

void Far::finish() {
  if (std::exchange(finished_, true)) return;
  std::string last = word();
  EXPECT_EQ(last, "done");
}

bool add_far_part(const char* name, FarPart part) {
  parts()[name] = std::move(part);
  return true;
}

}  // namespace posix_test

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "--far") {
    signal(SIGPIPE, SIG_IGN);
    int status = posix_test::run_far();
    exit(status);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
