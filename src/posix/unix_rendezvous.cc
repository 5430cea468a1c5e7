#include "posix/unix_rendezvous.h"

#include <dirent.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "base/poll.h"
#include "base/private_fds.h"
#include "base/proc.h"
#include "base/real.h"
#include "posix/rights.h"

#ifndef SO_COOKIE
#define SO_COOKIE 57
#endif

namespace accel::posix {
namespace {

constexpr int kBacklog = 4096;
constexpr socklen_t kPath = offsetof(sockaddr_un, sun_path) + 1;

socklen_t to_address(const std::string& name, sockaddr_un& out) {
  out = {};
  out.sun_family = AF_UNIX;
  const size_t n = std::min(name.size(), sizeof(out.sun_path) - 1);
  std::memcpy(out.sun_path + 1, name.data(), n);
  return static_cast<socklen_t>(kPath + n);
}

int make_socket() { return real.socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

ucred credentials(int fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return real.getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer : ucred{0, ~0u, ~0u};
}

constexpr size_t kMostDescriptors = 4;

/// One byte with descriptors (unix(7)).
struct DescriptorMessage : msghdr {
  DescriptorMessage() : msghdr{} {
    msg_iov = &data;
    msg_iovlen = 1;
    msg_control = control;
    msg_controllen = sizeof(control);
  }
  DescriptorMessage(const DescriptorMessage&) = delete;
  DescriptorMessage& operator=(const DescriptorMessage&) = delete;

  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))] = {};
};

}  // namespace

uint64_t cookie_of(int fd) {
  uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  return real.getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0 ? cookie : 0;
}

std::string cookie_name(int fd) {
  const uint64_t cookie = cookie_of(fd);
  if (cookie == 0) return {};
  char text[32];
  snprintf(text, sizeof(text), "%016" PRIx64, cookie);
  return text;
}

int named_socket(const std::string& name) {
  const int fd = keep_private(make_socket());
  sockaddr_un address;
  const socklen_t length = to_address(name, address);
  if (fd < 0 || real.bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0) return fd;
  close_private(fd);
  return -1;
}

int listen_by_name(const std::string& name) {
  const int fd = named_socket(name);
  if (fd < 0 || real.listen(fd, kBacklog) == 0) return fd;
  close_private(fd);
  return -1;
}

std::string bound_name(int fd) {
  sockaddr_un address{};
  socklen_t length = sizeof(address);
  if (fd < 0 || real.getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0 || length <= kPath)
    return {};
  return {address.sun_path + 1, length - kPath};
}

std::set<std::string> names_that_begin(const std::string& beginning) {
  std::set<std::string> found;  // an accepted socket has its listener's
  const std::string all = read_proc("/proc/thread-self/net/unix");
  for (size_t at = 0; (at = all.find(" @" + beginning, at)) != std::string::npos;) {
    const size_t end = all.find('\n', at);
    found.insert(all.substr(at + 2, end - at - 2));
    at = end;
  }
  return found;
}

int connect_by_name(const std::string& name) {
  const int fd = make_socket();
  sockaddr_un address;
  const socklen_t length = to_address(name, address);
  if (fd < 0 || real.connect(fd, reinterpret_cast<sockaddr*>(&address), length) == 0) return fd;
  real.close(fd);
  return -1;
}

bool peer_is_trusted(int fd) {
  const uid_t user = credentials(fd).uid;
  return user == geteuid() || user == 0;
}

bool peer_may_ask(int fd, int of) {
  return peer_is_trusted(fd) || process_has_socket(peer_process(fd), inode_of(of));
}

bool is_same_socket(int came, int of) {
  const uint64_t cookie = cookie_of(of);
  return came >= 0 && cookie != 0 && cookie_of(came) == cookie;
}

bool peer_is_root(int fd) { return credentials(fd).uid == 0; }

ino_t inode_of(int fd) {
  struct stat socket {};
  return fstat(fd, &socket) == 0 ? socket.st_ino : 0;
}

ino_t inode_listening_at(const std::string& name) {
  constexpr unsigned kAcceptCon = 1 << 16;  // __SO_ACCEPTCON; those that it has accepted have its name, too
  const std::string table = read_proc("/proc/thread-self/net/unix"), wanted = " @" + name + "\n";
  for (size_t at = 0; (at = table.find(wanted, at)) != std::string::npos; ++at) {
    const size_t line = table.rfind('\n', at) + 1;
    unsigned flags = 0;
    unsigned long inode = 0;
    if (sscanf(&table[line], "%*s %*s %*s %x %*s %*s %lu", &flags, &inode) == 2 && (flags & kAcceptCon) != 0)
      return inode;
  }
  return 0;
}

bool process_has_socket(pid_t process, ino_t inode) {
  if (process <= 0 || inode == 0) return false;
  const std::string wanted = "socket:[" + std::to_string(inode) + "]";
  const std::string folder = "/proc/" + std::to_string(process) + "/fd";
  DIR* const all = opendir(folder.c_str());
  if (all == nullptr) return false;
  bool found = false;
  char target[64];
  while (const dirent* entry = found ? nullptr : readdir(all)) {
    const ssize_t n = readlinkat(dirfd(all), entry->d_name, target, sizeof target);
    found = n > 0 && wanted == std::string_view(target, static_cast<size_t>(n));
  }
  closedir(all);
  return found;
}

pid_t peer_process(int fd) { return credentials(fd).pid; }

bool send_descriptors(int to, std::span<const int> fds) {
  DescriptorMessage message;
  if (fds.size() > kMostDescriptors) return false;
  message.msg_controllen = CMSG_SPACE(fds.size_bytes());
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(fds.size_bytes());
  std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
  return real.sendmsg(to, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

std::vector<int> receive_descriptors(int from) {
  std::vector<int> got;
  DescriptorMessage message;
  if (real.recvmsg(from, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) <= 0) return got;
  each_descriptor_in(message, [&](int fd) {
    got.push_back(move_high(fd));
    return true;
  });
  return got;
}

bool message_arrived(int fd) {
  pollfd readable{fd, POLLIN, 0};
  const timespec none{};
  return poll_beyond_limit({&readable, 1}, &none, nullptr) > 0;
}

}  // namespace accel::posix
