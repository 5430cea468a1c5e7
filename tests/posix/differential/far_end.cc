#include "posix/differential/far_end.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <stdexcept>

#include "posix/differential/log.h"

namespace differential {

namespace {

/// Libc's own functions: a preloaded library's have the same names, and its dlsym() gives those. By the
/// versions that they are of on x86-64 and arm64.
template <class F>
F* own(const char* symbol) {
  static void* libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  void* found = nullptr;
  for (const char* version : {"GLIBC_2.2.5", "GLIBC_2.10", "GLIBC_2.14", "GLIBC_2.17"})
    if (libc && !found) found = dlvsym(libc, symbol, version);
  if (!found) throw std::runtime_error(std::string("libc.so.6 has no ") + symbol);
  return reinterpret_cast<F*>(found);
}

struct Libc {
#define OWN(call) decltype(::call)* call = own<decltype(::call)>(#call)
  OWN(socket);
  OWN(bind);
  OWN(listen);
  OWN(accept4);
  OWN(connect);
  OWN(recv);
  OWN(send);
  OWN(sendto);
  OWN(shutdown);
  OWN(close);
  OWN(setsockopt);
  OWN(getsockname);
  OWN(ioctl);
  OWN(open);
  OWN(setns);
#undef OWN
};

const Libc& libc() {
  static const Libc table;
  return table;
}

int checked(long result, const char* what) {
  if (result < 0) throw std::runtime_error(std::string(what) + ": " + error_name(errno));
  return static_cast<int>(result);
}

void set(int fd, int level, int option, int value) {
  libc().setsockopt(fd, level, option, &value, sizeof value);
}

/// Room enough that the window grows alike whatever memory frames take, which is another behind AF_XDP.
void make_room(int fd) { set(fd, SOL_SOCKET, SO_RCVBUF, 200000); }

}  // namespace

uint16_t Name::port() const {
  return ntohs(storage.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port
                                             : reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

Name name(const std::string& address, uint16_t port) {
  Name n;
  if (address.find(':') != std::string::npos) {
    auto* a = reinterpret_cast<sockaddr_in6*>(&n.storage);
    a->sin6_family = AF_INET6;
    a->sin6_port = htons(port);
    inet_pton(AF_INET6, address.c_str(), &a->sin6_addr);
    n.size = sizeof *a;
  } else {
    auto* a = reinterpret_cast<sockaddr_in*>(&n.storage);
    a->sin_family = AF_INET;
    a->sin_port = htons(port);
    inet_pton(AF_INET, address.c_str(), &a->sin_addr);
    n.size = sizeof *a;
  }
  return n;
}

FarEnd::FarEnd(const char* netns)
    : settle_nic_(reinterpret_cast<void (*)()>(dlsym(RTLD_DEFAULT, "mlx5_model_settle"))) {
  own_namespace_ = checked(libc().open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC), "own namespace");
  far_namespace_ = checked(libc().open(netns, O_RDONLY | O_CLOEXEC), netns);
}

int FarEnd::make_socket(int family, int type) const {
  checked(libc().setns(far_namespace_, CLONE_NEWNET), "setns");
  int fd = libc().socket(family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  checked(libc().setns(own_namespace_, CLONE_NEWNET), "setns");
  return checked(fd, "socket");
}

void FarEnd::connect_markers(const std::string& near, const std::string& far) {
  far_marker_ = make_socket(AF_INET, SOCK_DGRAM);
  near_marker_ = checked(libc().socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), "socket");
  const timeval second{1, 0};
  Name ends[2] = {name(near, 0), name(far, 0)};
  int fds[2] = {near_marker_, far_marker_};
  for (int i = 0; i < 2; ++i) {
    checked(libc().bind(fds[i], ends[i].raw(), ends[i].size), "bind");
    checked(libc().getsockname(fds[i], ends[i].raw(), &ends[i].size), "getsockname");
    libc().setsockopt(fds[i], SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second);
  }
  for (int i = 0; i < 2; ++i) checked(libc().connect(fds[i], ends[1 - i].raw(), ends[1 - i].size), "connect");
  int nothing = 0;
  libc().ioctl(far_marker_, FIONBIO, &nothing);
}

void FarEnd::round_trip() {
  char c = 0;
  if (settle_nic_) settle_nic_();
  checked(libc().send(near_marker_, &c, 1, 0), "marker");
  checked(libc().recv(far_marker_, &c, 1, 0), "marker lost on its way there");
  checked(libc().send(far_marker_, &c, 1, 0), "marker");
  checked(libc().recv(near_marker_, &c, 1, 0), "marker lost on its way back");
  if (settle_nic_) settle_nic_();
}

void FarEnd::close_quietly(int& fd) {
  if (fd >= 0) libc().close(fd);
  fd = -1;
}

uint16_t FarEnd::begin(bool stream, const std::string& address) {
  end();
  stream_ = stream;
  Name at = name(address, 0);
  int& fd = stream ? listener_ : sock_;
  fd = make_socket(at.storage.ss_family, stream ? SOCK_STREAM : SOCK_DGRAM);
  checked(libc().bind(fd, at.raw(), at.size), "bind");
  if (stream) make_room(fd);
  if (stream) checked(libc().listen(fd, 16), "listen");
  checked(libc().getsockname(fd, at.raw(), &at.size), "getsockname");
  return at.port();
}

std::string FarEnd::accept() {
  if (!stream_ || sock_ >= 0 || listener_ < 0) return "-";
  sock_ = libc().accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (sock_ < 0) return shown(-1);
  set(sock_, IPPROTO_TCP, TCP_NODELAY, 1);  // when it sends must not depend on the near end's ACKs
  return "accepted";
}

std::string FarEnd::call(const Name& to) {
  if (sock_ >= 0) return "-";
  sock_ = make_socket(to.storage.ss_family, SOCK_STREAM);
  set(sock_, IPPROTO_TCP, TCP_NODELAY, 1);
  make_room(sock_);
  return shown(libc().connect(sock_, to.raw(), to.size));
}

std::string FarEnd::send(size_t n, bool urgent, const Name* to) {
  std::string data = pattern(n, sent_);
  int flags = MSG_NOSIGNAL | MSG_DONTWAIT | (urgent ? MSG_OOB : 0);
  long done = to ? libc().sendto(sock_, data.data(), n, flags, to->raw(), to->size)
                 : libc().send(sock_, data.data(), n, flags);
  if (done > 0) sent_ += static_cast<size_t>(done);
  return shown(done);
}

std::string FarEnd::shutdown(int how) {
  shut_ |= how + 1;
  return shown(libc().shutdown(sock_, how));
}

std::string FarEnd::close(bool reset) {
  if (sock_ < 0) return "-";
  const linger now{1, 0};
  if (reset && stream_) libc().setsockopt(sock_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close_quietly(sock_);
  return reset ? "reset" : "closed";
}

std::string FarEnd::take() {
  std::string got;
  static char buffer[65536];
  while (sock_ >= 0) {
    long n = libc().recv(sock_, buffer, sizeof buffer, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0 && stream_) {
      ending_ = n < 0 ? shown(n) : "end";
      break;
    }
    if (!stream_) {
      datagrams_ += (n < 0 ? shown(n) : hash(buffer, static_cast<size_t>(n))) + " ";
      got += '.';
    } else {
      got.append(buffer, static_cast<size_t>(n));
    }
  }
  return got;
}

std::string FarEnd::summary(const std::string& got) {
  std::string text = stream_ ? hash(got) + " " + ending_ : datagrams_;
  datagrams_.clear();
  ending_.clear();
  return text;
}

std::string FarEnd::waiting() const {
  int n = 0;
  return sock_ < 0 || libc().ioctl(sock_, FIONREAD, &n) < 0 ? "-" : std::to_string(n);
}

void FarEnd::end() {
  close(true);  // no TIME-WAIT: ports last
  close_quietly(listener_);
  sent_ = 0;
  shut_ = 0;
  ending_.clear();
  datagrams_.clear();
}

}  // namespace differential
