// Tests of socket calls between two hosts (two namespaces, made by run.py). The program runs twice: *near*
// runs the GoogleTest cases, *far* plays the other end. Either may be preloaded with libaccel; neither knows.
//
//   FAR(echo) { Fd l = listen_at(here()); tell(port_of(l)); Fd c = accept_one(l); ... }
//   TEST(Stream, Echo) { Far far("echo"); Fd s = connect_to(there(far.number())); ... far.finish(); }
//
// A FAR part runs in a thread of the far process with a control channel of its own: tell()/hear() there,
// say()/word() here.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace posix_test {

/// A descriptor that closes itself.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Fd() { reset(); }
  operator int() const { return fd_; }  // NOLINT: stands in for the number everywhere
  void reset() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

struct Address {
  sockaddr_storage storage{};
  socklen_t size = sizeof(sockaddr_storage);
  sockaddr* raw() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  uint16_t port() const {
    return ntohs(family() == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port
                                      : reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  }
};

/// `text`: an address in numbers, either family.
Address address(const std::string& text, uint16_t port);
/// This process's address and the other end's (AF_INET unless family says AF_INET6).
Address here(uint16_t port = 0, int family = AF_INET);
Address there(uint16_t port, int family = AF_INET);
Address any(uint16_t port = 0, int family = AF_INET);

// Each of these fails the test (or ends the far part) with errno in its text when the call does.
Fd tcp_socket(int family = AF_INET, int flags = 0);
Fd udp_socket(int family = AF_INET, int flags = 0);
Fd listen_at(const Address& a, int backlog = 16);
Fd udp_at(const Address& a);
Fd connect_to(const Address& a);
Fd accept_one(int listener);
uint16_t port_of(int fd);
void write_all(int fd, const void* data, size_t size);
void write_all(int fd, const std::string& text);
/// Reads until `size` bytes or the end; returns what came.
std::string read_exactly(int fd, size_t size);
std::string read_to_end(int fd);
/// Waits for poll(2) events; returns revents, 0 after the guard of 20 s.
short wait_for(int fd, short events, int timeout_ms = 20000);
/// The same for the end of a TCP connection. The kernel's tcp_reset() sets the error before the state, so
/// that POLLERR may show alone in between: then until more shows.
short wait_for_end(int fd, short events);
void set_nonblocking(int fd, bool on = true);
/// Sends to a TCP peer that does not read until both buffers are full: all that was sent is acknowledged, and
/// the rest waits for the peer's window (RFC 9293, 3.8.6). Returns how many bytes that was. The socket blocks
/// again afterwards.
long fill(int fd);
void set_option(int fd, int level, int name, int value);
int get_option(int fd, int level, int name);
/// `size` bytes that differ by position and seed.
std::string pattern(size_t size, uint32_t seed = 1);
/// Returns when the thread of this number (0: not known yet) sleeps or has ended: most likely in the call
/// that it is about to make, and a test should hold as well when it is not there yet.
void until_asleep(const std::atomic<pid_t>& thread);

/// Forks a child that runs `body` and ends with status 0; 97 after a failed call, 98 after a failed
/// expectation, and by SIGALRM when it hangs.
template <class F>
pid_t in_child(F body) {
  const pid_t child = fork();
  if (child != 0) return child;
  alarm(60);
  try {
    body();
  } catch (const std::exception& e) {
    fprintf(stderr, "child: %s\n", e.what());
    _exit(97);
  }
  _exit(testing::Test::HasFailure() ? 98 : 0);
}

/// Waits for the child; its status as waitpid(2) gives it.
int status_of(pid_t child);

/// A child for `body` alone, which ends with status 0.
template <class F>
void ends_well_in_child(F body) {
  const int status = status_of(in_child(body));
  EXPECT_FALSE(WIFSIGNALED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(status, 0);
}

/// For sendmsg(2) and recvmsg(2): room for bytes and for control messages.
template <size_t kBytes = 1, size_t kControl = 256>
struct Message : msghdr {
  Message() : msghdr{} {
    msg_iov = &data;
    msg_iovlen = 1;
    msg_control = control;
    msg_controllen = sizeof control;
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
  char bytes[kBytes] = {};
  iovec data{bytes, kBytes};
  alignas(cmsghdr) char control[kControl] = {};
};

/// SCM_RIGHTS over a Unix socket.
void send_descriptor(int channel, int fd);
Fd receive_descriptor(int channel);

/// A line channel to the other side of a running FAR part.
class Control {
 public:
  explicit Control(Fd fd) : fd_(std::move(fd)) {}
  void say(const std::string& line);
  void say(long number) { say(std::to_string(number)); }
  /// The next line; throws std::runtime_error when the other side is gone or 60 s pass.
  std::string word();
  long number() { return std::stol(word()); }

 private:
  Fd fd_;
  std::string rest_;
};

/// Near's handle of a FAR part.
class Far : public Control {
 public:
  explicit Far(const std::string& part, const std::vector<std::string>& arguments = {});
  ~Far();
  /// Waits for the part's end; fails the test with its message when it failed.
  void finish();

 private:
  bool finished_ = false;
};

using FarPart = std::function<void(Control& near, const std::vector<std::string>& arguments)>;
bool add_far_part(const char* name, FarPart part);

#define FAR(name)                                                                                    \
  static void far_##name(posix_test::Control& near, const std::vector<std::string>& args);           \
  [[maybe_unused]] static const bool far_added_##name = posix_test::add_far_part(#name, far_##name); \
  static void far_##name([[maybe_unused]] posix_test::Control& near,                                 \
                         [[maybe_unused]] const std::vector<std::string>& args)

}  // namespace posix_test
