#include <sys/wait.h>

#include <algorithm>

#include "tests/engine/fixture.h"

namespace accel::test {
namespace {

constexpr size_t kText = 100;

/// The peer sends so many bytes, and hears in the end that they have come.
bool acknowledged(World& w, TcpConn& far) {
  char text[kText] = "x";
  bool sent = false;
  w.far.call([&](Stack& s, Instant now) {
    iovec v{text, sizeof(text)};
    sent = s.tcp().send(far, {&v, 1}, {}, now).ok();
  });
  return sent && comes_true([&] {
           bool acked = false;
           w.far.call([&](Stack& s, Instant) { acked = s.tcp().unacked_bytes(far) == 0; });
           return acked;
         });
}

// Nobody makes a pass: housekeeping notices and acknowledges in the application's stead.
TEST(Life, HousekeepingServesForAnAbsentApplication) {
  World& w = world();
  Connected c = connect(100);
  ASSERT_TRUE(c.near && c.far);
  const uint64_t passes = w.engine->process().passes();
  EXPECT_TRUE(acknowledged(w, *c.far));
  EXPECT_EQ(w.engine->process().passes(), passes);
  EXPECT_GT(w.engine->process().count(Counter::housekeeping_polls), 0u);
  Pass pass{*w.engine};
  EXPECT_EQ(pass.stack().tcp().readable_bytes(*c.near), kText);
  pass.stack().tcp().close(c.near, true, pass.now());
}

// One that has long been there at each look is looked for less often, and served as well once it stops.
TEST(Life, HousekeepingServesForATrustedApplication) {
  World& w = world();
  Connected c = connect(102);
  ASSERT_TRUE(c.near && c.far);
  const auto over = std::chrono::steady_clock::now() + 1500ms;
  while (std::chrono::steady_clock::now() < over) {
    { const Pass pass{*w.engine}; }
    usleep(500);
  }
  const uint64_t passes = w.engine->process().passes();
  const uint64_t polls = w.engine->process().count(Counter::housekeeping_polls);
  EXPECT_TRUE(acknowledged(w, *c.far));
  EXPECT_EQ(w.engine->process().passes(), passes);
  EXPECT_GT(w.engine->process().count(Counter::housekeeping_polls), polls);
  Pass pass{*w.engine};
  EXPECT_EQ(pass.stack().tcp().readable_bytes(*c.near), kText);
  pass.stack().tcp().close(c.near, true, pass.now());
}

void write_setting(const char* path, const char* value) {
  FILE* f = fopen(path, "w");
  ASSERT_TRUE(f);
  fputs(value, f);
  ASSERT_EQ(fclose(f), 0);
}

/// Whether new connections come to have SACK, or not to have it.
bool sack_becomes(World& w, bool expected) {
  return comes_true([&] {
    usleep(50'000);  // each look takes a port
    Connected c = connect(101);
    if (!c.near) return false;
    Pass pass{*w.engine};
    const bool has = pass.stack().tcp().info(*c.near, pass.now()).sack;
    pass.stack().tcp().close(c.near, true, pass.now());
    return has == expected;
  });
}

// As the kernel does, though seconds later: nothing tells of it.
TEST(Life, FollowsTheHostsSettings) {
  World& w = world();
  EXPECT_TRUE(sack_becomes(w, true));
  constexpr const char* kSack = "/proc/sys/net/ipv4/tcp_sack";
  write_setting(kSack, "0");
  EXPECT_TRUE(sack_becomes(w, false));
  write_setting(kSack, "1");
  EXPECT_TRUE(sack_becomes(w, true));  // the tests that follow want it
}

/// How late the probe for what is sent now leaves, while no thread makes passes.
Duration lateness(World& w, TcpConn& near) {
  auto frames = [&] { return w.engine->process().count(Counter::tx_frames); };
  Instant due;
  {
    Pass pass{*w.engine};
    char text[5 * 1448] = "x";
    const iovec v{text, sizeof(text)};
    EXPECT_TRUE(pass.stack().tcp().send(near, {&v, 1}, {}, pass.now()));
    pass.stack().flush(pass.now());
    const TcpInfo info = pass.stack().tcp().info(near, pass.now());
    due = pass.now() + std::min(1us * (2 * int64_t{info.rtt_us} + 2000), 1us * int64_t{info.rto_us});
  }
  const uint64_t before = frames();
  EXPECT_TRUE(comes_true([&] { return frames() > before; }));
  return clock_now() - due;
}

// The thread that sent computes, and housekeeping sleeps on the ports: it is told of the earlier deadline.
TEST(Life, WhatIsLostIsProbedForInTimeThoughNoThreadWaits) {
  World& w = world();
  Connected c = connect(104);
  ASSERT_TRUE(c.near && c.far);
  EXPECT_TRUE(acknowledged(w, *c.far));
  std::vector<Duration> late;
  for (int i = 0; i < 9; ++i) {
    w.far.deaf = true;
    late.push_back(lateness(w, *c.near));
    w.far.deaf = false;
    ASSERT_TRUE(comes_true([&] {
      Pass pass{*w.engine};
      return pass.stack().tcp().all_acked(*c.near);
    }));
    ASSERT_TRUE(acknowledged(w, *c.far));  // housekeeping serves
  }
  std::sort(late.begin(), late.end());
  EXPECT_LT(late[late.size() / 2], 100ms) << "and not with its next look for other reasons, within 500 ms";
  Pass pass{*w.engine};
  pass.stack().tcp().close(c.near, true, pass.now());
}

// What the control thread sleeps on is never a descriptor that has been closed.
TEST(Life, ADescriptorThatGoesWhileHousekeepingSleepsOnIt) {
  World& w = world();
  Connected c = connect(102);
  ASSERT_TRUE(c.near && c.far);
  const uint64_t polls = w.engine->process().count(Counter::housekeeping_polls);
  ASSERT_TRUE(comes_true([&] { return w.engine->process().count(Counter::housekeeping_polls) > polls; }));
  {
    Pass pass{*w.engine};
    w.port->change_descriptor();
  }
  ASSERT_TRUE(
      sh("ip neigh replace 10.99.0.61 lladdr 02:00:00:00:00:61 dev near0 nud permanent"));  // wakes it
  EXPECT_TRUE(acknowledged(w, *c.far));
  Pass pass{*w.engine};
  pass.stack().tcp().close(c.near, true, pass.now());
}

TEST(Life, FramesWaitForTheKernelToResolveTheirNeighbour) {
  World& w = world();
  const Endpoint remote{v4(10, 99, 0, 60), 9};
  const int before = w.far.frames_received.load();
  TcpConn* conn = nullptr;
  {
    Pass pass{*w.engine};
    PathChoice choice = w.engine->choose(pass, {Role::kTcpClient, {}, remote, 0, 0, 0});
    ASSERT_TRUE(choice.accelerated());
    auto opened = w.engine->connect(pass, choice, {kNear, 30000}, remote, {}, &w);
    ASSERT_TRUE(opened.ok());
    conn = *opened;
  }
  EXPECT_EQ(w.far.frames_received.load(), before);
  ASSERT_TRUE(sh("ip neigh replace 10.99.0.60 lladdr 02:00:00:00:00:60 dev near0 nud permanent"));
  EXPECT_TRUE(comes_true([&] { return w.far.frames_received.load() > before; }));
  Pass pass{*w.engine};
  pass.stack().tcp().close(conn, true, pass.now());
}

TEST(Life, ForkedChildHasNoEngineAndTheParentCarriesOn) {
  World& w = world();
  Connected c = connect(101);
  ASSERT_TRUE(c.near && c.far);
  w.engine->before_fork();
  const pid_t child = fork();
  if (child == 0) {
    Engine::after_fork_in_child();
    _exit(Engine::get() == nullptr && !Engine::inside() ? 0 : 1);
  }
  w.engine->after_fork_in_parent();
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(w.port->steers({Protocol::kTcp, c.local, {kFar, 101}}));
  w.far.call([&](Stack& s, Instant now) {
    char byte = 'b';
    iovec v{&byte, 1};
    ASSERT_TRUE(s.tcp().send(*c.far, {&v, 1}, {}, now).ok());
  });
  EXPECT_TRUE(wait_for([&] { return (w.engine->stack().tcp().readiness(*c.near) & kReadable) != 0; }));
  Pass pass{*w.engine};
  pass.stack().tcp().close(c.near, true, pass.now());
}

TEST(Life, FinishDeliversWhatSendAccepted) {
  World& w = world();
  Connected c = connect(102);
  ASSERT_TRUE(c.near && c.far);
  {
    Pass pass{*w.engine};
    std::vector<char> data(50000, 'd');
    iovec v{data.data(), data.size()};
    auto sent = pass.stack().tcp().send(*c.near, {&v, 1}, {}, pass.now());
    ASSERT_TRUE(sent.ok());
    ASSERT_EQ(*sent, data.size());
    pass.stack().tcp().close(c.near, false, pass.now());
  }
  ASSERT_TRUE(wait_for([&] {
    bool all = false;
    w.far.call([&](Stack& s, Instant) { all = s.tcp().readable_bytes(*c.far) == 50000; });
    return all;
  }));
  w.far.call([&](Stack& s, Instant now) { s.tcp().close(c.far, true, now); });
  w.engine->finish(kGuard, true);
  Pass pass{*w.engine};
  EXPECT_EQ(pass.stack().tcp().lingering(), 0u);
}

}  // namespace
}  // namespace accel::test
