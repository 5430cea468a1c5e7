// The pool's two kinds of buffers: those of a port's own part, and those that cost memory from their first
// use on.
#include "stack/frame_pool.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace accel {
namespace {

constexpr uint32_t kBuffer = 2048;

struct Pool {
  explicit Pool(uint32_t buffers) : memory(size_t{buffers} * kBuffer), pool(memory, kBuffer) {}
  /// As a port that opens does.
  FrameRange open(uint32_t n) {
    const FrameRange part = pool.reserve(n);
    pool.give_to_port(part);
    return part;
  }
  void close(const FrameRange& part) {
    pool.take_back(part);
    pool.unreserve(part);
  }
  std::vector<Packet*> take_of(const FrameRange& part, uint32_t n) {
    std::vector<Packet*> taken;
    const uint32_t number = pool.take_of(part, n, [&](Packet* p) { taken.push_back(p); });
    EXPECT_EQ(number, taken.size());
    return taken;
  }
  std::vector<uint8_t> memory;
  FramePool pool;
};

void release(std::vector<Packet*>& frames) {
  for (Packet* p : frames) FramePool::release(p);
  frames.clear();
}

TEST(FramePool, WholeRegionIsForAllUnlessAPortHasAPart) {
  Pool p(8);
  EXPECT_EQ(p.pool.available(p.pool.whole()), 8u);
  std::set<uint32_t> numbers;
  while (Packet* frame = p.pool.take()) numbers.insert(frame->index);
  EXPECT_EQ(numbers.size(), 8u) << "each once, and all of them";
  EXPECT_EQ(p.pool.available(), 0u);
  EXPECT_EQ(p.pool.available(p.pool.whole()), 0u);
}

TEST(FramePool, StackLeavesAQuarterOfAPartToItsPort) {
  Pool p(64);
  const FrameRange part = p.open(16);
  EXPECT_EQ(p.pool.available(), 64u);
  std::vector<Packet*> taken;
  for (int i = 0; i < 20; ++i) taken.push_back(p.pool.take());
  EXPECT_EQ(p.pool.available(part), 4u);
  EXPECT_EQ(p.pool.available(), 44u);
  for (int i = 0; i < 12; ++i) EXPECT_TRUE(part.has(*taken[i]));
  for (int i = 12; i < 20; ++i) EXPECT_FALSE(part.has(*taken[i]));
  release(taken);
  EXPECT_EQ(p.pool.available(), 64u);
  EXPECT_EQ(p.pool.available(part), 16u);
}

TEST(FramePool, LastOnesAreThePorts) {
  Pool p(8);
  const FrameRange part = p.open(4);
  std::vector<Packet*> taken;
  while (Packet* frame = p.pool.take()) taken.push_back(frame);
  EXPECT_EQ(taken.size(), 8u);
  EXPECT_TRUE(part.has(*taken.back()));
  EXPECT_EQ(p.pool.take_ordinary(), nullptr);
}

TEST(FramePool, OrdinaryOnesAreUsedAgainBeforeFreshOnes) {
  Pool p(64);
  (void)p.open(16);
  Packet* first = p.pool.take_ordinary();
  const uint32_t number = first->index;
  FramePool::release(first);
  EXPECT_EQ(p.pool.take_ordinary()->index, number)
      << "so that no more memory is touched than is needed at a time";
}

TEST(FramePool, PortGetsItsPartAlsoOfBuffersInUse) {
  Pool p(64);
  Packet *below = p.pool.take(), *free_below = p.pool.take();
  std::vector<Packet*> above;
  for (int i = 0; i < 20; ++i) above.push_back(p.pool.take());
  FramePool::release(free_below);
  FramePool::release(above.back());
  above.pop_back();
  EXPECT_EQ(p.pool.available(), 64u - 20u);
  const FrameRange part = p.open(4);
  EXPECT_EQ(p.pool.available(), 64u - 20u);
  EXPECT_EQ(p.pool.available(part), 1u) << "the others are in use";
  FramePool::release(below);
  EXPECT_EQ(p.pool.available(part), 2u);
  release(above);
  EXPECT_EQ(p.pool.available(part), 4u);
  EXPECT_EQ(p.pool.available(), 64u);
}

TEST(FramePool, EachPortHasBuffersOfItsOwn) {
  Pool p(64);
  const FrameRange first = p.open(16);
  std::vector<Packet*> of_first = p.take_of(first, 16);
  const FrameRange second = p.open(16);
  EXPECT_EQ(p.pool.available(first), 0u);
  EXPECT_EQ(p.pool.available(second), 16u) << "whatever the first port has in its rings";
  std::vector<Packet*> of_second = p.take_of(second, 20);
  EXPECT_EQ(of_second.size(), 16u) << "no others";
  for (const Packet* frame : of_second) EXPECT_TRUE(second.has(*frame) && !first.has(*frame));
  release(of_first);
  EXPECT_EQ(p.pool.available(first), 16u);
  EXPECT_EQ(p.pool.available(second), 0u);
  EXPECT_TRUE(p.take_of(second, 1).empty());
  release(of_second);
  EXPECT_EQ(p.pool.available(), 64u);
}

TEST(FramePool, StackTakesOfThePortThatReceivedLast) {
  Pool p(64);
  const FrameRange first = p.open(16), second = p.open(16);
  Packet* frame = p.pool.take();
  EXPECT_TRUE(first.has(*frame));
  FramePool::release(frame);
  p.pool.favour(second);
  frame = p.pool.take();
  EXPECT_TRUE(second.has(*frame));
  FramePool::release(frame);
  p.close(second);
  frame = p.pool.take();
  EXPECT_FALSE(first.has(*frame)) << "none is favoured";
  FramePool::release(frame);
}

TEST(FramePool, PartOfAPortThatIsClosedServesTheNext) {
  Pool p(64);
  const FrameRange first = p.open(32), second = p.open(16);
  std::vector<Packet*> held = p.take_of(first, 2);
  p.close(first);
  EXPECT_EQ(p.pool.available(), 62u);
  release(held);
  EXPECT_EQ(p.pool.available(p.pool.whole()), 48u);
  const FrameRange third = p.open(32);
  EXPECT_EQ(third.first, first.first);
  EXPECT_EQ(p.pool.available(third), 32u);
  EXPECT_EQ(p.pool.available(second), 16u);
  p.close(second);
  p.close(third);
  EXPECT_FALSE(p.pool.any_reserved());
  EXPECT_EQ(p.pool.available(p.pool.whole()), 64u);
}

TEST(FramePool, PartsAreNoLargerThanTheRegionHasRoom) {
  Pool p(1024);
  const FrameRange first = p.pool.reserve(768), second = p.pool.reserve(768);
  EXPECT_EQ(first.count, 768u);
  EXPECT_EQ(second.count, 256u);
  EXPECT_EQ(second.first, 768u);
  EXPECT_EQ(p.pool.reserve(1).count, 0u);
  p.pool.unreserve(second);
  EXPECT_EQ(p.pool.reserve(100).count, 100u);
  EXPECT_EQ(p.pool.reserve(1000).count, 144u) << "reserved in units of 16";
}

TEST(FramePool, APartIsGivenWhereAnEarlierOneIsReservedOnly) {
  Pool p(64);
  const FrameRange first = p.pool.reserve(16), second = p.open(16);
  EXPECT_EQ(p.pool.available(), 64u);
  EXPECT_EQ(p.pool.available(second), 16u);
  EXPECT_EQ(p.pool.available(p.pool.whole()), 48u);
  p.pool.give_to_port(first);
  EXPECT_EQ(p.pool.available(first), 16u);
  EXPECT_EQ(p.pool.available(p.pool.whole()), 32u);
}

TEST(FramePool, LastBuffersOfAnOddRegionAreInNoPart) {
  Pool p(130);
  const FrameRange all = p.pool.reserve(1000);
  EXPECT_EQ(all.count, 128u);
  p.pool.give_to_port(all);
  std::set<uint32_t> numbers;
  while (Packet* frame = p.pool.take()) numbers.insert(frame->index);
  EXPECT_EQ(numbers.size(), 130u);
}

}  // namespace
}  // namespace accel
