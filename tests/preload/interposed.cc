// A program between libaccel and an interposer (interposer.cc). Says for each function how often it has
// called it and how often the interposer was called; then executes /bin/true.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <map>
#include <string>

namespace {

std::map<std::string, int> made;

#define MADE(name, ...)                  \
  [&] {                                  \
    ++made[#name];                       \
    const auto done = name(__VA_ARGS__); \
    if (done < 0) {                      \
      perror(#name);                     \
      exit(1);                           \
    }                                    \
    return done;                         \
  }()

}  // namespace

int main() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* name = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  const int on = 1;
  char data[16];
  const int listener = MADE(socket, AF_INET, SOCK_STREAM, 0);
  MADE(setsockopt, listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  MADE(bind, listener, name, sizeof address);
  MADE(listen, listener, 5);
  MADE(getsockname, listener, name, &length);
  const int near = MADE(socket, AF_INET, SOCK_STREAM, 0);
  MADE(connect, near, name, sizeof address);
  const int far = MADE(accept4, listener, nullptr, nullptr, 0);
  MADE(write, near, "0123456789", 10);
  const int set = epoll_create1(0);
  epoll_event event{EPOLLIN, {}};
  MADE(epoll_ctl, set, EPOLL_CTL_ADD, far, &event);
  MADE(epoll_wait, set, &event, 1, 10000);
  MADE(read, far, data, 4);
  MADE(recvfrom, far, data, 6, 0, nullptr, nullptr);
  MADE(sendto, near, "x", 1, 0, nullptr, 0);
  const int other = MADE(dup, near);
  MADE(dup3, other, 90, 0);
  // By their numbers they are none of an interposer's business.
  syscall(SYS_read, far, data, 1);
  const long local = syscall(SYS_socket, AF_UNIX, SOCK_STREAM, 0);
  syscall(SYS_close, local);
  const int unix_socket = MADE(socket, AF_UNIX, SOCK_STREAM, 0);
  for (int fd : {90, other, near, far, listener, set, unix_socket}) MADE(close, fd);
  ++made["execve"];
  auto calls = reinterpret_cast<unsigned (*)(const char*)>(dlsym(RTLD_DEFAULT, "interposer_calls"));
  for (const auto& [function, n] : made)
    if (calls != nullptr) printf("%s %d %u\n", function.c_str(), n, calls(function.c_str()));
  fflush(stdout);
  char* arguments[] = {const_cast<char*>("true"), nullptr};
  char* environment[] = {nullptr};
  execve("/bin/true", arguments, environment);
  return 1;
}
