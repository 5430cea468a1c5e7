#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>

#include <thread>

#include "tests/engine/fixture.h"

namespace accel::test {
namespace {

Woke wait_once(WaitRequest& request) {
  Pass pass{*world().engine};
  return world().engine->wait(pass, request);
}

/// A thread that waits, and the flag it waits for.
struct Waiter {
  std::atomic<bool> flag{false};
  std::atomic<int> woke{-1};
  std::atomic<pid_t> tid{0};
  WaitRequest request;
  std::thread thread;
  bool spin = false;

  void start(Duration limit = kGuard) {
    start_for([](void* f) { return static_cast<std::atomic<bool>*>(f)->load(); }, &flag, limit);
  }
  void start_for(bool (*condition)(void*), void* context, Duration limit = kGuard) {
    request.condition = condition;
    request.context = context;
    request.may_spin = spin;
    thread = std::thread([this, limit] {
      tid = static_cast<pid_t>(syscall(SYS_gettid));
      Pass pass{*world().engine};
      request.deadline = pass.now() + limit;
      woke = static_cast<int>(world().engine->wait(pass, request));
    });
  }
  void until_asleep() {
    const auto& w = world().engine->process();
    EXPECT_TRUE(comes_true([&] { return w.sleepers.asleep_count() > 0; }));
  }
  Woke join() {
    thread.join();
    return static_cast<Woke>(woke.load());
  }
};

TEST(Wait, ReadyAtOnce) {
  WaitRequest r;
  r.condition = [](void*) { return true; };
  EXPECT_EQ(wait_once(r), Woke::kReady);
}

TEST(Wait, Deadline) {
  WaitRequest r;
  r.deadline = clock_now() + 5ms;
  EXPECT_EQ(wait_once(r), Woke::kDeadline);
  EXPECT_GE(clock_now(), r.deadline);
  r.deadline = clock_now() - 1s;
  EXPECT_EQ(wait_once(r), Woke::kDeadline);
}

TEST(Wait, AnotherThreadWakes) {
  for (bool spin : {false, true}) {
    Waiter waiter;
    waiter.spin = spin;
    waiter.start();
    if (!spin) waiter.until_asleep();
    {
      Pass pass{*world().engine};
      waiter.flag = true;
      world().engine->touch();
    }
    EXPECT_EQ(waiter.join(), Woke::kReady);
  }
}

TEST(Wait, OnlyThoseWhoseConditionHoldsWake) {
  Waiter first, second;
  first.start();
  second.start();
  const auto& w = world().engine->process();
  ASSERT_TRUE(comes_true([&] { return w.sleepers.asleep_count() == 2; }));
  {
    Pass pass{*world().engine};
    first.flag = true;
    world().engine->touch();
  }
  EXPECT_EQ(first.join(), Woke::kReady);
  EXPECT_EQ(second.woke.load(), -1);
  {
    Pass pass{*world().engine};
    second.flag = true;
    world().engine->touch();
  }
  EXPECT_EQ(second.join(), Woke::kReady);
}

TEST(Wait, KernelDescriptor) {
  const int fd = eventfd(0, EFD_CLOEXEC);
  pollfd p{fd, POLLIN, 0};
  Waiter waiter;
  waiter.request.kernel_fds = {&p, 1};
  waiter.start();
  waiter.until_asleep();
  const uint64_t one = 1;
  ASSERT_EQ(write(fd, &one, sizeof(one)), 8);
  EXPECT_EQ(waiter.join(), Woke::kKernel);
  EXPECT_EQ(p.revents, POLLIN);
  // Ready before the wait begins: found while polling as well as asleep.
  for (bool spin : {false, true}) {
    WaitRequest r;
    r.kernel_fds = {&p, 1};
    r.may_spin = spin;
    EXPECT_EQ(wait_once(r), Woke::kKernel);
  }
  close(fd);
}

// Several threads that wait for a kernel descriptor as well: one whose number is used again is not mistaken.
TEST(Wait, KernelDescriptorsOfSeveralThreads) {
  Waiter other;  // makes the process one of several sleepers
  other.start();
  other.until_asleep();
  int fd = eventfd(0, EFD_CLOEXEC);
  const int number = fd;
  const uint64_t one = 1;
  for (int i = 0; i < 10; ++i) {
    pollfd p{fd, POLLIN, 0};
    WaitRequest r;
    r.kernel_fds = {&p, 1};
    r.may_spin = false;
    r.deadline = clock_now() + 1ms;
    EXPECT_EQ(wait_once(r), Woke::kDeadline);
    ASSERT_EQ(write(fd, &one, sizeof(one)), 8);
    r.deadline = clock_now() + kGuard;
    EXPECT_EQ(wait_once(r), Woke::kKernel);
    EXPECT_EQ(p.revents, POLLIN);
    close(fd);
    fd = eventfd(0, EFD_CLOEXEC);
    EXPECT_EQ(fd, number);
    WaitRequest without;
    without.deadline = clock_now() + 1ms;
    EXPECT_EQ(wait_once(without), Woke::kDeadline);
  }
  close(fd);
  {
    Pass pass{*world().engine};
    other.flag = true;
    world().engine->touch();
  }
  EXPECT_EQ(other.join(), Woke::kReady);
}

using Handler = void(int, siginfo_t*, void*);
void restarting_handler(int number, siginfo_t* info, void* context) {
  run_handler(number, info, context, true);
}
void plain_handler(int number, siginfo_t* info, void* context) { run_handler(number, info, context, false); }

void set_handler(int number, Handler* handler) {
  struct sigaction action {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO;
  sigaction(number, &action, nullptr);
}

TEST(Wait, SignalEndsSleep) {
  set_handler(SIGUSR1, plain_handler);
  Waiter waiter;
  waiter.start();
  waiter.until_asleep();
  pthread_kill(waiter.thread.native_handle(), SIGUSR1);
  EXPECT_EQ(waiter.join(), Woke::kSignal);
}

// However the signal falls: while polling, between the last look and the sleep, or asleep, it is not lost.
TEST(Wait, SignalIsNeverLost) {
  set_handler(SIGUSR1, plain_handler);
  for (int i = 0; i < 300; ++i) {
    Waiter waiter;
    waiter.spin = i % 2;
    waiter.start();
    ASSERT_TRUE(comes_true([&] { return waiter.tid.load() != 0; }));
    // Signals before the wait begins belong to nobody: send until it has ended.
    while (waiter.woke.load() < 0) {
      pthread_kill(waiter.thread.native_handle(), SIGUSR1);
      usleep(static_cast<useconds_t>(i % 7) * 20);
    }
    EXPECT_EQ(waiter.join(), Woke::kSignal);
  }
}

TEST(Wait, OneSignalWhileWaitingIsEnough) {
  set_handler(SIGUSR1, plain_handler);
  for (int i = 0; i < 200; ++i) {
    Waiter waiter;
    std::atomic<bool> in_wait{false};
    struct Seen {
      std::atomic<bool>* in_wait;
    } seen{&in_wait};
    // The condition is looked at after the wait has begun: from then on a signal counts.
    waiter.request.condition = [](void* s) {
      static_cast<Seen*>(s)->in_wait->store(true);
      return false;
    };
    waiter.request.context = &seen;
    waiter.request.may_spin = i % 2;
    waiter.thread = std::thread([&] {
      Pass pass{*world().engine};
      waiter.request.deadline = pass.now() + kGuard;
      waiter.woke = static_cast<int>(world().engine->wait(pass, waiter.request));
    });
    while (!in_wait.load()) {
    }
    for (int spin = 0; spin < i * 5; ++spin) pause_cpu();
    pthread_kill(waiter.thread.native_handle(), SIGUSR1);
    EXPECT_EQ(waiter.join(), Woke::kSignal);
  }
}

TEST(Wait, RestartsOnlyWhenAllHandlersDo) {
  set_handler(SIGUSR1, plain_handler);
  set_handler(SIGUSR2, restarting_handler);
  for (bool plain : {false, true}) {
    std::atomic<int> restarts{-1};
    Waiter waiter;
    waiter.request.condition = [](void*) { return false; };
    waiter.thread = std::thread([&] {
      Pass pass{*world().engine};
      waiter.request.may_spin = false;
      waiter.woke = static_cast<int>(world().engine->wait(pass, waiter.request));
      restarts = Engine::signal_restarts();
    });
    waiter.until_asleep();
    pthread_kill(waiter.thread.native_handle(), plain ? SIGUSR1 : SIGUSR2);
    EXPECT_EQ(waiter.join(), Woke::kSignal);
    EXPECT_EQ(restarts.load(), plain ? 0 : 1);
  }
}

TEST(Wait, MaskIsInForceWhileAsleep) {
  set_handler(SIGUSR1, plain_handler);
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  pthread_kill(pthread_self(), SIGUSR1);  // pending; the wait's mask lets it through
  sigset_t open = before;
  sigdelset(&open, SIGUSR1);
  WaitRequest r;
  r.sigmask = &open;
  r.deadline = clock_now() + kGuard;
  EXPECT_EQ(wait_once(r), Woke::kSignal);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST(Wait, CancellationLeavesEverythingInOrder) {
  for (int i = 0; i < 20; ++i) {
    Waiter waiter;
    waiter.start();
    waiter.until_asleep();
    pthread_cancel(waiter.thread.native_handle());
    waiter.thread.join();
    EXPECT_EQ(waiter.woke.load(), -1);
    EXPECT_EQ(world().engine->process().sleepers.asleep_count(), 0u);
    WaitRequest r;
    r.deadline = clock_now() + 1ms;
    EXPECT_EQ(wait_once(r), Woke::kDeadline);
  }
}

std::atomic<int> nested{-1};
void waiting_handler(int, siginfo_t*, void*) {
  Engine::signal_ran(true);
  WaitRequest r;
  r.deadline = clock_now() + 1ms;
  if (!Engine::inside()) nested = static_cast<int>(wait_once(r));
}

TEST(Wait, HandlerMayWaitWhileItsThreadWaits) {
  set_handler(SIGUSR2, waiting_handler);
  Waiter waiter;
  waiter.start();
  waiter.until_asleep();
  pthread_kill(waiter.thread.native_handle(), SIGUSR2);
  EXPECT_EQ(waiter.join(), Woke::kSignal);
  EXPECT_EQ(static_cast<Woke>(nested.load()), Woke::kDeadline);
}

TEST(Wait, DataWakes) {
  World& w = world();
  for (int i = 0; i < 50; ++i) {
    Connected c = connect(90);
    ASSERT_TRUE(c.near && c.far);
    std::atomic<bool> got{false};
    std::thread reader([&] {
      got = wait_for([&] { return (w.engine->stack().tcp().readiness(*c.near) & kReadable) != 0; });
    });
    if (i % 2) usleep(200);
    w.far.call([&](Stack& s, Instant now) {
      char text[] = "hello";
      iovec v{text, 5};
      EXPECT_TRUE(s.tcp().send(*c.far, {&v, 1}, {}, now).ok());
    });
    reader.join();
    EXPECT_TRUE(got.load());
    Pass pass{*w.engine};
    pass.stack().tcp().close(c.near, true, pass.now());
    w.far.call([&](Stack& s, Instant now) { s.tcp().close(c.far, true, now); });
  }
}

/// A thread that waits for text, and has the lock again only when `ends` has ended its sleep and the text has
/// come behind `before` frames that are nobody's. Returns what its wait returned.
Woke woken_with_text_in_the_ring(size_t before, WaitRequest request, void (*ends)(Waiter& waiter, int fd)) {
  World& w = world();
  Connected c = connect(92);
  Waiter waiter;
  waiter.request = request;
  waiter.start_for(
      [](void* conn) {
        return (world().engine->stack().tcp().readiness(*static_cast<TcpConn*>(conn)) & kReadable) != 0;
      },
      c.near);
  waiter.until_asleep();
  {
    const Pass pass{*w.engine, Pass::Polling::kNo};
    ends(waiter, request.kernel_fds.empty() ? -1 : request.kernel_fds[0].fd);
    for (size_t i = 0; i < before; ++i) w.far.to_near(Frame(60));
    w.far.call([&](Stack& s, Instant now) {
      char text[] = "hello";
      iovec v{text, 5};
      EXPECT_TRUE(s.tcp().send(*c.far, {&v, 1}, {}, now).ok());
    });
  }
  const Woke woke = waiter.join();
  Pass pass{*w.engine};
  pass.stack().tcp().close(c.near, true, pass.now());
  w.far.call([&](Stack& s, Instant now) { s.tcp().close(c.far, true, now); });
  return woke;
}

constexpr size_t kFramesInTheWay[] = {0, 300, 1000};

// As in fs/eventpoll.c: what is ready comes before EINTR.
TEST(Wait, TextInTheRingComesBeforeASignal) {
  set_handler(SIGUSR1, plain_handler);
  for (const size_t before : kFramesInTheWay) {
    const Woke woke = woken_with_text_in_the_ring(
        before, {}, [](Waiter& waiter, int) { pthread_kill(waiter.thread.native_handle(), SIGUSR1); });
    EXPECT_EQ(woke, Woke::kReady) << before;
  }
}

TEST(Wait, TextInTheRingComesBeforeASignalWithoutTrampoline) {
  static std::atomic<bool> ran;
  set_handler(SIGUSR1, [](int, siginfo_t*, void*) { ran = true; });
  for (const size_t before : kFramesInTheWay) {
    ran = false;
    const Woke woke = woken_with_text_in_the_ring(before, {}, [](Waiter& waiter, int) {
      pthread_kill(waiter.thread.native_handle(), SIGUSR1);
      EXPECT_TRUE(comes_true([] { return ran.load(); }));
    });
    EXPECT_EQ(woke, Woke::kReady) << before;
  }
}

// A program that the kernel's descriptor tells to end (nginx's channel) would reset a connection whose text
// it has not seen.
TEST(Wait, TextInTheRingComesBeforeAKernelDescriptor) {
  const int fd = eventfd(0, EFD_CLOEXEC);
  pollfd kernel[] = {{fd, POLLIN, 0}, {-1, 0, 0}};
  for (const size_t descriptors : {1, 2})  // asleep on a set, and in ppoll()
    for (const size_t before : kFramesInTheWay) {
      WaitRequest request;
      request.kernel_fds = std::span(kernel).first(descriptors);
      const Woke woke = woken_with_text_in_the_ring(before, request, [](Waiter&, int descriptor) {
        const uint64_t one = 1;
        EXPECT_EQ(write(descriptor, &one, sizeof one), 8);
      });
      EXPECT_EQ(woke, Woke::kReady) << before;
      uint64_t count;
      EXPECT_EQ(read(fd, &count, sizeof count), 8);
    }
  close(fd);
}

// Frames that never end do not keep the kernel's descriptors, signals and deadlines out.
TEST(Wait, FramesWithoutEndDoNotHoldAWait) {
  World& w = world();
  const int fd = eventfd(1, EFD_CLOEXEC);
  pollfd p{fd, POLLIN, 0};
  w.port->floods = true;
  for (const bool spin : {false, true}) {
    WaitRequest request;
    request.kernel_fds = {&p, 1};
    request.may_spin = spin;
    request.deadline = clock_now() + kGuard;
    EXPECT_EQ(wait_once(request), Woke::kKernel);
    request.kernel_fds = {};
    request.deadline = clock_now() + 5ms;
    EXPECT_EQ(wait_once(request), Woke::kDeadline);
    EXPECT_LT(clock_now(), request.deadline + 1s);
  }
  w.port->floods = false;
  close(fd);
}

// While one thread sleeps, another's frames leave when it has let go of the lock.
TEST(Wait, TheDeviceIsToldWithoutTheLock) {
  World& w = world();
  Connected c = connect(92);
  ASSERT_TRUE(c.near && c.far);
  for (bool refused : {false, true}) {
    Waiter waiter;
    waiter.start();
    waiter.until_asleep();
    std::atomic<int> told{0};
    w.port->on_tell = [&] {
      std::thread([&] { Pass pass{*w.engine, Pass::Polling::kNo}; }).join();
      return told.fetch_add(1) > 0 || !refused;
    };
    const int before = w.far.frames_received;
    {
      Pass pass{*w.engine};
      char text[] = "hello";
      iovec v{text, 5};
      EXPECT_TRUE(pass.stack().tcp().send(*c.near, {&v, 1}, {}, pass.now()).ok());
    }
    EXPECT_GT(told, 0);
    EXPECT_TRUE(comes_true([&] { return w.far.frames_received > before; }));
    {
      Pass pass{*w.engine};
      w.port->on_tell = nullptr;
      w.port->defer_telling(false);
      waiter.flag = true;
      w.engine->touch();
    }
    EXPECT_EQ(waiter.join(), Woke::kReady);
  }
  Pass pass{*w.engine};
  pass.stack().tcp().close(c.near, true, pass.now());
}

int spins_in(SpinPolicy& policy, int waits, bool hit) {
  int spins = 0;
  for (int i = 0; i < waits; ++i)
    if (policy.share() > 0) {
      ++spins;
      policy.record(hit);
    }
  return spins;
}

// A thread that has always been back soon is relied on to poll for the one that sleeps. When it stays away,
// the one asleep gets its data all the same.
TEST(Wait, ThreadThatStaysAwayIsReplaced) {
  World& w = world();
  auto& process = w.engine->process();
  Connected c = connect(91);
  ASSERT_TRUE(c.near && c.far);
  std::atomic<bool> got{false};
  std::thread reader(
      [&] { got = wait_for([&] { return (w.engine->stack().tcp().readiness(*c.near) & kReadable) != 0; }); });
  EXPECT_TRUE(comes_true([&] { return process.sleepers.asleep_count() > 0; }));
  const int fd = eventfd(1, EFD_CLOEXEC);
  EXPECT_TRUE(comes_true([&] {
    for (int i = 0; i < 20; ++i) {
      pollfd p{fd, POLLIN, 0};
      WaitRequest r;
      r.kernel_fds = {&p, 1};
      r.may_spin = false;
      EXPECT_EQ(wait_once(r), Woke::kKernel);
    }
    Pass pass{*w.engine, Pass::Polling::kNo};
    return process.sleepers.out_count() > 0 && process.sleepers.nobody_in_charge();
  }));
  close(fd);
  w.far.call([&](Stack& s, Instant now) {
    char text[] = "hello";
    iovec v{text, 5};
    EXPECT_TRUE(s.tcp().send(*c.far, {&v, 1}, {}, now).ok());
  });
  reader.join();
  EXPECT_TRUE(got);
  EXPECT_TRUE(comes_true([&] {  // the reader may have looked by chance before
    process.lock_in();
    const bool all_in = process.sleepers.out_count() == 0;
    process.unlock_out();
    return all_in;
  }));
  Pass pass{*w.engine};
  pass.stack().tcp().close(c.near, true, pass.now());
}

TEST(Wait, SpinPolicyFollowsItsHits) {
  SpinPolicy policy;
  EXPECT_EQ(spins_in(policy, 100, true), 100);
  policy.record(false);  // one pause does not end it
  EXPECT_EQ(policy.share(), 1);
  spins_in(policy, 100, false);
  EXPECT_LT(spins_in(policy, 10000, false), 50);
  // Answers that come quickly again are found out, and then it polls always.
  spins_in(policy, 1000, true);
  EXPECT_EQ(spins_in(policy, 100, true), 100);
}

}  // namespace
}  // namespace accel::test
