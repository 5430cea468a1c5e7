// Signal handlers that use sockets in the midst of what they have interrupted: POSIX has accept, bind, close,
// connect, listen, poll, read, recv, select, send, shutdown, sockatmark, socket and write among the calls
// that a handler may make, also when it interrupted malloc().
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <chrono>
#include <thread>
#include <vector>

#include "posix/echo.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

/// The thread is in a handler of a test's.
thread_local volatile bool in_handler = false;
std::atomic<unsigned> allocations{0};  ///< in handlers

}  // namespace

// A handler that interrupts malloc() waits for ever only if it finds the lock held; these tell of every call.
#if !defined(HANDLERS_OTHER_MALLOC) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void __libc_free(void*);

void* malloc(size_t size) {
  if (in_handler) ++allocations;
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  if (in_handler) ++allocations;
  return __libc_calloc(count, size);
}
void* realloc(void* block, size_t size) {
  if (in_handler) ++allocations;
  return __libc_realloc(block, size);
}
void free(void* block) {
  if (in_handler && block != nullptr) ++allocations;
  __libc_free(block);
}
}
#endif

namespace {

// Echoes to whoever calls, until its first caller has ended, and calls the near end now and then; bytes of
// the first are told.
FAR(crowd) {
  Fd listener = listen_at(here(), 256);
  near.say(port_of(listener));
  std::vector<Fd> callers, calls;
  callers.push_back(accept_one(listener));
  const Address its_listener = there(static_cast<uint16_t>(near.number()));
  size_t rounds = 0;
  size_t echoed = 0;
  for (bool first = true; first;) {
    std::vector<pollfd> looks{{listener, POLLIN, 0}};
    for (const Fd& fd : callers) looks.push_back({fd, POLLIN, 0});
    poll(looks.data(), looks.size(), -1);
    for (size_t i = looks.size(); i-- > 1;) {
      if (looks[i].revents == 0) continue;
      char bytes[4096];
      const ssize_t n = recv(looks[i].fd, bytes, sizeof bytes, MSG_DONTWAIT);
      if (n > 0) {
        const bool its = i == 1;
        if (its) echoed += static_cast<size_t>(n);
        for (ssize_t at = 0, m;
             at < n && (m = send(looks[i].fd, bytes + at, static_cast<size_t>(n - at), MSG_NOSIGNAL)) > 0;)
          at += m;
      } else if (n == 0 || errno != EAGAIN) {
        if (i == 1) first = false;
        callers.erase(callers.begin() + static_cast<ptrdiff_t>(i) - 1);
      }
    }
    if (++rounds % 8 == 0 && calls.size() < 200) {
      calls.push_back(tcp_socket(AF_INET, SOCK_NONBLOCK));
      connect(calls.back(), its_listener.raw(), its_listener.size);
    }
    if (first && (looks[0].revents & POLLIN) != 0) callers.push_back(accept_one(listener));
  }
  near.say(static_cast<long>(echoed));
}

/// All that the handler works on. It may make only async-signal-safe calls.
struct Work {
  int stream = -1, listener = -1, datagrams = -1;
  Address far, here;
  int calls[4] = {-1, -1, -1, -1};
  size_t next_call = 0;
  size_t sent = 0, received = 0;
  unsigned runs = 0, connections = 0, accepted = 0, wrong = 0;
} work;

uint8_t byte_at(size_t position) { return static_cast<uint8_t>(position * 7 + position / 251); }

void send_some(bool by_write) {
  uint8_t bytes[200];
  for (size_t i = 0; i < sizeof bytes; ++i) bytes[i] = byte_at(work.sent + i);
  if (work.sent - work.received > 100000) return;
  const ssize_t n = by_write ? write(work.stream, bytes, sizeof bytes)
                             : send(work.stream, bytes, sizeof bytes, MSG_NOSIGNAL);
  if (n > 0) work.sent += static_cast<size_t>(n);
}

void receive_some(bool by_read) {
  uint8_t bytes[700];
  const ssize_t n =
      by_read ? read(work.stream, bytes, sizeof bytes) : recv(work.stream, bytes, sizeof bytes, 0);
  for (ssize_t i = 0; i < n; ++i) work.wrong += bytes[i] != byte_at(work.received + static_cast<size_t>(i));
  if (n > 0) work.received += static_cast<size_t>(n);
}

void look_about() {
  pollfd looks[] = {
      {work.stream, POLLIN | POLLOUT, 0}, {work.listener, POLLIN, 0}, {work.datagrams, POLLIN, 0}};
  poll(looks, 3, 0);
  fd_set set;
  FD_ZERO(&set);
  FD_SET(work.stream, &set);
  timeval none{};
  select(work.stream + 1, &set, nullptr, nullptr, &none);
  (void)sockatmark(work.stream);
  (void)fcntl(work.stream, F_GETFL);
}

/// A connection is made in one run, used and ended in later ones.
void call_again() {
  int& fd = work.calls[work.next_call++ % 4];
  if (fd >= 0) {
    send(fd, "x", 1, MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    close(fd);
  }
  fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  if (fd < 0) return;
  // Refused on mlx5 under ACCEL_REQUIRE: a handler cannot make rules there.
  if (connect(fd, work.far.raw(), work.far.size) == 0 || errno == EINPROGRESS || errno == EPROTONOSUPPORT)
    ++work.connections;
}

void listen_again() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  if (fd < 0) return;
  bind(fd, work.here.raw(), work.here.size);
  listen(fd, 4);
  close(fd);
  const int accepted = accept(work.listener, nullptr, nullptr);
  if (accepted < 0) return;
  ++work.accepted;
  close(accepted);
}

void use_datagrams() {
  (void)!send(work.datagrams, "datagram", 8, MSG_NOSIGNAL);
  char bytes[8];
  (void)!recv(work.datagrams, bytes, sizeof bytes, 0);
}

void use_everything(int) {
  const int saved = errno;
  in_handler = true;
  const unsigned run = work.runs++;
  switch (run % 8) {
    case 0:
    case 4:
      send_some(run % 8 == 4);
      break;
    case 1:
    case 5:
      receive_some(run % 8 == 5);
      break;
    case 2:
    case 6:
      look_about();
      break;
    case 3:
      run % 32 == 3 ? listen_again() : use_datagrams();
      break;
    default:
      call_again();
      break;
  }
  in_handler = false;
  errno = saved;
}

/// malloc() and free() of all sizes, on every path of theirs, for `time`.
void churn(std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  std::vector<void*> blocks(500);
  uint32_t random = 1;
  while (std::chrono::steady_clock::now() < end)
    for (int i = 0; i < 1000; ++i) {
      random = random * 1664525 + 1013904223;
      void*& block = blocks[(random >> 8) % blocks.size()];
      free(block);
      block = malloc((random >> 20) % 16 == 0 ? 100000 : 1 + (random >> 16) % 5000);
    }
  for (void* block : blocks) free(block);
}

class Timer {
 public:
  explicit Timer(void (*handler)(int), int flags = SA_RESTART) {
    struct sigaction action {};
    handler_ = handler;
    action.sa_handler = [](int number) {
      handler_(number);
      if (on_) set(kBetween);
    };
    action.sa_flags = flags;
    sigaction(SIGALRM, &action, &old_);
    on_ = true;
    set(kBetween);
  }
  ~Timer() {
    on_ = false;
    set(0);
    sigaction(SIGALRM, &old_, nullptr);
  }

