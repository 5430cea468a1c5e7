// A port whose process has given up its privilege: what it can still do to the netdev's maps, and that what
// it had goes on. The test's own process is the helper.
#include <dirent.h>

#include "tests/xdp/xdp_fixture.h"
#include "xdp/flow_abi.h"

namespace accel::test {
namespace {

class Sealing : public XdpTest {
 protected:
  FrameMaker b_to_a{b, a};

  /// Of one queue, with what its helper gets.
  struct Sealed : PortAtEnd {
    ~Sealed() {
      for (int fd : {link, xsks, owners, ends}) close(fd);
    }
    Result<void> open_one(const LabEnd& at) {
      XdpOptions one;
      one.queues = 1;
      return open(at, one);
    }
    void seal() {
      const auto all = port->entrust(&why);
      ASSERT_TRUE(all) << why;
      owner = all->owner;
      link = dup(all->descriptors[0]), xsks = dup(all->descriptors[1]);
      owners = dup(all->descriptors[2]), ends = dup(all->descriptors[3]);
      port->seal();
      ASSERT_FALSE(port->has_rights());
    }
    void prove(const FlowKey& key) {
      accel_flow_key wire{};
      wire.protocol = static_cast<uint8_t>(key.protocol);
      wire.local_port = htons(key.local.port);
      std::memcpy(wire.local, key.local.address.bytes.data(), sizeof wire.local);
      wire.remote_port = htons(key.remote.port);
      if (key.is_connected()) std::memcpy(wire.remote, key.remote.address.bytes.data(), sizeof wire.remote);
      const uint32_t there = 1;
      EXPECT_EQ(bpf_map_update_elem(ends, &wire, &there, BPF_ANY), 0);
    }
    uint32_t owner = 0;
    int link = -1, xsks = -1, owners = -1, ends = -1;
  };

