// Whose rings the poller looks at: an end whose ring is looked at is not asked to ring, all others are.
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <utility>
#include <vector>

#include "base/real.h"
#include "shm/poller.h"

namespace {

using namespace accel;
using namespace accel::shm;

constexpr size_t kRing = 4096;

/// A connection in shared memory: the other end is played by the test.
struct Connection {
  Connection() : link(this) {
    link.rings = std::make_unique<Link::Rings>(size_t{0}, uint64_t{0});
    const Result<int> memory = link.rings->mapping.make(kRing);
    EXPECT_TRUE(memory.ok());
    close(*memory);
    link.rings->open();
    other = std::make_unique<Sender>(link.rings->mapping.direction(1), link.rings->mapping.ring(1));
    EXPECT_TRUE(other->begin(0));
    link.rings->receiver->look();
    link.note_told();
  }
  /// Whether the other end has to ring for it.
  bool sends() {
    EXPECT_EQ(other->put(std::vector<uint8_t>{1}), 1u);
    return other->publish();
  }
  /// The owner takes all that has come.
  void see_to(Poller& poller) {
    link.rings->receiver->look();
    (void)link.rings->receiver->consume(link.rings->receiver->available());
    link.note_told();
    poller.seen(link);
  }
  bool is_asked_to_ring() { return link.rings->mapping.direction(1).reader_asleep.load() != 0; }

  Link link;
  std::unique_ptr<Sender> other;
};

class Polling : public testing::Test {
 protected:
  static void SetUpTestSuite() { resolve_real(); }

  void make(size_t count) {
    while (connections.size() < count) connections.push_back(std::make_unique<Connection>());
  }
  size_t asked_to_ring() const {
    size_t count = 0;
    for (const auto& c : connections) count += c->is_asked_to_ring();
    return count;
  }
  /// Sees to what the poller gives out.
  size_t see_to_all() {
    size_t count = 0;
    for (; Link* link = poller->take_ready(); ++count) static_cast<Connection*>(link->owner)->see_to(*poller);
    return count;
  }

  std::unique_ptr<Poller> poller = std::move(*Poller::open());
  std::vector<std::unique_ptr<Connection>> connections;
  Instant now{1s};
};

TEST_F(Polling, NobodyRingsWhileManyAreLookedAt) {
  make(200);
  for (auto& c : connections) poller->heat(c->link);
  for (int round = 0; round < 10; ++round) {
    for (auto& c : connections) EXPECT_FALSE(c->sends());
    EXPECT_TRUE(poller->poll(now += 5ms, false));
    EXPECT_EQ(see_to_all(), 200u);
  }
}

TEST_F(Polling, MoreThanAreLookedAtRing) {
  make(1000);
  for (auto& c : connections) poller->heat(c->link);
  const size_t asked = asked_to_ring();
  EXPECT_GT(asked, 500u);
  size_t rings = 0;
  for (auto& c : connections) rings += c->sends();
  EXPECT_EQ(rings, asked);
  EXPECT_EQ(asked_to_ring(), 0u);  // once for each sleep
  EXPECT_TRUE(poller->poll(now, false));
  EXPECT_EQ(see_to_all(), 1000 - rings);
}

TEST_F(Polling, WhoRestsIsLookedAtNoMore) {
  make(100);
  for (auto& c : connections) poller->heat(c->link);
  for (int round = 0; round < 20; ++round) {
    EXPECT_FALSE(connections[7]->sends()) << round;
    EXPECT_TRUE(poller->poll(now += 5ms, false));
    see_to_all();
  }
  EXPECT_EQ(asked_to_ring(), 99u);
  EXPECT_TRUE(connections[8]->sends());
}

TEST_F(Polling, BeforeASleepAllAreAsked) {
  make(50);
  for (auto& c : connections) poller->heat(c->link);
  EXPECT_EQ(asked_to_ring(), 0u);
  EXPECT_TRUE(poller->arm());
  EXPECT_EQ(asked_to_ring(), 50u);
  EXPECT_FALSE(poller->poll(now, true));  // another thread sleeps still
  EXPECT_EQ(asked_to_ring(), 50u);
  EXPECT_FALSE(poller->poll(now, false));
  EXPECT_EQ(asked_to_ring(), 0u);
}

TEST_F(Polling, WhatHasComeKeepsFromSleeping) {
  make(50);
  for (auto& c : connections) poller->heat(c->link);
  EXPECT_FALSE(connections[49]->sends());
  EXPECT_FALSE(poller->arm());
  EXPECT_EQ(poller->take_ready(), &connections[49]->link);
  EXPECT_EQ(poller->take_ready(), nullptr);
}

TEST_F(Polling, WhoHasGoneIsNotLookedAt) {
  make(30);
  for (auto& c : connections) poller->heat(c->link);
  for (size_t i = 0; i < 30; i += 2) {
    poller->forget(connections[i]->link);
    connections[i].reset();
  }
  for (size_t i = 1; i < 30; i += 2) EXPECT_FALSE(connections[i]->sends());
  EXPECT_TRUE(poller->poll(now, false));
  EXPECT_EQ(see_to_all(), 15u);
}

TEST_F(Polling, AGlanceSoonAfterALookLooksAtNothing) {
  make(1);
  poller->heat(connections[0]->link);
  EXPECT_FALSE(poller->poll(now, false));
  EXPECT_FALSE(connections[0]->sends());
  EXPECT_FALSE(poller->glance(now, false));
  EXPECT_TRUE(poller->glance(now + 1ms, false));
}

}  // namespace
