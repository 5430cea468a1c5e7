// Pointers that lead nowhere: EFAULT as from the kernel, with what was queued or connected left as the kernel
// leaves it.
#include <netinet/tcp.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "posix/echo.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

constexpr size_t kPage = 4096;

/// A page of memory with nothing behind it.
class Edge {
 public:
  Edge() {
    pages_ = static_cast<char*>(
        mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(pages_ + kPage, kPage, PROT_NONE);
  }
  ~Edge() { munmap(pages_, 2 * kPage); }
  Edge(const Edge&) = delete;
  Edge& operator=(const Edge&) = delete;
  /// The last `n` bytes that are there.
  char* last(size_t n) { return pages_ + kPage - n; }
  char* beyond() { return pages_ + kPage; }

 private:
  char* pages_;
};

/// Where no buffer is: the null page, an unmapped page, the kernel's half, no address at all.
std::vector<char*> nowhere(Edge& edge) {
  return {nullptr, edge.beyond(), reinterpret_cast<char*>(-1L - 16),
          reinterpret_cast<char*>(0x7fffffffffff0000L)};
}

#define EXPECT_FAULT(call)                   \
  do {                                       \
    errno = 0;                               \
    EXPECT_EQ(call, -1) << "at " << at;      \
    EXPECT_EQ(errno, EFAULT) << "at " << at; \
  } while (false)

template <class T>
T* as(char* p) {
  return reinterpret_cast<T*>(p);
}

TEST(Fault, WhatIsSent) {
  Echo far;
  Edge edge;
  msghdr m{};
  for (char* p : nowhere(edge)) {
    const void* at = p;
    EXPECT_FAULT(send(far.fd, p, 10, 0));
    EXPECT_FAULT(write(far.fd, p, 10));
    iovec v[] = {{edge.last(4), 4}, {p, 4}};
    EXPECT_FAULT(writev(far.fd, v, 2));
    EXPECT_FAULT(writev(far.fd, as<iovec>(p), 2));
    EXPECT_FAULT(sendmsg(far.fd, as<msghdr>(p), 0));
    m = {};
    m.msg_iov = as<iovec>(p);
    m.msg_iovlen = 1;
    EXPECT_FAULT(sendmsg(far.fd, &m, 0));
    EXPECT_FAULT(sendmmsg(far.fd, as<mmsghdr>(p), 1, 0));
    if (p == nullptr) continue;  // no name
    EXPECT_FAULT(sendto(far.fd, "x", 1, 0, as<sockaddr>(p), 16));
  }
  const void* at = edge.last(4);
  EXPECT_FAULT(send(far.fd, edge.last(4), 8, 0));
  memcpy(edge.last(4), "last", 4);
  EXPECT_EQ(send(far.fd, edge.last(4), 4, 0), 4);
  EXPECT_EQ(read_exactly(far.fd, 4), "last");
  EXPECT_EQ(far.all(), "last");
}

TEST(Fault, WhatIsReceived) {
  Echo far;
  Edge edge;
  EXPECT_EQ(send(far.fd, "0123456789", 10, 0), 10);
  EXPECT_EQ(wait_for(far.fd, POLLIN), POLLIN);
  for (char* p : nowhere(edge)) {
    const void* at = p;
    EXPECT_FAULT(recv(far.fd, p, 10, 0));
    EXPECT_FAULT(recv(far.fd, p, 10, MSG_PEEK));
    EXPECT_FAULT(read(far.fd, p, 10));
    EXPECT_FAULT(readv(far.fd, as<iovec>(p), 1));
    EXPECT_FAULT(recvmsg(far.fd, as<msghdr>(p), 0));
    EXPECT_FAULT(recvmmsg(far.fd, as<mmsghdr>(p), 1, 0, nullptr));
    iovec v[] = {{edge.last(4), 4}, {p, 4}};
    EXPECT_FAULT(readv(far.fd, v, 2));
    EXPECT_FAULT(ioctl(far.fd, FIONREAD, p));
    EXPECT_FAULT(ioctl(far.fd, FIONBIO, p));
  }
  const void* at = edge.last(4);
  EXPECT_FAULT(recv(far.fd, edge.last(4), 8, 0));
  EXPECT_EQ(recv(far.fd, edge.last(4), 4, 0), 4);  // all of it is there still
  EXPECT_EQ(std::string(edge.last(4), 4), "0123");
  // What comes is less than the buffer: the rest is not looked at.
  EXPECT_EQ(recv(far.fd, edge.last(6), 6, 0), 6);
  EXPECT_EQ(send(far.fd, "ab", 2, 0), 2);
  EXPECT_EQ(wait_for(far.fd, POLLIN), POLLIN);
  EXPECT_EQ(recv(far.fd, edge.last(4), kPage, 0), 2);
  // A message without a name: its length stays.
  msghdr m{};
  char byte = 0;
  iovec one{&byte, 1};
  m.msg_iov = &one;
  m.msg_iovlen = 1;
  m.msg_namelen = 77;
  EXPECT_EQ(send(far.fd, "c", 1, 0), 1);
  EXPECT_EQ(wait_for(far.fd, POLLIN), POLLIN);
  EXPECT_EQ(recvmsg(far.fd, &m, 0), 1);
  EXPECT_EQ(m.msg_namelen, 77u);
  EXPECT_EQ(far.all(), "0123456789abc");
}

TEST(Fault, OptionsAndNames) {
  Echo far;
  Edge edge;
  socklen_t length = sizeof(int);
  sockaddr_storage name;
  int value = 1;
  for (char* p : nowhere(edge)) {
    const void* at = p;
    for (int option : {SO_ERROR, SO_RCVBUF, SO_KEEPALIVE}) {
      EXPECT_FAULT(getsockopt(far.fd, SOL_SOCKET, option, p, &length));
      EXPECT_FAULT(getsockopt(far.fd, SOL_SOCKET, option, &value, as<socklen_t>(p)));
      if (option == SO_KEEPALIVE) EXPECT_FAULT(setsockopt(far.fd, SOL_SOCKET, option, p, sizeof(int)));
    }
    for (int option : {TCP_NODELAY, TCP_CORK})
      EXPECT_FAULT(setsockopt(far.fd, IPPROTO_TCP, option, p, sizeof(int)));
    length = sizeof name;
    EXPECT_FAULT(getsockname(far.fd, as<sockaddr>(p), &length));
    EXPECT_FAULT(getpeername(far.fd, as<sockaddr>(p), &length));
    EXPECT_FAULT(getsockname(far.fd, as<sockaddr>(reinterpret_cast<char*>(&name)), as<socklen_t>(p)));
    length = sizeof(int);
  }
  length = static_cast<socklen_t>(-1);
  EXPECT_EQ(getsockname(far.fd, reinterpret_cast<sockaddr*>(&name), &length), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(far.all(), "-");
}

FAR(call_twice) {
  const uint16_t port = static_cast<uint16_t>(near.number());
  Fd one = connect_to(there(port)), two = connect_to(there(port));
  near.say(read_to_end(one));
  write_all(two, std::string("hello"));
  near.say(read_exactly(two, 4));
}

TEST(Fault, AcceptClosesWhatItCannotName) {
  Edge edge;
  Fd listener = listen_at(here());
  Far far("call_twice");
  far.say(port_of(listener));
  EXPECT_EQ(wait_for(listener, POLLIN), POLLIN);
  const void* at = edge.beyond();
  socklen_t length = sizeof(sockaddr_in);
  EXPECT_FAULT(accept(listener, as<sockaddr>(edge.beyond()), &length));
  EXPECT_EQ(far.word(), "");
  Fd second = accept_one(listener);
  EXPECT_EQ(read_exactly(second, 5), std::string("hello"));
  write_all(second, "done");
  EXPECT_EQ(far.word(), "done");
  far.finish();
}

TEST(Fault, Connecting) {
  Edge edge;
  for (char* p : nowhere(edge)) {
    const void* at = p;
    for (int type : {SOCK_STREAM, SOCK_DGRAM}) {
      Fd fd(socket(AF_INET, type, 0));
      EXPECT_FAULT(connect(fd, as<sockaddr>(p), 16));
      EXPECT_FAULT(bind(fd, as<sockaddr>(p), 16));
    }
  }
  Echo far;
  EXPECT_EQ(far.all(), "-");
}

TEST(Fault, Waiting) {
  Echo far;
  Edge edge;
  Fd set(epoll_create1(0));
  epoll_event event{EPOLLOUT, {.u64 = 7}};
  EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, far.fd, &event), 0);
  for (char* p : nowhere(edge)) {
    const void* at = p;
    EXPECT_FAULT(epoll_wait(set, as<epoll_event>(p), 1, 1000));
    EXPECT_FAULT(epoll_ctl(set, EPOLL_CTL_MOD, far.fd, as<epoll_event>(p)));
    EXPECT_FAULT(poll(as<pollfd>(p), 1, 0));
    if (p == nullptr) continue;  // no set
    EXPECT_FAULT(select(far.fd + 1, as<fd_set>(p), nullptr, nullptr, nullptr));
  }
  EXPECT_EQ(epoll_wait(set, &event, 1, 1000), 1);  // level-triggered: none is lost
  EXPECT_EQ(event.data.u64, 7u);
  EXPECT_EQ(far.all(), "-");
}