 private:
  static constexpr int kBetween = 200;  // us from a handler's end, so that the program gets on
  static void set(int microseconds) {
    const itimerval once{{0, 0}, {0, microseconds}};
    setitimer(ITIMER_REAL, &once, nullptr);
  }
  static inline void (*handler_)(int) = nullptr;
  static inline std::atomic<bool> on_{false};
  struct sigaction old_ {};
};

/// Ends the process if the test does not end.
class Patience {
 public:
  Patience()
      : thread_([this] {
          sigset_t all;
          sigfillset(&all);
          pthread_sigmask(SIG_SETMASK, &all, nullptr);
          for (int i = 0; i < 200 && !over_; ++i) usleep(100000);
          if (over_) return;
          fprintf(stderr, "the handler hangs: run %u\n", work.runs);
          kill(getpid(), SIGKILL);
        }) {}
  ~Patience() {
    over_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

/// Patience ends the process when this never comes.
bool has_done(unsigned runs, unsigned connections, unsigned received, unsigned accepted) {
  return work.runs > runs && work.connections > connections && work.received > received &&
         work.accepted > accepted;
}

TEST(Handlers, UseSocketsInTheMidstOfMalloc) {
  Far far("crowd");
  const Patience patience;
  work = {};
  work.far = there(static_cast<uint16_t>(far.number()));
  work.here = here();
  Fd stream = connect_to(work.far), listener = listen_at(here()), datagrams = udp_socket();
  ASSERT_EQ(connect(datagrams, work.far.raw(), work.far.size), 0);
  for (int fd : {static_cast<int>(stream), static_cast<int>(listener), static_cast<int>(datagrams)})
    set_nonblocking(fd);
  far.say(port_of(listener));
  work.stream = stream;
  work.listener = listener;
  work.datagrams = datagrams;
  {
    const Timer timer(use_everything);
    // As often as it takes: what the handler does in a second depends on who else has the CPUs.
    do churn(std::chrono::milliseconds(1500));
    while (!has_done(100, 5, 5000, 5) && work.wrong == 0);
  }
  for (int fd : work.calls)
    if (fd >= 0) close(fd);
  set_nonblocking(stream, false);
  while (work.received < work.sent && work.wrong == 0) {
    const size_t before = work.received;
    receive_some(false);
    ASSERT_GT(work.received, before);
  }
  EXPECT_GT(work.runs, 100u);
  EXPECT_GT(work.connections, 5u);
  EXPECT_GT(work.received, 5000u);
  EXPECT_EQ(work.wrong, 0u);
  EXPECT_EQ(allocations, 0u);
  EXPECT_GT(work.accepted, 5u);
  stream.reset();
  EXPECT_EQ(static_cast<size_t>(far.number()), work.sent);
  far.finish();
}

Fd listen_with_others(const Address& at) {
  Fd fd = tcp_socket();
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
  if (bind(fd, at.raw(), at.size) != 0 || listen(fd, 16) != 0) return Fd();
  return fd;
}

int go[2], another_waits[2];

void wait_with_another(int) {
  const int saved = errno;
  in_handler = true;
  (void)!write(go[1], "x", 1);
  pollfd looks[] = {{work.listener, POLLIN, 0}, {another_waits[0], POLLIN, 0}};
  work.wrong += poll(looks, 2, 20000) != 1;
  in_handler = false;
  errno = saved;
}

// On mlx5 the two divide the peers by rules of the device, which take malloc(): behind the handler.
TEST(Handlers, WaitInTheMidstOfAllWhileAnotherProcessComesToListen) {
  const Patience patience;
  work = {};
  allocations = 0;
  ASSERT_EQ(pipe(go) | pipe(another_waits), 0);
  Fd listener = listen_with_others(here());
  ASSERT_GE(listener, 0);
  work.listener = listener;
  pollfd look{listener, POLLIN, 0};
  ASSERT_EQ(poll(&look, 1, 20), 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte;
    (void)!read(go[0], &byte, 1);
    Fd own = listen_with_others(here(port_of(listener)));
    listener.reset();
    pollfd its{own, POLLIN, 0};
    poll(&its, 1, 300);
    (void)!write(another_waits[1], "x", 1);
    poll(&its, 1, -1);
    _exit(0);
  }
  signal(SIGUSR1, wait_with_another);
  raise(SIGUSR1);
  signal(SIGUSR1, SIG_DFL);
  EXPECT_EQ(work.wrong, 0u);
  EXPECT_EQ(allocations, 0u);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

void call_nobody(int) {
  const int saved = errno;
  in_handler = true;
  if (work.runs++ < 20) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    // Refused, and under ACCEL_REQUIRE refused by that: a handler cannot open a device.
    const bool refused = connect(fd, work.far.raw(), work.far.size) != 0 &&
                         (errno == ECONNREFUSED || errno == EPROTONOSUPPORT);
    work.wrong += !refused;
    close(fd);
  }
  in_handler = false;
  errno = saved;
}

TEST(Handlers, MayBeTheFirstToUseTheNetwork) {
  const Patience patience;
  work = {};
  work.far = there(1);
  {
    const Timer timer(call_nobody);
    churn(std::chrono::milliseconds(200));
  }
  EXPECT_GE(work.runs, 20u);
  EXPECT_EQ(work.wrong, 0u);
  EXPECT_EQ(allocations, 0u);
  Echo echo;  // nor does it bar the way for the others
  for (int i = 0; i < 500; ++i) exchange(echo.fd, "0123456789");
  EXPECT_EQ(echo.all().size(), 5000u);
}

}  // namespace
