// Signals and blocked calls: EINTR or restart as signal(7) says, handlers that use sockets, and deaths by
// signal that lose nothing.
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "posix/echo.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

// Accepts, then does as near says: "send TEXT", "echo N" (bytes),
// "close".
FAR(partner) {
  Fd listener = listen_at(here());
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  for (;;) {
    const std::string order = near.word();
    if (order.rfind("send ", 0) == 0) {
      write_all(fd, order.substr(5));
    } else if (order.rfind("echo ", 0) == 0) {
      size_t left = std::stoul(order.substr(5));
      while (left > 0) {
        const std::string part = read_exactly(fd, std::min<size_t>(left, 16384));
        write_all(fd, part);
        left -= part.size();
        if (part.empty()) break;
      }
    } else {
      break;
    }
  }
}

struct Partner : Far {
  Partner() : Far("partner"), port(static_cast<uint16_t>(number())) {}
  ~Partner() {
    say("close");
    finish();
  }
  uint16_t port;
};

std::atomic<int> runs{0};
void count_run(int) { ++runs; }

/// A handler for the time of a test.
class Handler {
 public:
  Handler(int number, void (*handler)(int), int flags) : number_(number) {
    runs = 0;
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = flags;
    sigaction(number, &action, &old_);
  }
  ~Handler() { sigaction(number_, &old_, nullptr); }

 private:
  int number_;
  struct sigaction old_ {};
};