FAR(one_datagram_each) {
  Fd fd = udp_at(here());
  near.say(port_of(fd));
  for (;;) {
    char data[64];
    Address from;
    const ssize_t n = recvfrom(fd, data, sizeof data, 0, from.raw(), &from.size);
    if (n <= 0 || data[0] == '.') return;
    for (const char* answer : {"first", "second"})
      sendto(fd, answer, strlen(answer), 0, from.raw(), from.size);
  }
}

TEST(Fault, Datagrams) {
  Far far("one_datagram_each");
  Edge edge;
  const Address to = there(static_cast<uint16_t>(far.number()));
  Fd fd = udp_socket();
  ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
  for (char* p : {static_cast<char*>(nullptr), edge.beyond(), reinterpret_cast<char*>(-1L - 16)}) {
    const void* at = p;
    EXPECT_FAULT(send(fd, p, 10, 0));
    if (p != nullptr) EXPECT_FAULT(sendto(fd, "x", 1, 0, as<sockaddr>(p), 16));
    EXPECT_EQ(send(fd, "ask", 3, 0), 3);
    EXPECT_EQ(wait_for(fd, POLLIN), POLLIN);
    char data[16];
    if (reinterpret_cast<intptr_t>(p) < 0) {  // refused before anything is looked at
      EXPECT_FAULT(recv(fd, p, 10, 0));
      EXPECT_EQ(recv(fd, data, 16, 0), 5);
    } else {
      EXPECT_FAULT(recv(fd, p, 10, 0));  // that datagram is lost
    }
    EXPECT_EQ(recv(fd, data, 16, 0), 6);
  }
  EXPECT_EQ(send(fd, ".", 1, 0), 1);
  far.finish();
}

