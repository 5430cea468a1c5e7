// Several users of one netdev, users that die, and reasons why a port cannot be opened.
#include <grp.h>
#include <linux/if_link.h>

#include "tests/xdp/xdp_fixture.h"

namespace accel::test {
namespace {

class Sharing : public XdpTest {
 protected:
  FrameMaker b_to_a{b, a};
};

TEST_F(Sharing, TwoPortsShareAListener) {
  if (lab_queues < 4) GTEST_SKIP() << "needs queues";
  PortAtEnd one, two, sender;
  XdpOptions half;
  half.queues = lab_queues / 2;
  ASSERT_TRUE(one.open(a, half)) << one.why;
  ASSERT_TRUE(two.open(a, half)) << two.why;
  EXPECT_EQ(one.port->info().queues_held, half.queues);
  EXPECT_EQ(two.port->info().queues_total, lab_queues);
  ASSERT_TRUE(sender.open(b)) << sender.why;
  ASSERT_TRUE(one.steer(tcp(a, 80)));
  ASSERT_TRUE(two.steer(tcp(a, 80)));
  // Many connections, of ports as connect() has them, use every queue.
  const uint32_t connections = 16 * lab_queues;
  auto send_all = [&] {
    for (uint32_t i = 0; i < connections; ++i)
      ASSERT_TRUE(sender.send(b_to_a.tcp4(static_cast<uint16_t>(40001 + 2 * i), 80, kSyn)));
  };
  send_all();
  uint32_t at_one = 0, at_two = 0;
  for (; !one.receive_now().empty(); ++at_one) {
  }
  for (; at_one + at_two < connections && !two.receive().empty(); ++at_two) {
  }
  for (; at_one + at_two < connections && !one.receive().empty(); ++at_one) {
  }
  EXPECT_EQ(at_one + at_two, connections);
  EXPECT_GT(at_one, connections / 4);
  EXPECT_GT(at_two, connections / 4);
  // One leaves: its queues' SYNs are the kernel's, the other's still come.
  one.port.reset();
  send_all();
  for (uint32_t i = 0; i < at_two; ++i) EXPECT_FALSE(two.receive().empty());
  EXPECT_TRUE(two.receive_now().empty());
}

TEST_F(Sharing, AConnectionHasOneOwner) {
  if (lab_queues < 2) GTEST_SKIP() << "needs queues";
  PortAtEnd one, two;
  XdpOptions half;
  half.queues = 1;
  ASSERT_TRUE(one.open(a, half)) << one.why;
  ASSERT_TRUE(two.open(a, half)) << two.why;
  const FlowKey key = tcp(a, 80, b, 1000);
  ASSERT_TRUE(one.steer(key));
  EXPECT_TRUE(one.steer(key)) << "again is no error";
  EXPECT_TRUE(two.steer(key).is(EEXIST));
  two.port->unsteer(key);
  EXPECT_TRUE(two.steer(key).is(EEXIST)) << "nobody undoes another's key";
  one.port->unsteer(key);
  EXPECT_TRUE(two.steer(key));
}

TEST_F(Sharing, FramesOfAConnectionOnAnothersQueueAreDropped) {
  if (lab_queues < 2) GTEST_SKIP() << "needs queues";
  PortAtEnd one, two, sender;
  XdpOptions half;
  half.queues = 1;
  ASSERT_TRUE(one.open(a, half) && two.open(a, half)) << one.why << two.why;
  ASSERT_TRUE(sender.open(b)) << sender.why;
  // Port 80 + 1000 and + 1001 go by different queues; the port that owns a key must not get it on the
  // other's.
  const FlowKey key = tcp(a, 80, b, static_cast<uint16_t>(lab_queues * 100 + 1 - 80));
  ASSERT_TRUE(one.steer(key));
  EXPECT_FALSE(one.port->misdirected(key));
  (void)one.port->has_misdirected();
  const uint64_t before = one.port->stats().dropped_other_queue;
  ASSERT_TRUE(sender.send(b_to_a.tcp4(static_cast<uint16_t>(lab_queues * 100 + 1 - 80), 80, kAck)));
  const auto until = std::chrono::steady_clock::now() + kGuard;
  while (one.port->stats().dropped_other_queue == before && std::chrono::steady_clock::now() < until) {
  }
  EXPECT_EQ(one.port->stats().dropped_other_queue, before + 1);
  EXPECT_TRUE(one.port->has_misdirected());
  EXPECT_FALSE(one.port->has_misdirected()) << "told once";
  const auto misdirected = one.port->misdirected(key);
  ASSERT_TRUE(misdirected);
  EXPECT_EQ(misdirected->flags, kAck);
  EXPECT_FALSE(two.port->misdirected(key)) << "not its own";
  one.port->unsteer(key);
  ASSERT_TRUE(one.steer(key));
  EXPECT_FALSE(one.port->misdirected(key)) << "another connection";
}

TEST_F(Sharing, ASynOnAnothersQueueTakesATupleInTimeWait) {
  if (lab_queues < 2) GTEST_SKIP() << "needs queues";
  PortAtEnd one, two, sender;
  XdpOptions half;
  half.queues = 1;
  ASSERT_TRUE(one.open(a, half) && two.open(a, half)) << one.why << two.why;
  ASSERT_TRUE(sender.open(b)) << sender.why;
  // As above: by two's queue.
  const auto remote = static_cast<uint16_t>(lab_queues * 100 + 1 - 80);
  const FlowKey key = tcp(a, 80, b, remote);
  const auto syn = b_to_a.tcp4(remote, 80, kSyn), ack = b_to_a.tcp4(remote, 80, kAck);
  ASSERT_TRUE(two.steer(tcp(a, 80)));
  ASSERT_TRUE(one.steer(key));
  ASSERT_TRUE(sender.send(syn));  // dropped: the connection lives
  one.port->enter_time_wait(key);
  ASSERT_TRUE(sender.send(ack));  // dropped
  ASSERT_TRUE(sender.send(syn));
  EXPECT_EQ(two.receive(), syn);
  EXPECT_TRUE(two.steer(key)) << "the tuple is free";
  EXPECT_TRUE(one.steer(key).is(EEXIST));
  one.port->unsteer(key);  // its TIME-WAIT ends
  ASSERT_TRUE(sender.send(ack));
  EXPECT_EQ(two.receive(), ack) << "the new owner's stays";
  EXPECT_EQ(one.port->stats().dropped_other_queue, 2u);
  EXPECT_TRUE(one.receive_now().empty());
}

TEST_F(Sharing, AllQueuesTaken) {
  PortAtEnd one, two;
  ASSERT_TRUE(one.open(a)) << one.why;
  EXPECT_EQ(one.port->info().queues_held, lab_queues);
  // It says so before it registers its frames, which takes long: these it could not.
  ASSERT_EQ(mprotect(two.region, two.size, PROT_NONE), 0);
  EXPECT_TRUE(two.open(a).is(EBUSY));
  ASSERT_EQ(mprotect(two.region, two.size, PROT_READ | PROT_WRITE), 0);
  EXPECT_NE(two.why.find("are held by other AF_XDP sockets"), std::string::npos) << two.why;
  one.port.reset();
  EXPECT_TRUE(two.open(a)) << two.why;
}

TEST_F(Sharing, TwoProcesses) {
  if (lab_queues < 2) GTEST_SKIP() << "needs queues";
  XdpOptions half;
  half.queues = lab_queues / 2;
  auto work = [&](int channel) {
    PortAtEnd at;
    if (!at.open(a, half) || !at.steer(tcp(a, 80))) return 1;
    say(channel);
    hear(channel);
    return 0;
  };
  int first = -1, second = -1;
  const pid_t one = fork_inside(a, work, &first), two = fork_inside(a, work, &second);
  ASSERT_TRUE(hear(first));
  ASSERT_TRUE(hear(second));
  const uint32_t program = program_id(a);
  say(first);
  EXPECT_EQ(wait_for(one), 0);
  EXPECT_EQ(program_id(a), program) << "the other still holds it";
  expect_kernel_delivers(b, a, 9000);
  say(second);
  EXPECT_EQ(wait_for(two), 0);
  close(first), close(second);
}

TEST_F(Sharing, KillLeavesNothing) {
  auto work = [&](int channel) {
    PortAtEnd at(2048);
    if (!at.open(a) || !at.steer(udp(a, 7000)) || !at.steer(tcp(a, 7000)) || !at.steer(tcp(a, 7000, b, 7))) {
      std::fprintf(stderr, "%s\n", at.why.c_str());
      return 1;
    }
    say(channel);
    hear(channel);
    return 0;
  };
  for (int i = 0; i < 50; ++i) {
    int channel = -1;
    const pid_t pid = fork_inside(a, work, &channel);
    ASSERT_TRUE(hear(channel)) << wait_for(pid);
    kill(pid, SIGKILL);
    EXPECT_EQ(wait_for(pid), 256 + SIGKILL);
    close(channel);
    ASSERT_TRUE(nothing_left(a)) << i;
    expect_kernel_delivers(b, a, 7000);
  }
}

// A killed server that is started again. Its queue is bound until the kernel's worker has had the lock of all
// network settings, which others take meanwhile.
TEST_F(Sharing, AKilledPortsQueueIsTheNexts) {
  auto work = [&](int channel) {
    PortAtEnd at(512);
    XdpOptions small;
    small.rx_ring = small.tx_ring = 64;
    if (!at.open(a, small)) return 1;
    say(channel);
    hear(channel);
    return 0;
  };
  int busy_channel = -1;
  const pid_t busy = fork_inside(
      b,
      [&](int) {
        for (;;) (void)!system("ip link add d0 type veth peer name d1; ip link del d0");
        return 0;
      },
      &busy_channel);
  PortAtEnd keeper(512);
  XdpOptions none;
  none.without_queue = true;
  ASSERT_TRUE(keeper.open(a, none)) << keeper.why;
  for (int i = 0; i < 20; ++i) {
    int channel = -1;
    const pid_t pid = fork_inside(a, work, &channel);
    EXPECT_TRUE(hear(channel)) << i;
    kill(pid, SIGKILL);
    wait_for(pid);
    close(channel);
  }
  kill(busy, SIGKILL);
  wait_for(busy);
  close(busy_channel);
}

TEST_F(Sharing, ADeadPortsFlowsGoToTheKernelAndAreTakenOver) {
  if (lab_queues < 2) GTEST_SKIP() << "needs queues";
  XdpOptions half;
  half.queues = lab_queues / 2;
  int channel = -1;
  const FlowKey key = tcp(a, 80, b, 1000);
  const pid_t pid = fork_inside(
      a,
      [&](int ch) {
        PortAtEnd at;
        if (!at.open(a, half) || !at.steer(udp(a, 7000)) || !at.steer(key)) return 1;
        say(ch);
        hear(ch);
        return 0;
      },
      &channel);
  ASSERT_TRUE(hear(channel));
  PortAtEnd survivor;
  ASSERT_TRUE(survivor.open(a, half)) << survivor.why;
  EXPECT_TRUE(survivor.steer(key).is(EEXIST));
  kill(pid, SIGKILL);
  wait_for(pid);
  close(channel);
  // The survivor keeps program and table alive, with the dead port's entries in it.
  expect_kernel_delivers(b, a, 7000);
  // The kernel frees a dead socket's queue a moment after the process's end.
  const auto until = std::chrono::steady_clock::now() + kGuard;
  while (survivor.steer(key).is(EEXIST) && std::chrono::steady_clock::now() < until) {
  }
  EXPECT_TRUE(survivor.steer(key)) << "a dead owner owns nothing";
  PortAtEnd next;
  ASSERT_TRUE(next.open(a, half)) << next.why;
  expect_kernel_delivers(b, a, 7000);
}

TEST_F(Sharing, ChildOfForkKeepsNothingOfTheParents) {
  PortAtEnd parent;
  ASSERT_TRUE(parent.open(a)) << parent.why;
  ASSERT_TRUE(parent.steer(udp(a, 7000)));
  int channel = -1;
  const pid_t pid = fork_inside(
      b,
      [&](int ch) {
        parent.port->abandon_in_child();
        if (parent.port->alive()) return 1;
        parent.port.reset();
        say(ch);
        hear(ch);
        return 0;
      },
      &channel);
  ASSERT_TRUE(hear(channel));
  kernel_sends(b, 0, a, 7000, "to the parent");
  EXPECT_FALSE(parent.receive().empty());
  parent.port.reset();
  EXPECT_EQ(a.xdp_sockets(), 0) << "the child, still there, must not hold the queues";
  say(channel);
  EXPECT_EQ(wait_for(pid), 0);
  close(channel);
}

TEST_F(Sharing, ForeignProgramIsLeftAlone) {
  const bpf_insn pass[] = {
      {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = XDP_PASS},
      {.code = BPF_JMP | BPF_EXIT, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 0}};
  const int program = bpf_prog_load(BPF_PROG_TYPE_XDP, "somebody", "GPL", pass, 2, nullptr);
  ASSERT_GE(program, 0);
  int index = 0;
  a.inside([&] {
    index = static_cast<int>(if_nametoindex(a.dev.c_str()));
    EXPECT_EQ(bpf_xdp_attach(index, program, XDP_FLAGS_SKB_MODE, nullptr), 0);
  });
  PortAtEnd at;
  EXPECT_TRUE(at.open(a).is(EEXIST));
  EXPECT_NE(at.why.find("'somebody'"), std::string::npos) << at.why;
  a.inside([&] { EXPECT_EQ(bpf_xdp_detach(index, XDP_FLAGS_SKB_MODE, nullptr), 0); });
  close(program);
}

TEST_F(Sharing, WithoutPrivilege) {
  int channel = -1;
  const pid_t pid = fork_inside(
      a,
      [&](int) {
        if (setgroups(0, nullptr) != 0 || setgid(65534) != 0 || setuid(65534) != 0) return 1;
        PortAtEnd at(512);
        if (!at.open(a, {}).is(EPERM)) return 2;
        return at.why.find("CAP_") == std::string::npos ? 3 : 0;
      },
      &channel);
  EXPECT_EQ(wait_for(pid), 0);
  close(channel);
}

TEST_F(Sharing, ReasonsForRefusal) {
  PortAtEnd at;
  LabEnd nowhere = a;
  nowhere.dev = "nosuchdev";
  EXPECT_TRUE(at.open(nowhere).is(ENOENT));
  EXPECT_NE(at.why.find("nosuchdev"), std::string::npos);
  LabEnd loopback = a;
  loopback.dev = "lo";
  EXPECT_TRUE(at.open(loopback).is(ENOTSUP));
  XdpOptions zero_copy;
  zero_copy.copy = XdpCopy::kForceZeroCopy;
  EXPECT_FALSE(at.open(a, zero_copy));
  EXPECT_NE(at.why.find("zero-copy"), std::string::npos) << at.why;
  EXPECT_EQ(at.pool.available(), at.pool.size());
}

TEST_F(Sharing, AutoTakesTheFasterHook) {
  PortAtEnd at;
  ASSERT_TRUE(at.open(a)) << at.why;
  EXPECT_EQ(at.port->native(), at.port->info().queues_total > 1);
  at.port.reset();
  XdpOptions copy;
  copy.copy = XdpCopy::kForceCopy;
  ASSERT_TRUE(at.open(a, copy)) << at.why;
  EXPECT_TRUE(at.port->native());
}

TEST_F(Sharing, GenericMode) {
  PortAtEnd at, sender;
  XdpOptions generic;
  generic.force_generic = true;
  ASSERT_TRUE(at.open(a, generic)) << at.why;
  EXPECT_FALSE(at.port->native());
  ASSERT_TRUE(at.steer(udp(a, 7000)));
  kernel_sends(b, 0, a, 7000, "hello");
  EXPECT_EQ(at.receive().size(), 14u + 28 + 5);
}

}  // namespace
}  // namespace accel::test