/// Signals the calling thread again and again, so that one is sure to hit it while it blocks, until stopped.
class Pestering {
 public:
  explicit Pestering(int number)
      : target_(pthread_self()), thread_([this, number] {
          while (!stop_) {
            pthread_kill(target_, number);
            usleep(2000);
          }
        }) {}
  ~Pestering() { stop(); }
  void stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  pthread_t target_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST(Signals, BlockedReadIsInterrupted) {
  Partner far;
  Fd fd = connect_to(there(far.port));
  Handler handler(SIGUSR1, count_run, 0);
  char byte;
  {
    Pestering pestering(SIGUSR1);
    EXPECT_EQ(recv(fd, &byte, 1, 0), -1);
    EXPECT_EQ(errno, EINTR);
  }
  EXPECT_GT(runs, 0);
  far.say("send x");
  EXPECT_EQ(recv(fd, &byte, 1, 0), 1);
}

TEST(Signals, EveryOtherBlockedCallIsInterrupted) {
  Partner far;
  Fd fd = connect_to(there(far.port)), listener = listen_at(here()), datagrams = udp_at(here());
  Handler handler(SIGUSR1, count_run, 0);
  const std::string much(64 << 20, 'x');  // more than both ends' buffers take
  char byte;
  Pestering pestering(SIGUSR1);
  EXPECT_EQ(accept(listener, nullptr, nullptr), -1);
  EXPECT_EQ(errno, EINTR);
  EXPECT_EQ(recv(datagrams, &byte, 1, 0), -1);
  EXPECT_EQ(errno, EINTR);
  ssize_t sent = 1;
  while (sent > 0) sent = send(fd, much.data(), much.size(), 0);
  EXPECT_EQ(sent, -1);
  EXPECT_EQ(errno, EINTR);
}

TEST(Signals, BlockedReadIsRestarted) {
  Partner far;
  Fd fd = connect_to(there(far.port));
  Handler handler(SIGUSR1, count_run, SA_RESTART);
  Pestering pestering(SIGUSR1);
  std::thread sender([&] {
    while (runs < 5) usleep(1000);
    far.say("send x");
  });
  char byte = 0;
  EXPECT_EQ(recv(fd, &byte, 1, 0), 1);
  EXPECT_EQ(byte, 'x');
  EXPECT_GE(runs, 5);
  pestering.stop();
  sender.join();
}

// tcp_recvmsg_locked() and tcp_sendmsg_locked(): once bytes were moved, a signal ends the call with their
// number.
TEST(Signals, WhatWasMovedIsReturnedInsteadOfARestart) {
  Partner far;
  Fd fd = connect_to(there(far.port));
  Handler handler(SIGUSR1, count_run, SA_RESTART);
  char bytes[10];
  far.say("send abc");
  {
    Pestering pestering(SIGUSR1);
    EXPECT_EQ(recv(fd, bytes, sizeof bytes, MSG_WAITALL | MSG_PEEK), 3);
    EXPECT_EQ(recv(fd, bytes, sizeof bytes, MSG_WAITALL), 3);
  }
  set_option(fd, SOL_SOCKET, SO_RCVLOWAT, 10);
  far.say("send de");
  {
    Pestering pestering(SIGUSR1);
    EXPECT_EQ(recv(fd, bytes, sizeof bytes, 0), 2);
  }
  const std::string much(64 << 20, 'x');  // more than both ends' buffers take
  Pestering pestering(SIGUSR1);
  const ssize_t sent = send(fd, much.data(), much.size(), 0);
  EXPECT_GT(sent, 0);
  EXPECT_LT(sent, ssize_t{64 << 20});
}

// Sends a datagram to the port.
FAR(one_datagram) {
  Fd fd = udp_socket();
  const Address to = there(static_cast<uint16_t>(std::stoi(args[0])));
  if (sendto(fd, "x", 1, 0, to.raw(), to.size) != 1) throw std::runtime_error(strerror(errno));
}

template <size_t kCount>
struct Messages {
  explicit Messages(std::array<iovec, kCount> data) : vectors(data) {
    for (size_t i = 0; i < kCount; ++i) {
      all[i].msg_hdr.msg_iov = &vectors[i];
      all[i].msg_hdr.msg_iovlen = 1;
    }
  }
  std::array<iovec, kCount> vectors;
  mmsghdr all[kCount] = {};
};

// do_recvmmsg(), __sys_sendmmsg(), splice_direct_to_actor(): with something moved they return that.
TEST(Signals, CallsOfManyTransfersReturnWhatTheyHave) {
  const std::string much(64 << 20, 'x');
  char bytes[2][10];
  FILE* const file = tmpfile();
  ASSERT_NE(file, nullptr);
  ASSERT_EQ(ftruncate(fileno(file), 64 << 20), 0);
  for (const int restart : {0, SA_RESTART}) {
    Handler handler(SIGUSR1, count_run, restart);
    Fd datagrams = udp_at(here());
    Far sender("one_datagram", {std::to_string(port_of(datagrams))});
    EXPECT_EQ(wait_for(datagrams, POLLIN), POLLIN);
    Messages<2> in({{{bytes[0], 10}, {bytes[1], 10}}});
    {
      Pestering pestering(SIGUSR1);
      EXPECT_EQ(recvmmsg(datagrams, in.all, 2, 0, nullptr), 1);
    }
    // What ended it is the next call's error, which kernels do not translate (ERESTARTSYS).
    EXPECT_EQ(recv(datagrams, bytes[0], 1, 0), -1);
    EXPECT_TRUE(errno == EINTR || errno == 512) << errno;
    sender.finish();

    Partner full;
    Fd fd = connect_to(there(full.port));
    {
      Pestering pestering(SIGUSR1);
      off_t at = 0;
      const ssize_t sent = sendfile(fd, fileno(file), &at, 64 << 20);
      EXPECT_EQ(at, std::max<ssize_t>(sent, 0));
      EXPECT_LT(sent, ssize_t{64 << 20});
      EXPECT_TRUE(sent > 0 || (restart == 0 && errno == EINTR)) << sent;
    }
    fill(fd);
    Messages<2> out({{{nullptr, 0}, {bytes[0], 10}}});  // nothing can always be sent
    {
      Pestering pestering(SIGUSR1);
      EXPECT_EQ(sendmmsg(fd, out.all, 2, 0), 1);
    }
  }
  fclose(file);
}

TEST(Signals, ReadinessCallsAreNeverRestarted) {
  Partner far;
  Fd fd = connect_to(there(far.port));
  Handler handler(SIGUSR1, count_run, SA_RESTART);
  Pestering pestering(SIGUSR1);
  Fd set(epoll_create1(0));
  epoll_event event{};
  event.events = EPOLLIN;
  ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
  EXPECT_EQ(epoll_wait(set, &event, 1, -1), -1);
  EXPECT_EQ(errno, EINTR);
  pollfd one{fd, POLLIN, 0};
  EXPECT_EQ(poll(&one, 1, -1), -1);
  EXPECT_EQ(errno, EINTR);
  fd_set read;
  FD_ZERO(&read);
  FD_SET(fd, &read);
  EXPECT_EQ(select(fd + 1, &read, nullptr, nullptr, nullptr), -1);
  EXPECT_EQ(errno, EINTR);
}

/// Stops this process, once the calling thread sleeps, and continues it.
class StopAndGo {
 public:
  StopAndGo() : child_(fork()) {
    if (child_ != 0) return;
    const pid_t parent = getppid();
    usleep(100000);
    kill(parent, SIGSTOP);
    usleep(50000);
    kill(parent, SIGCONT);
    _exit(0);
  }
  ~StopAndGo() { waitpid(child_, nullptr, 0); }