sigjmp_buf back;
volatile int faults = 0;

TEST(Fault, TheProgramsOwnHandler) {
  Echo far;
  Edge edge;
  struct sigaction action {};
  struct sigaction old {};
  struct sigaction now {};
  faults = 0;
  action.sa_handler = [](int) {
    faults = faults + 1;
    siglongjmp(back, 1);
  };
  EXPECT_EQ(sigaction(SIGSEGV, &action, &old), 0);
  EXPECT_TRUE(old.sa_handler == SIG_DFL);
  const void* at = edge.beyond();
  EXPECT_FAULT(send(far.fd, edge.beyond(), 1, 0));
  EXPECT_EQ(faults, 0);
  if (sigsetjmp(back, 1) == 0) *static_cast<volatile char*>(edge.beyond()) = 1;
  EXPECT_EQ(faults, 1);
  EXPECT_FAULT(send(far.fd, edge.beyond(), 1, 0));
  EXPECT_EQ(sigaction(SIGSEGV, &old, &now), 0);
  EXPECT_TRUE(now.sa_handler == action.sa_handler);
  EXPECT_EQ(now.sa_flags & SA_SIGINFO, 0);
  EXPECT_EQ(faults, 1);
  EXPECT_FAULT(send(far.fd, edge.beyond(), 1, 0));
  EXPECT_EQ(far.all(), "-");
}

TEST(Fault, WithoutOneTheProgramDies) {
  Echo far;
  Edge edge;
  auto death = [](auto body) {
    const pid_t child = in_child(body);
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  };
  EXPECT_EQ(death([&] { *static_cast<volatile char*>(edge.beyond()) = 1; }), SIGSEGV);
  EXPECT_EQ(death([&] { kill(getpid(), SIGSEGV); }), SIGSEGV);
  EXPECT_EQ(death([&] { raise(SIGBUS); }), SIGBUS);
  EXPECT_EQ(far.all(), "-");
}

}  // namespace
