// How processes divide a local end among themselves, and how they talk about it.
#include "mlx5/shares.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>

#include "mlx5/listener_groups.h"

namespace accel::mlx5 {
namespace {

unsigned count(Shares set) { return static_cast<unsigned>(std::popcount(set)); }

TEST(Divide, AsEqualAsCanBeWithTheFewestMoves) {
  for (unsigned n = 1; n <= 40; ++n) {
    std::vector<ShareHolder> group(n);
    group[n / 2].held = kAllShares;
    const auto first = divide(group);
    EXPECT_EQ(count(first[n / 2]), (kShareCount + n - 1) / n) << "the one who has all keeps its part";
    for (unsigned i = 0; i < n; ++i) {
      EXPECT_TRUE(i == n / 2 || first[i] == 0) << "nothing is free yet";
      group[i].held = first[i];
    }
    const auto second = divide(group);
    Shares all = 0;
    for (const Shares s : second) {
      EXPECT_EQ(all & s, 0u);
      EXPECT_LE(count(s), (kShareCount + n - 1) / n);
      EXPECT_GE(count(s), kShareCount / n);
      all |= s;
    }
    EXPECT_EQ(all, kAllShares);
    for (unsigned i = 0; i < n; ++i) group[i].held = second[i];
    EXPECT_EQ(divide(group), second) << "then all stays";
  }
}

TEST(Divide, TheLeavingGiveAndTheUnheardKeep) {
  const ShareHolder listens{0x0000ffff}, leaves{0x00ff0000, false, false}, unheard{0xff000000, false, true};
  auto wanted = divide(std::array{listens, leaves, unheard});
  EXPECT_EQ(wanted[0], 0x0000ffffu) << "half of all: what the leaving has is not free yet";
  EXPECT_EQ(wanted[1], 0u);
  EXPECT_EQ(wanted[2], 0xff000000u);
  wanted = divide(std::array{listens, ShareHolder{0, false, false}});
  EXPECT_EQ(wanted[0], kAllShares);
  wanted = divide(std::array{leaves});
  EXPECT_EQ(wanted[0], leaves.held) << "nobody to give to";
}

/// Holds what it is told to.
struct Process : ListenerSharing::Holder {
  explicit Process(int scope, bool (*user_changes)() = nullptr) : groups(scope, user_changes) {
    groups.set_holder(this);
  }
  Shares hold(const FlowKey&, Shares wanted) override { return held = wanted; }
  bool join() {
    const bool first = groups.join(kLocal);
    held = first ? kAllShares : 0;
    return first;
  }
  static constexpr FlowKey kLocal{Protocol::kTcp, {IpAddress::v4(0x0a000001), 80}, {}};
  Shares held = 0;
  ListenerGroups groups;
};

int some_scope() { return 1'000'000 + getpid(); }

void settle(std::initializer_list<Process*> processes) {
  for (int i = 0; i < 10; ++i)
    for (Process* p : processes) p->groups.serve();
}

TEST(Groups, ShareGiveAndTakeOver) {
  Process a(some_scope()), b(some_scope()), c(some_scope());
  EXPECT_TRUE(a.join());
  EXPECT_FALSE(b.join());
  pollfd event{a.groups.event_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&event, 1, 0), 1) << "a sleeper is woken";
  settle({&a, &b});
  EXPECT_EQ(count(a.held), 16u);
  EXPECT_EQ(a.held | b.held, kAllShares);
  EXPECT_FALSE(c.join());
  settle({&a, &b, &c});
  EXPECT_EQ(a.held | b.held | c.held, kAllShares);
  EXPECT_EQ(count(a.held) + count(b.held) + count(c.held), kShareCount);
  EXPECT_GE(std::min({count(a.held), count(b.held), count(c.held)}), 10u);
  b.groups.leave(Process::kLocal);
  settle({&a, &c});
  EXPECT_EQ(count(a.held), 16u);
  EXPECT_EQ(a.held ^ c.held, kAllShares);
  a.groups.leave(Process::kLocal);  // who coordinated
  settle({&c});
  EXPECT_EQ(c.held, kAllShares);
  EXPECT_EQ(poll(&event, 1, 0), 0);
}

TEST(Groups, WhoListensNoMoreGives) {
  Process a(some_scope()), b(some_scope());
  a.join();
  a.groups.set_listening(Process::kLocal, false);
  EXPECT_EQ(a.held, kAllShares) << "alone";
  b.join();
  settle({&a, &b});
  EXPECT_EQ(a.held, 0u);
  EXPECT_EQ(b.held, kAllShares);
  a.groups.set_listening(Process::kLocal, true);
  settle({&a, &b});
  EXPECT_EQ(count(a.held), 16u);
  EXPECT_EQ(a.held ^ b.held, kAllShares);
}

/// A process that holds shares until it is killed; serves when told to.
struct Child {
  explicit Child(int scope, uid_t user = geteuid()) {
    EXPECT_EQ(pipe(ready), 0);
    pid = fork();
    if (pid != 0) return;
    (void)!setuid(user);
    Process me(scope);
    me.join();
    for (;;) {
      if (user != 0) (void)!write(ready[1], &me.held, sizeof(me.held));
      pollfd event{me.groups.event_fd(), POLLIN, 0};
      (void)poll(&event, 1, -1);
      me.groups.serve();
      (void)!write(ready[1], &me.held, sizeof(me.held));
    }
  }
  ~Child() {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  Shares told() const {
    Shares held = 0;
    (void)!read(ready[0], &held, sizeof(held));
    return held;
  }
  pid_t pid;
  int ready[2];
};

void serve_until(Process& p, unsigned shares) {
  while (count(p.held) != shares) {
    pollfd event{p.groups.event_fd(), POLLIN, 0};
    ASSERT_EQ(poll(&event, 1, 10'000), 1) << count(p.held);
    p.groups.serve();
  }
}

TEST(Groups, TheKilledLoseTheirs) {
  Process a(some_scope());
  a.join();
  {
    Child b(some_scope()), c(some_scope());
    serve_until(a, 11);
  }
  serve_until(a, kShareCount);
}

/// The coordinator and a member die together: what the member had is free only when it has ended.
TEST(Groups, AnotherTakesOverFromAKilledCoordinator) {
  auto coordinator = std::make_unique<Child>(some_scope());
  auto until_there = std::make_unique<Process>(some_scope());
  while (until_there->join()) {
    until_there->groups.leave(Process::kLocal);
    usleep(1000);
  }
  until_there->groups.leave(Process::kLocal);
  until_there.reset();
  Process a(some_scope());
  EXPECT_FALSE(a.join());
  serve_until(a, 16);
  {
    Child b(some_scope());
    serve_until(a, 11);
    while (count(b.told()) < 10) {
    }
    coordinator.reset();
    serve_until(a, 16);
  }
  serve_until(a, kShareCount);
}

/// Workers that have given up root, and one that is about to.
TEST(Groups, WhoIsRootForAMomentMoreSharesAfterwards) {
  if (geteuid() != 0) GTEST_SKIP() << "takes root";
  constexpr uid_t kNobody = 65534;
  const Child other(some_scope(), kNobody);
  EXPECT_EQ(other.told(), kAllShares);
  {
    Process root(some_scope());
    EXPECT_TRUE(root.join()) << "who stays root has nothing to do with it";
  }
  Process a(some_scope(), [] { return true; });
  EXPECT_FALSE(a.join());
  ASSERT_EQ(seteuid(kNobody), 0);
  a.groups.user_changed();
  serve_until(a, 16);
  EXPECT_EQ(seteuid(0), 0);
}

/// Root's coordinator with another user's process: it ends each connection without a word.
struct RefusingListener {
  explicit RefusingListener(int scope)
      : fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::string text = "accel-mlx5-" + std::to_string(scope) + "-80-";
    for (const uint8_t b : Process::kLocal.local.address.bytes) {
      char two[3];
      snprintf(two, sizeof(two), "%02x", b);
      text += two;
    }
    text.copy(name.sun_path + 1, text.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
    EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&name), length), 0);
    EXPECT_EQ(listen(fd, 100), 0);
  }
  ~RefusingListener() { close(fd); }
  unsigned refuse() const {
    unsigned refused = 0;
    for (int peer; (peer = accept(fd, nullptr, nullptr)) >= 0; ++refused) close(peer);
    return refused;
  }
  int fd;
};

TEST(Groups, WhoIsRefusedAsksSeldom) {
  Process a(some_scope());
  {
    RefusingListener listener(some_scope());
    EXPECT_FALSE(a.join());
    unsigned refused = 0;
    for (int i = 0; i < 1500; ++i) {
      refused += listener.refuse();
      pollfd event{a.groups.event_fd(), POLLIN, 0};
      if (poll(&event, 1, 1) == 1) a.groups.serve();
    }
    EXPECT_GE(refused, 2u);
    EXPECT_LE(refused, 6u);
    EXPECT_EQ(a.held, 0u) << "the other may have a rule for all";
  }
  serve_until(a, kShareCount);
}

}  // namespace
}  // namespace accel::mlx5