  static int descriptors_of(const char* kind) {
    int n = 0;
    DIR* all = opendir("/proc/self/fd");
    while (const dirent* entry = readdir(all)) {
      char what[64] = {};
      if (readlink((std::string("/proc/self/fd/") + entry->d_name).c_str(), what, sizeof what - 1) > 0 &&
          std::string(what).find(kind) != std::string::npos)
        ++n;
    }
    closedir(all);
    return n;
  }
};

TEST_F(Sealing, NoDescriptorIsLeftByWhichItCouldWrite) {
  PortAtEnd at;
  ASSERT_TRUE(at.open(a)) << at.why;
  const auto first = at.port->entrust(&at.why);
  ASSERT_TRUE(first) << at.why;
  const auto again = at.port->entrust(&at.why);
  ASSERT_TRUE(again) << at.why;
  EXPECT_EQ(again->owner, first->owner);
  EXPECT_EQ(again->descriptors, first->descriptors);
  const int link = dup(first->descriptors[0]);
  EXPECT_GT(descriptors_of("bpf-map"), 0);
  at.port->seal();
  EXPECT_EQ(descriptors_of("bpf-map"), 0);
  EXPECT_EQ(descriptors_of("bpf_link"), 1) << "the one above";
  EXPECT_NE(program_id(a), 0u);
  PortAtEnd another;
  EXPECT_TRUE(another.open(a).is(EPERM));
  close(link);
}

TEST_F(Sealing, WhatItHasGoesOnAndNothingElseComes) {
  Sealed at;
  PortAtEnd sender;
  ASSERT_TRUE(at.open(a)) << at.why;
  ASSERT_TRUE(sender.open(b)) << sender.why;
  ASSERT_TRUE(at.steer(tcp(a, 80)) && at.steer(udp(a, 7000)));
  at.seal();
  const auto comes = [&](const std::vector<uint8_t>& frame) {
    EXPECT_TRUE(sender.send(frame));
    EXPECT_EQ(at.receive(), frame);
  };
  comes(b_to_a.tcp4(1000, 80, kSyn));
  EXPECT_TRUE(at.port->steer(tcp(a, 80, b, 1000))) << "what its listener accepts";
  comes(b_to_a.tcp4(1000, 80, kAck));
  EXPECT_TRUE(at.port->steer(tcp(a, 80, b, 1000))) << "again is no error";
  at.port->take_acks(tcp(a, 80), true);
  comes(b_to_a.tcp4(1001, 80, kAck));
  for (const FlowKey& strange : {tcp(a, 22), udp(a, 80), udp(a, 53), tcp(a, 22, b, 1000), tcp(b, 80)})
    EXPECT_TRUE(at.port->steer(strange).is(EPERM));
  // Its helper has seen a socket.
  at.prove(tcp(a, 5000));
  EXPECT_TRUE(at.port->steer(tcp(a, 5000)));
  comes(b_to_a.tcp4(1000, 5000, kSyn));
  at.prove(tcp(a, 6000, b, 9));
  EXPECT_TRUE(at.port->steer(tcp(a, 6000, b, 9)));
  EXPECT_TRUE(at.port->steer(tcp(a, 6000, b, 10)).is(EPERM)) << "one connection";
  EXPECT_TRUE(at.port->steer(tcp(a, 6000)).is(EPERM));
  comes(b_to_a.tcp4(9, 6000, kAck));
  // What it gives back it has no more.
  at.port->unsteer(tcp(a, 6000, b, 9));
  EXPECT_TRUE(at.port->steer(tcp(a, 6000, b, 9)).is(EPERM));
  at.port->pause(tcp(a, 5000));
  EXPECT_TRUE(at.port->steer(tcp(a, 5000, b, 1000))) << "its handshake was under way";
  comes(b_to_a.tcp4(1000, 5000, kAck));
  at.port->unsteer(tcp(a, 5000));
  EXPECT_TRUE(at.port->steer(tcp(a, 5000)).is(EPERM));
  EXPECT_TRUE(at.port->steer(tcp(a, 5000, b, 1001)).is(EPERM));
  EXPECT_EQ(at.port->stats().redirected, 6u);
  at.port->unsteer(udp(a, 7000));
  expect_kernel_delivers(b, a, 7000);
  at.port.reset();
  expect_kernel_delivers(b, a, 7001);
}

TEST_F(Sealing, OthersEntriesStay) {
  if (lab_queues < 2) GTEST_SKIP() << "needs queues";
  XdpOptions one;
  one.queues = 1;
  PortAtEnd other;
  ASSERT_TRUE(other.open(a, one)) << other.why;
  const FlowKey theirs = tcp(a, 80, b, 1000);
  ASSERT_TRUE(other.steer(tcp(a, 80)) && other.steer(theirs));
  int channel = -1;
  const pid_t pid = fork_inside(
      a,
      [&](int ch) {
        Sealed at;
        if (!at.open_one(a) || !at.steer(tcp(a, 80))) return 1;
        at.seal();
        if (!at.port->steer(theirs).is(EEXIST)) return 2;
        at.port->unsteer(theirs);
        at.port->enter_time_wait(theirs);
        at.port->take_acks(theirs, true);
        if (at.port->misdirected(theirs) || !at.port->steer(theirs).is(EEXIST)) return 3;
        say(ch), hear(ch);  // it rests now
        if (!at.port->steer(theirs)) return 4;
        say(ch), hear(ch);
        at.port->enter_time_wait(theirs);
        say(ch), hear(ch);  // the other has it again
        at.port->unsteer(theirs);
        return at.port->steer(theirs).is(EEXIST) ? 0 : 5;
      },
      &channel);
  EXPECT_TRUE(hear(channel));
  EXPECT_TRUE(other.steer(theirs)) << "it is there";
  other.port->enter_time_wait(theirs);
  say(channel);
  EXPECT_TRUE(hear(channel));
  EXPECT_TRUE(other.port->steer(theirs).is(EEXIST));
  say(channel);
  EXPECT_TRUE(hear(channel));
  EXPECT_TRUE(other.port->steer(theirs));
  say(channel);
  EXPECT_EQ(wait_for(pid), 0);
  EXPECT_TRUE(other.steer(theirs));
  close(channel);
}

TEST_F(Sealing, MisdirectedSegmentsAreNotedAsBefore) {
  if (lab_queues < 2) GTEST_SKIP() << "needs queues";
  Sealed at;
  PortAtEnd sender;
  ASSERT_TRUE(at.open_one(a)) << at.why;
  ASSERT_TRUE(sender.open(b)) << sender.why;
  ASSERT_TRUE(at.steer(tcp(a, 80)));
  at.seal();
  const auto remote = static_cast<uint16_t>(lab_queues * 100 + 1 - 80);  // by another queue
  const FlowKey key = tcp(a, 80, b, remote);
  ASSERT_TRUE(at.port->steer(key));
  EXPECT_FALSE(at.port->misdirected(key));
  (void)at.port->has_misdirected();
  ASSERT_TRUE(sender.send(b_to_a.tcp4(remote, 80, kAck)));
  const auto until = std::chrono::steady_clock::now() + kGuard;
  while (!at.port->has_misdirected() && std::chrono::steady_clock::now() < until) {
  }
  const auto misdirected = at.port->misdirected(key);
  ASSERT_TRUE(misdirected);
  EXPECT_EQ(misdirected->flags, kAck);
}

// A device whose queues were all held when root went: the helper enters the socket.
TEST_F(Sealing, AQueueIsClaimedByTheHelper) {
  static Sealed* ready;
  PortAtEnd holder, sender;
  Sealed late;
  ready = &late;
  ASSERT_TRUE(holder.open(a)) << holder.why;
  XdpOptions later;
  later.without_queue = later.even_if_held = true;
  later.claim_queue = [](uint32_t owner, uint32_t queue, int socket) -> Result<void> {
    EXPECT_EQ(owner, ready->owner);
    const auto fd = static_cast<uint32_t>(socket);
    if (bpf_map_update_elem(ready->owners, &queue, &owner, BPF_ANY) != 0) return err(errno);
    if (bpf_map_update_elem(ready->xsks, &queue, &fd, BPF_NOEXIST) != 0) return err(errno);
    return {};
  };
  ASSERT_TRUE(late.open(a, later)) << late.why;
  late.seal();
  ASSERT_TRUE(sender.open(b)) << sender.why;
  holder.port.reset();
  Result<void> taken = err(EBUSY);
  a.inside([&] { taken = late.port->take_queues(&late.why); });
  ASSERT_TRUE(taken) << late.why;
  EXPECT_TRUE(late.port->steer(udp(a, 7000)).is(EPERM));
  late.prove(udp(a, 7000));
  ASSERT_TRUE(late.port->steer(udp(a, 7000)));
  const auto frame = b_to_a.udp4(1, 7000, "x");
  ASSERT_TRUE(sender.send(frame));
  EXPECT_EQ(late.receive(), frame);
}

TEST_F(Sealing, AChildCannotWriteForItsParent) {
  PortAtEnd parent;
  ASSERT_TRUE(parent.open(a)) << parent.why;
  ASSERT_TRUE(parent.port->entrust(&parent.why)) << parent.why;
  int channel = -1;
  const pid_t pid = fork_inside(
      a,
      [&](int) {
        parent.port->abandon_in_child();
        parent.port.reset();
        if (setgid(65534) != 0 || setuid(65534) != 0) return 1;
        XdpPort::forget_inherited();
        return descriptors_of("bpf-map") + descriptors_of("bpf_link") + descriptors_of("bpf-prog") == 0 ? 0
                                                                                                        : 2;
      },
      &channel);
  EXPECT_EQ(wait_for(pid), 0);
  close(channel);
}

}  // namespace
}  // namespace accel::test
