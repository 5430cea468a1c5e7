// The wire's effect on frames: each impairment alone, in the path's own time.
#include "path.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace accel::wire {
namespace {

constexpr uint64_t kMs = 1'000'000;

/// An Ethernet frame with an IPv4 packet of ECN field `ecn`, whose header's sum is right.
std::vector<uint8_t> frame(size_t size, uint8_t ecn = 0) {
  std::vector<uint8_t> f(size);
  f[12] = 0x08;
  f[14] = 0x45;
  f[15] = ecn;
  uint32_t sum = 0;
  for (size_t i = 14; i < 34; i += 2) sum += uint32_t{f[i]} << 8 | f[i + 1];
  sum = ~((sum & 0xffff) + (sum >> 16)) & 0xffff;
  f[24] = static_cast<uint8_t>(sum >> 8);
  f[25] = static_cast<uint8_t>(sum);
  return f;
}

bool sum_holds(const std::vector<uint8_t>& f) {
  uint32_t sum = 0;
  for (size_t i = 14; i < 34; i += 2) sum += uint32_t{f[i]} << 8 | f[i + 1];
  return ((sum & 0xffff) + (sum >> 16)) == 0xffff;
}

struct PathTest : testing::Test {
  void make(const char* text) {
    Impairment impairment;
    ASSERT_TRUE(parse(text, impairment));
    path = std::make_unique<Path>(impairment, 7);
  }
  std::unique_ptr<Path> path;
};

TEST_F(PathTest, WordsAreReadOrRefused) {
  Impairment i;
  EXPECT_TRUE(parse("delay=1.5ms,rate=20m,queue=50k,loss=0.01", i));
  EXPECT_EQ(i.delay, 1'500'000u);
  EXPECT_EQ(i.rate, 20'000'000u);
  EXPECT_EQ(i.queue, 50'000u);
  EXPECT_EQ(i.loss, 0.01);
  for (const char* bad : {"delay", "delay=", "delay=1h", "speed=1", "loss=2", "delay=-1"})
    EXPECT_FALSE(parse(bad, i)) << bad;
}

TEST_F(PathTest, ARateSpacesFramesAndItsQueueIsFinite) {
  make("rate=8m,queue=3000,delay=10ms");  // a byte each us
  std::vector<uint64_t> left;
  for (int n = 0; n < 5; ++n) {
    auto f = frame(1000);
    if (const auto fate = path->take(f, 0); fate.copies) left.push_back(fate.at[0]);
  }
  EXPECT_EQ(left, (std::vector<uint64_t>{11 * kMs, 12 * kMs, 13 * kMs}));
  EXPECT_EQ(path->counts().overflowed, 2u);
  auto f = frame(1000);
  EXPECT_EQ(path->take(f, 2 * kMs).at[0], 14 * kMs);  // two have gone
}

TEST_F(PathTest, JitterKeepsTheOrderAndReorderingDoesNot) {
  make("delay=5ms,jitter=3ms");
  uint64_t before = 0;
  for (uint64_t n = 0; n < 1000; ++n) {
    auto f = frame(100);
    const uint64_t at = path->take(f, n * 10'000).at[0];
    EXPECT_GE(at, before);
    EXPECT_LE(at, n * 10'000 + 8 * kMs);
    before = at;
  }
  make("delay=5ms,reorder=0.1,reorder_by=2ms");
  uint64_t late = 0;
  for (uint64_t n = 0; n < 1000; ++n) {
    auto f = frame(100);
    late += path->take(f, n * 10'000).at[0] == n * 10'000 + 7 * kMs;
  }
  EXPECT_EQ(late, path->counts().reordered);
  EXPECT_NEAR(static_cast<double>(late), 100, 40);
}

TEST_F(PathTest, FaultsComeAsOftenAsSaidAndTheSameBySeed) {
  std::vector<int> first;
  for (int run = 0; run < 2; ++run) {
    make("loss=0.05,duplicate=0.05,corrupt=0.05");
    std::vector<int> copies;
    uint64_t changed = 0;
    for (uint64_t n = 0; n < 2000; ++n) {
      auto f = frame(100);
      const auto was = f;
      copies.push_back(path->take(f, n).copies);
      changed += f != was;
    }
    EXPECT_NEAR(static_cast<double>(path->counts().lost), 100, 40);
    EXPECT_NEAR(static_cast<double>(path->counts().duplicated), 95, 40);
    EXPECT_NEAR(static_cast<double>(changed), 95, 40);
    EXPECT_EQ(changed, path->counts().corrupted);
    if (run == 0) first = copies;
    EXPECT_EQ(copies, first);
  }
}

TEST_F(PathTest, ABurstTakesWhatComesWithinIt) {
  make("loss=0.01,burst=5us");
  uint64_t run = 0;
  for (uint64_t us = 0; us < 5000; ++us) {
    auto f = frame(100);
    if (path->take(f, us * 1000).copies == 0) {
      ++run;
    } else {
      EXPECT_EQ(run % 5, 0u);
      run = 0;
    }
  }
  EXPECT_GT(path->counts().lost, 100u);
}

TEST_F(PathTest, WaitingPacketsAreMarkedWhereTheyMayBe) {
  make("rate=8m,mark=1500");
  auto first = frame(1000, 2), second = frame(1000, 2), third = frame(1000, 2), plain = frame(1000, 0);
  path->take(first, 0);
  path->take(second, 0);
  path->take(third, 0);
  path->take(plain, 0);
  EXPECT_EQ(first[15], 2);
  EXPECT_EQ(second[15], 2);
  EXPECT_EQ(third[15], 3);
  EXPECT_TRUE(sum_holds(third));
  EXPECT_EQ(plain[15], 0);
  EXPECT_EQ(path->counts().marked, 1u);
}

TEST_F(PathTest, LongPacketsAndBlackoutsAreSilent) {
  make("mtu=1400");
  auto fits = frame(1414), long_one = frame(1415);
  EXPECT_EQ(path->take(fits, 0).copies, 1);
  EXPECT_EQ(path->take(long_one, 0).copies, 0);
  make("dark_from=10ms,dark_for=5ms,dark_every=20ms");
  auto at = [&](uint64_t ms) {
    auto f = frame(100);
    return path->take(f, ms * kMs).copies;
  };
  EXPECT_EQ(at(9), 1);
  EXPECT_EQ(at(10), 0);
  EXPECT_EQ(at(14), 0);
  EXPECT_EQ(at(15), 1);
  EXPECT_EQ(at(31), 0);
  EXPECT_EQ(at(36), 1);
}

TEST_F(PathTest, ArpIsLeftAlone) {
  make("loss=1,delay=2ms");
  std::vector<uint8_t> arp(60);
  arp[12] = 0x08;
  arp[13] = 0x06;
  const auto fate = path->take(arp, 0);
  EXPECT_EQ(fate.copies, 1);
  EXPECT_EQ(fate.at[0], 2 * kMs);
}

}  // namespace
}  // namespace accel::wire
