// The pool's two kinds of buffers: registered ones for the devices, and those that cost memory from their
// first use on.
#include "stack/frame_pool.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace accel {
namespace {

constexpr uint32_t kBuffer = 2048;

struct Pool {
  explicit Pool(uint32_t buffers, uint32_t registered)
      : memory(size_t{buffers} * kBuffer), pool(memory, kBuffer, registered) {}
  std::vector<uint8_t> memory;
  FramePool pool;
};

TEST(FramePool, WholeRegionIsRegisteredUnlessSaid) {
  std::vector<uint8_t> memory(8 * kBuffer);
  FramePool pool(memory, kBuffer);
  EXPECT_EQ(pool.registered(), 8u);
  EXPECT_EQ(pool.available_registered(), 8u);
  std::set<uint32_t> numbers;
  while (Packet* p = pool.take()) numbers.insert(p->index);
  EXPECT_EQ(numbers.size(), 8u) << "each once, and all of them";
  EXPECT_EQ(pool.available(), 0u);
}

TEST(FramePool, StackLeavesAQuarterOfTheRegisteredToThePorts) {
  Pool p(64, 16);
  EXPECT_EQ(p.pool.available(), 64u);
  std::vector<Packet*> taken;
  for (int i = 0; i < 20; ++i) taken.push_back(p.pool.take());
  EXPECT_EQ(p.pool.available_registered(), 4u);
  EXPECT_EQ(p.pool.available(), 44u);
  for (int i = 0; i < 12; ++i) EXPECT_TRUE(p.pool.is_registered(*taken[i]));
  for (int i = 12; i < 20; ++i) EXPECT_FALSE(p.pool.is_registered(*taken[i]));
  for (Packet* frame : taken) FramePool::release(frame);
  EXPECT_EQ(p.pool.available(), 64u);
  EXPECT_EQ(p.pool.available_registered(), 16u);
}

TEST(FramePool, LastOnesAreTheRegistered) {
  Pool p(8, 4);
  std::vector<Packet*> taken;
  while (Packet* frame = p.pool.take()) taken.push_back(frame);
  EXPECT_EQ(taken.size(), 8u);
  EXPECT_TRUE(p.pool.is_registered(*taken.back()));
}

TEST(FramePool, OrdinaryOnesAreUsedAgainBeforeFreshOnes) {
  Pool p(64, 16);
  Packet* first = p.pool.take_ordinary();
  const uint32_t number = first->index;
  FramePool::release(first);
  EXPECT_EQ(p.pool.take_ordinary()->index, number)
      << "so that no more memory is touched than is needed at a time";
}

TEST(FramePool, RegisteringMoreWhileSomeAreInUse) {
  Pool p(64, 0);
  EXPECT_EQ(p.pool.available_registered(), 0u);
  Packet *below = p.pool.take(), *free_below = p.pool.take();
  std::vector<Packet*> above;
  for (int i = 0; i < 20; ++i) above.push_back(p.pool.take());
  FramePool::release(free_below);
  FramePool::release(above.back());
  above.pop_back();
  EXPECT_EQ(p.pool.available(), 64u - 20u);
  p.pool.extend_registered(4);
  EXPECT_EQ(p.pool.available(), 64u - 20u);
  EXPECT_EQ(p.pool.available_registered(), 1u) << "the others are in use";
  FramePool::release(below);
  EXPECT_EQ(p.pool.available_registered(), 2u);
  for (Packet* frame : above) FramePool::release(frame);
  EXPECT_EQ(p.pool.available_registered(), 4u);
  EXPECT_EQ(p.pool.available(), 64u);
  p.pool.extend_registered(2);
  EXPECT_EQ(p.pool.registered(), 4u) << "none is taken away";
}

TEST(FramePool, APortTakesOnlyWhatItsDeviceKnows) {
  Pool p(64, 8);
  p.pool.extend_registered(16);
  std::set<uint32_t> numbers;
  std::vector<Packet*> taken;
  const uint32_t n = p.pool.take_registered(12, 8, [&](Packet* frame) {
    numbers.insert(frame->index);
    taken.push_back(frame);
  });
  EXPECT_EQ(n, 8u);
  EXPECT_EQ(*numbers.rbegin(), 7u);
  EXPECT_EQ(p.pool.available_registered(), 8u);
  EXPECT_EQ(p.pool.take_registered(8, FramePool::kAll, [&](Packet* frame) { taken.push_back(frame); }), 8u);
  for (Packet* frame : taken) FramePool::release(frame);
  EXPECT_EQ(p.pool.available_registered(), 16u);
}

}  // namespace
}  // namespace accel