 private:
  pid_t child_;
};

// signal(7): without a handler these calls end all the same: epoll_wait(), a transfer with a timeout or with
// bytes moved. The rest go on.
TEST(Signals, StoppedAndContinued) {
  Partner far;
  Fd fd = connect_to(there(far.port)), listener = listen_at(here()), datagrams = udp_at(here());
  Fd set(epoll_create1(0));
  epoll_event event{EPOLLIN, {}};
  ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
  char bytes[10];
  auto said = [](long result) { return result >= 0 ? std::to_string(result) : strerrorname_np(errno); };
  for (int threads = 1; threads <= 2; ++threads) {
    std::atomic<bool> over{false};
    std::thread other([&] {
      pollfd p{fd, POLLRDHUP, 0};
      while (threads == 2 && !over) poll(&p, 1, 100);
    });
    auto while_stopped = [&](auto call) {
      StopAndGo stopping;
      return call();
    };
    pollfd one{fd, POLLIN, 0}, mixed[] = {{fd, POLLIN, 0}, {listener, POLLIN, 0}, {datagrams, POLLIN, 0}};
    EXPECT_EQ(while_stopped([&] { return said(poll(&one, 1, 400)); }), "0");
    EXPECT_EQ(while_stopped([&] { return said(poll(mixed, 3, 400)); }), "0");
    EXPECT_EQ(while_stopped([&] {
                timeval limit{0, 400000};
                fd_set in;
                FD_ZERO(&in);
                FD_SET(fd, &in);
                return said(select(fd + 1, &in, nullptr, nullptr, &limit));
              }),
              "0");
    EXPECT_EQ(while_stopped([&] { return said(epoll_wait(set, &event, 1, 400)); }), "EINTR");
    std::thread sender([&] {
      usleep(400000);
      far.say("send x");
    });
    EXPECT_EQ(while_stopped([&] { return said(recv(fd, bytes, 1, 0)); }), "1");
    sender.join();
    far.say("send abc");
    EXPECT_EQ(while_stopped([&] { return said(recv(fd, bytes, sizeof bytes, MSG_WAITALL)); }), "3");
    for (const int limited :
         {static_cast<int>(fd), static_cast<int>(listener), static_cast<int>(datagrams)}) {
      const timeval limit{2, 0}, none{};
      setsockopt(limited, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
      EXPECT_EQ(
          while_stopped([&] {
            return said(limited == listener ? accept(limited, nullptr, nullptr) : recv(limited, bytes, 1, 0));
          }),
          "EINTR")
          << limited;
      setsockopt(limited, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
    }
    over = true;
    other.join();
  }
}

TEST(Signals, MaskOfTheWaitLetsThemIn) {
  Partner far;
  Fd fd = connect_to(there(far.port));
  Handler handler(SIGUSR1, count_run, 0);
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  pthread_kill(pthread_self(), SIGUSR1);
  EXPECT_EQ(runs, 0);
  Fd set(epoll_create1(0));
  epoll_event event{};
  event.events = EPOLLIN;
  ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
  EXPECT_EQ(epoll_pwait(set, &event, 1, -1, &before), -1);
  EXPECT_EQ(errno, EINTR);
  EXPECT_EQ(runs, 1);
  pthread_kill(pthread_self(), SIGUSR1);
  pollfd one{fd, POLLIN, 0};
  EXPECT_EQ(ppoll(&one, 1, nullptr, &before), -1);
  EXPECT_EQ(errno, EINTR);
  EXPECT_EQ(runs, 2);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

/// Once: a handler sets it anew at its end, so that the program gets on however slow the machine is.
void signal_after(int microseconds) {
  const itimerval once{{0, 0}, {0, microseconds}};
  setitimer(ITIMER_REAL, &once, nullptr);
}

std::atomic<int> handlers_socket{-1};
void use_socket(int) {
  const int saved = errno;
  ++runs;
  pollfd one{handlers_socket, POLLIN | POLLOUT, 0};
  poll(&one, 1, 0);
  int type = 0;
  socklen_t size = sizeof(type);
  getsockopt(handlers_socket, SOL_SOCKET, SO_TYPE, &type, &size);
  char byte;
  (void)!recv(handlers_socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (handlers_socket >= 0) signal_after(300);
  errno = saved;
}

TEST(Signals, HandlersThatUseTheSocketOfAnInterruptedTransfer) {
  Partner far;
  Fd fd = connect_to(there(far.port));
  constexpr size_t kSize = 4 << 20;
  far.say("echo " + std::to_string(kSize));
  handlers_socket = fd;
  Handler handler(SIGALRM, use_socket, SA_RESTART);
  signal_after(300);
  const std::string sent = pattern(kSize);
  std::thread writer([&] { write_all(fd, sent); });
  const std::string got = read_exactly(fd, kSize);
  writer.join();
  handlers_socket = -1;
  signal_after(0);
  EXPECT_GT(runs, 10);
  EXPECT_TRUE(got == sent);
}

sigjmp_buf out;
void jump(int) { siglongjmp(out, 1); }

TEST(Signals, HandlerJumpsOutOfABlockedCall) {
  Partner far;
  Fd fd = connect_to(there(far.port));
  Fd set(epoll_create1(0));
  epoll_event event{};
  event.events = EPOLLIN;
  ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
  Handler handler(SIGALRM, jump, 0);
  const itimerval soon{{0, 0}, {0, 20000}};
  char byte;
  static int i;  // survives the jumps
  for (i = 0; i < 6; ++i) {
    if (sigsetjmp(out, 1) == 0) {
      setitimer(ITIMER_REAL, &soon, nullptr);
      if (i % 3 == 0) recv(fd, &byte, 1, 0);
      if (i % 3 == 1) epoll_wait(set, &event, 1, -1);
      pollfd one{fd, POLLIN, 0};
      poll(&one, 1, -1);
      ADD_FAILURE() << "nothing was to wake it";
    }
  }
  far.say("send x");
  EXPECT_EQ(wait_for(fd, POLLIN), POLLIN);
  EXPECT_EQ(epoll_wait(set, &event, 1, 20000), 1);
  EXPECT_EQ(recv(fd, &byte, 1, 0), 1);
}

TEST(Signals, WhatAHandlerLeftBlockedIsClosed) {
  Handler handler(SIGALRM, jump, 0);
  const itimerval soon{{0, 0}, {0, 20000}};
  for (int i = 0; i < 3; ++i) {
    Echo far;
    exchange(far.fd, "x");
    if (sigsetjmp(out, 1) == 0) {
      setitimer(ITIMER_REAL, &soon, nullptr);
      char byte;
      recv(far.fd, &byte, 1, 0);
      ADD_FAILURE() << "nothing was to wake it";
    }
    if (i == 1) exchange(far.fd, "y");
    if (i == 2) wait_for(far.fd, POLLIN, 20);
    far.fd.reset();
    EXPECT_EQ(far.seen(), i == 1 ? "xy" : "x");
    far.finish();
  }
}

std::atomic<int> early_socket{-1}, early_runs{0}, early_errors{0};
void on_early(int) {
  const int saved = errno;
  if (early_socket >= 0) {
    ++early_runs;
    if (send(early_socket, "h", 1, MSG_NOSIGNAL) != 1) ++early_errors;
  }
  errno = saved;
}
void install_early(int, char**, char**) {
  struct sigaction action {};
  action.sa_handler = on_early;
  action.sa_flags = SA_RESTART;
  sigaction(SIGVTALRM, &action, nullptr);
}
/// Runs before the constructors of every library, preloaded ones too.
[[gnu::section(".preinit_array"), gnu::used]] void (*const before_libraries)(int, char**,
                                                                             char**) = &install_early;

TEST(Signals, AHandlerIsOlderThanTheLibrary) {
  Partner far;
  Fd fd = connect_to(there(far.port));
  struct sigaction found {};
  ASSERT_EQ(sigaction(SIGVTALRM, nullptr, &found), 0);
  EXPECT_EQ(found.sa_handler, on_early);
  EXPECT_EQ(found.sa_flags & (SA_RESTART | SA_SIGINFO), SA_RESTART);
  early_socket = fd;
  const itimerval often{{0, 300}, {0, 300}};
  setitimer(ITIMER_VIRTUAL, &often, nullptr);
  char buffer[64];
  pollfd mine{fd, POLLIN, 0};
  for (int i = 0; early_runs < 100 && i < 10'000'000; ++i)
    (void)recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
  const itimerval never{};
  setitimer(ITIMER_VIRTUAL, &never, nullptr);
  early_socket = -1;
  EXPECT_GE(early_runs, 100);
  EXPECT_EQ(early_errors, 0);
  EXPECT_EQ(poll(&mine, 1, 0), 0);
}

struct Blocking {
  int fd, full, set, listener, unanswered;
  Address nobody;
};

struct BlockingCall {
  const char* name;
  void (*call)(const Blocking&);
};

/// Every call that may block, on sockets where it does.
const BlockingCall kBlockingCalls[] = {
    {"recv",
     [](const Blocking& b) {
       char c;
       recv(b.fd, &c, 1, 0);
     }},
    {"recvfrom",
     [](const Blocking& b) {
       char c;
       recvfrom(b.fd, &c, 1, 0, nullptr, nullptr);
     }},
    {"recvmsg",
     [](const Blocking& b) {
       msghdr m{};
       char c;
       iovec v{&c, 1};
       m.msg_iov = &v;
       m.msg_iovlen = 1;
       recvmsg(b.fd, &m, 0);
     }},
    {"recvmmsg",
     [](const Blocking& b) {
       mmsghdr m{};
       char c;
       iovec v{&c, 1};
       m.msg_hdr.msg_iov = &v;
       m.msg_hdr.msg_iovlen = 1;
       recvmmsg(b.fd, &m, 1, 0, nullptr);
     }},
    {"read",
     [](const Blocking& b) {
       char c;
       (void)!read(b.fd, &c, 1);
     }},
    {"readv",
     [](const Blocking& b) {
       char c;
       iovec v{&c, 1};
       (void)!readv(b.fd, &v, 1);
     }},
    {"send", [](const Blocking& b) { send(b.full, "x", 1, MSG_NOSIGNAL); }},
    {"sendto", [](const Blocking& b) { sendto(b.full, "x", 1, MSG_NOSIGNAL, nullptr, 0); }},
    {"sendmsg",
     [](const Blocking& b) {
       msghdr m{};
       char c = 0;
       iovec v{&c, 1};
       m.msg_iov = &v;
       m.msg_iovlen = 1;
       sendmsg(b.full, &m, MSG_NOSIGNAL);
     }},
    {"sendmmsg",
     [](const Blocking& b) {
       mmsghdr m{};
       char c = 0;
       iovec v{&c, 1};
       m.msg_hdr.msg_iov = &v;
       m.msg_hdr.msg_iovlen = 1;
       sendmmsg(b.full, &m, 1, MSG_NOSIGNAL);
     }},
    {"write", [](const Blocking& b) { (void)!write(b.full, "x", 1); }},
    {"writev",
     [](const Blocking& b) {
       char c = 0;
       iovec v{&c, 1};
       (void)!writev(b.full, &v, 1);
     }},
    {"accept", [](const Blocking& b) { accept(b.listener, nullptr, nullptr); }},
    {"accept4", [](const Blocking& b) { accept4(b.listener, nullptr, nullptr, 0); }},
    {"connect", [](const Blocking& b) { connect(b.unanswered, b.nobody.raw(), b.nobody.size); }},
    {"poll",
     [](const Blocking& b) {
       pollfd p{b.fd, POLLIN, 0};
       poll(&p, 1, -1);
     }},
    {"ppoll",
     [](const Blocking& b) {
       pollfd p{b.fd, POLLIN, 0};
       ppoll(&p, 1, nullptr, nullptr);
     }},
    {"select",
     [](const Blocking& b) {
       fd_set s;
       FD_ZERO(&s);
       FD_SET(b.fd, &s);
       select(b.fd + 1, &s, nullptr, nullptr, nullptr);
     }},
    {"pselect",
     [](const Blocking& b) {
       fd_set s;
       FD_ZERO(&s);
       FD_SET(b.fd, &s);
       pselect(b.fd + 1, &s, nullptr, nullptr, nullptr, nullptr);
     }},
    {"epoll_wait",
     [](const Blocking& b) {
       epoll_event e;
       epoll_wait(b.set, &e, 1, -1);
     }},
    {"epoll_pwait",
     [](const Blocking& b) {
       epoll_event e;
       epoll_pwait(b.set, &e, 1, -1, nullptr);
     }},
    {"epoll_pwait2",
     [](const Blocking& b) {
       epoll_event e;
       epoll_pwait2(b.set, &e, 1, nullptr, nullptr);
     }},
};

struct Cancelled {
  const BlockingCall* call;
  const Blocking* on;
  int type;
  std::atomic<pid_t> id{0};
};

const std::pair<int, bool> kCancellations[] = {{PTHREAD_CANCEL_DEFERRED, false},
                                               {PTHREAD_CANCEL_DEFERRED, true},
                                               {PTHREAD_CANCEL_ASYNCHRONOUS, false},
                                               {PTHREAD_CANCEL_ASYNCHRONOUS, true}};

TEST(Threads, ABlockedCallIsCancelled) {
#ifdef __SANITIZE_THREAD__
  // A thread that is cancelled in a call which gcc 12's ThreadSanitizer intercepts (ppoll(), accept4()) stays
  // within the interceptor for it, where it takes no notice of atomics: the lock's, too. It finds races that
  // are none.
  GTEST_SKIP();
#endif
  Partner far, deaf;
  Fd fd = connect_to(there(far.port)), full = connect_to(there(deaf.port)), listener = listen_at(here());
  Fd unanswered = tcp_socket();
  Fd set(epoll_create1(0));
  epoll_event event{};
  event.events = EPOLLIN;
  ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
  fill(full);
  // An address of the network that no host has; another for each repetition, whose resolution fails later.
  static uint32_t repetition = 0;
  Address nobody = there(9);
  reinterpret_cast<sockaddr_in*>(nobody.raw())->sin_addr.s_addr |= htonl(0xc0 + 4 * (repetition++ % 15));
  const Blocking on{fd, full, set, listener, unanswered, nobody};
  for (const BlockingCall& call : kBlockingCalls)
    for (const auto& [type, asleep] : kCancellations) {
      Cancelled one{&call, &on, type};
      pthread_t thread;
      ASSERT_EQ(pthread_create(
                    &thread, nullptr,
                    [](void* argument) -> void* {
                      auto* c = static_cast<Cancelled*>(argument);
                      pthread_setcanceltype(c->type, nullptr);
                      c->id = gettid();
                      c->call->call(*c->on);
                      return nullptr;
                    },
                    &one),
                0);
      if (asleep) until_asleep(one.id);
      pthread_cancel(thread);
      void* result = nullptr;
      ASSERT_EQ(pthread_join(thread, &result), 0);
      EXPECT_EQ(result, PTHREAD_CANCELED) << call.name;
    }
  far.say("send x");  // nothing is held, nobody is missed
  EXPECT_EQ(epoll_wait(set, &event, 1, 20000), 1);
  char byte;
  EXPECT_EQ(recv(fd, &byte, 1, 0), 1);
}

TEST(Threads, IsCancelledInTheMidstOfCalls) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP();  // as above
#endif
  Partner far;
  Fd fd = connect_to(there(far.port));
  struct Busy {  // no destructors in the thread: it is unwound from wherever it is
    int fd, type;
    std::atomic<int> calls{0};
  };
  for (int i = 0; i < 200; ++i) {
    Busy busy{fd, i % 2 == 0 ? PTHREAD_CANCEL_ASYNCHRONOUS : PTHREAD_CANCEL_DEFERRED};
    pthread_t thread;
    ASSERT_EQ(pthread_create(
                  &thread, nullptr,
                  [](void* argument) -> void* {
                    auto* b = static_cast<Busy*>(argument);
                    pthread_setcanceltype(b->type, nullptr);
                    for (;; ++b->calls) {
                      char byte;
                      pollfd p{b->fd, POLLIN, 0};
                      recv(b->fd, &byte, 1, MSG_DONTWAIT);
                      poll(&p, 1, 0);
                      msghdr message{};
                      sendmsg(b->fd, &message, 0);  // nothing
                      close(socket(AF_INET, SOCK_STREAM, 0));
                    }
                    return nullptr;
                  },
                  &busy),
              0);
    const int enough = i % 20;
    while (busy.calls < enough) sched_yield();
    pthread_cancel(thread);
    void* result = nullptr;
    ASSERT_EQ(pthread_join(thread, &result), 0);
    EXPECT_EQ(result, PTHREAD_CANCELED);
  }
  far.say("send x");  // nothing is held
  char byte;
  EXPECT_EQ(recv(fd, &byte, 1, 0), 1);
}

TEST(Threads, TheTypeOfCancellationIsAsSet) {
  Partner far;
  Fd fd = connect_to(there(far.port));
  int old = -1;
  EXPECT_EQ(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old), 0);
  EXPECT_EQ(old, PTHREAD_CANCEL_DEFERRED);
  char byte;
  EXPECT_EQ(recv(fd, &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(pthread_setcanceltype(77, &old), EINVAL);
  EXPECT_EQ(pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &old), 0);
  EXPECT_EQ(old, PTHREAD_CANCEL_ASYNCHRONOUS);
}

TEST(Threads, OneSetManyWaiters) {
  Partner far;
  Fd fd = connect_to(there(far.port));
  Fd set(epoll_create1(0));
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET | EPOLLONESHOT;
  ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
  constexpr size_t kSize = 200000;
  const std::string sent = pattern(kSize);
  std::atomic<size_t> received{0};
  std::atomic<bool> wrong{false};
  std::atomic<int> holders{0};
  std::vector<std::thread> waiters;
  for (int i = 0; i < 4; ++i)
    waiters.emplace_back([&] {
      std::string part(5000, '\0');
      while (received < kSize) {
        epoll_event got{};
        if (epoll_wait(set, &got, 1, 100) <= 0) continue;
        if (++holders != 1) wrong = true;  // ONESHOT: one thread at a time
        ssize_t n;
        while ((n = recv(fd, part.data(), part.size(), MSG_DONTWAIT)) > 0) {
          if (part.compare(0, static_cast<size_t>(n), sent, received, static_cast<size_t>(n)) != 0)
            wrong = true;
          received += static_cast<size_t>(n);
        }
        --holders;
        got.events = EPOLLIN | EPOLLET | EPOLLONESHOT;
        epoll_ctl(set, EPOLL_CTL_MOD, fd, &got);
      }
    });
  far.say("echo " + std::to_string(kSize));
  write_all(fd, sent);
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(received, kSize);
  EXPECT_FALSE(wrong);
}

TEST(Threads, ShutdownWakesABlockedRead) {
  Partner far;
  Fd fd = connect_to(there(far.port));
  std::atomic<bool> about{false};
  std::thread reader([&] {
    char byte;
    about = true;
    EXPECT_EQ(recv(fd, &byte, 1, 0), 0);
  });
  while (!about) std::this_thread::yield();
  shutdown(fd, SHUT_RDWR);
  reader.join();
}

}  // namespace
