#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "stack/tcp/options.h"

namespace accel {
namespace {

// Hostile input is a compile-time test: an out-of-bounds read or an endless loop does not compile.
constexpr uint8_t kZeroLength[] = {99, 0};
constexpr uint8_t kOneLength[] = {99, 1};
constexpr uint8_t kKindOnly[] = {2};
constexpr uint8_t kBeyond[] = {2, 4, 5};
constexpr uint8_t kShortMss[] = {2, 3, 5};
constexpr uint8_t kOddSack[] = {5, 9, 0, 0, 0, 1, 0, 0, 0};
constexpr uint8_t kEmptySack[] = {5, 2};
constexpr uint8_t kFiveBlocks[42] = {5, 42};
constexpr uint8_t kShortTimestamps[] = {8, 9, 0, 0, 0, 0, 0, 0, 0};
static_assert(!parse_options(kZeroLength));
static_assert(!parse_options(kOneLength));
static_assert(!parse_options(kKindOnly));
static_assert(!parse_options(kBeyond));
static_assert(!parse_options(kShortMss));
static_assert(!parse_options(kOddSack));
static_assert(!parse_options(kEmptySack));
static_assert(!parse_options(kFiveBlocks));
static_assert(!parse_options(kShortTimestamps));

constexpr uint8_t kUnknown[] = {254, 4, 1, 2, 1, 3, 3, 20, 0, 77};
static_assert(parse_options(kUnknown)->wscale ==
              14);  // RFC 7323 section 2.3; what is behind the end is not looked at
static_assert(parse_options({})->mss == 0);

TEST(TcpOptions, SynRoundTrip) {
  for (int bits = 0; bits < 8; ++bits) {
    SynOptions o;
    o.mss = 1460;
    o.sack_permitted = bits & 1;
    o.timestamps = bits & 2;
    o.has_wscale = bits & 4;
    o.wscale = 7;
    o.tsval = 0x01020304;
    o.tsecr = 0x05060708;
    uint8_t bytes[40];
    uint32_t n = put_syn_options(bytes, o);
    EXPECT_EQ(n % 4, 0u);
    auto p = parse_options({bytes, n});
    ASSERT_TRUE(p);
    EXPECT_EQ(p->mss, 1460);
    EXPECT_EQ(p->sack_permitted, o.sack_permitted);
    EXPECT_EQ(p->has_timestamps, o.timestamps);
    EXPECT_EQ(p->has_wscale, o.has_wscale);
    EXPECT_EQ(p->tsval, o.timestamps ? o.tsval : 0);
    EXPECT_EQ(p->tsecr, o.timestamps ? o.tsecr : 0);
    EXPECT_EQ(p->wscale, o.has_wscale ? 7 : 0);
  }
}

TEST(TcpOptions, SackRoundTrip) {
  std::vector<SackBlock> blocks{{1, 2}, {0xfffffff0, 5}, {77, 99}};
  uint8_t bytes[40];
  uint32_t n = put_timestamps(bytes, 1, 2);
  n += put_sack(bytes + n, blocks);
  EXPECT_EQ(n, 40u);
  auto p = parse_options({bytes, n});
  ASSERT_TRUE(p);
  ASSERT_EQ(p->sack_count, 3);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(p->sack[i], blocks[i]);
}

TEST(TcpOptions, NoiseNeverHurts) {
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) {
    std::vector<uint8_t> bytes(random() % 41);
    for (auto& b : bytes) b = static_cast<uint8_t>(random() % 4 ? random() % 12 : random());
    auto p = parse_options(bytes);
    ASSERT_TRUE(!p || p->sack_count <= 4);
  }
}

}  // namespace
}  // namespace accel
