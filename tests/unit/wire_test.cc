// Wire structures, parsers and the Internet checksum against a plain one.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "stack/wire/checksum.h"
#include "stack/wire/eth.h"
#include "stack/wire/icmp.h"
#include "stack/wire/ipv4.h"
#include "stack/wire/ipv6.h"
#include "stack/wire/tcp.h"
#include "stack/wire/udp.h"

namespace accel {
namespace {

// ---- hostile input, at compile time ----
template <size_t N>
constexpr std::array<uint8_t, N> bytes_of(std::initializer_list<uint8_t> first) {
  std::array<uint8_t, N> b{};
  size_t i = 0;
  for (uint8_t v : first) b[i++] = v;
  return b;
}
constexpr auto kShortEth = bytes_of<13>({});
static_assert(!parse_eth(kShortEth));
constexpr auto kShortVlan = bytes_of<17>({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x81, 0x00});
static_assert(!parse_eth(kShortVlan));
constexpr auto kVlan = bytes_of<18>({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x81, 0x00, 0x60, 0x05, 0x08, 0x00});
static_assert(parse_eth(kVlan)->type == kEtherIpv4 && parse_eth(kVlan)->vlan == 5 &&
              parse_eth(kVlan)->length == 18);

constexpr auto kIpv4 = bytes_of<20>({0x45, 0x02, 0x00, 0x28, 0, 0, 0x40, 0, 64, 6});
static_assert(parse_ipv4(kIpv4)->total_length == 40 && parse_ipv4(kIpv4)->tos == 2 &&
              !parse_ipv4(kIpv4)->fragment);
constexpr auto kIpv4Version = bytes_of<20>({0x65, 0, 0, 40});
static_assert(!parse_ipv4(kIpv4Version));
constexpr auto kIpv4HeaderTooSmall = bytes_of<20>({0x44, 0, 0, 40});
static_assert(!parse_ipv4(kIpv4HeaderTooSmall));
constexpr auto kIpv4HeaderBeyond = bytes_of<20>({0x46, 0, 0, 40});
static_assert(!parse_ipv4(kIpv4HeaderBeyond));
constexpr auto kIpv4TotalTooSmall = bytes_of<20>({0x45, 0, 0, 19});
static_assert(!parse_ipv4(kIpv4TotalTooSmall));
constexpr auto kIpv4More = bytes_of<20>({0x45, 0, 0, 40, 0, 0, 0x20, 0});
static_assert(parse_ipv4(kIpv4More)->fragment);
constexpr auto kIpv4Offset = bytes_of<20>({0x45, 0, 0, 40, 0, 0, 0, 1});
static_assert(parse_ipv4(kIpv4Offset)->fragment);

constexpr auto kIpv6 = bytes_of<48>({0x60, 0x20, 0, 0, 0, 8, 17, 64});
static_assert(parse_ipv6(kIpv6)->header_length == 40 && parse_ipv6(kIpv6)->tos == 2 &&
              parse_ipv6(kIpv6)->protocol == 17);
constexpr auto hop_by_hop(uint8_t next, uint8_t length) {
  auto b = bytes_of<56>({0x60, 0, 0, 0, 0, 16, kIpv6HopByHop, 64});
  b[40] = next;
  b[41] = length;
  return b;
}
constexpr auto kIpv6Options = hop_by_hop(6, 0);
static_assert(parse_ipv6(kIpv6Options)->header_length == 48 && parse_ipv6(kIpv6Options)->protocol == 6);
constexpr auto kIpv6OptionsBeyond = hop_by_hop(6, 3);
static_assert(!parse_ipv6(kIpv6OptionsBeyond));
constexpr auto kIpv6HopByHopTwice =
    hop_by_hop(kIpv6HopByHop, 0);  // only allowed first: left for the caller to drop
static_assert(parse_ipv6(kIpv6HopByHopTwice)->protocol == kIpv6HopByHop);
constexpr auto kIpv6FragmentAfter = hop_by_hop(kIpv6Fragment, 0);
static_assert(parse_ipv6(kIpv6FragmentAfter)->fragment);
constexpr auto kIpv6OptionsCut = bytes_of<44>({0x60, 0, 0, 0, 0, 16, kIpv6DestinationOptions, 64});
static_assert(!parse_ipv6(kIpv6OptionsCut));
constexpr auto many_options() {
  std::array<uint8_t, 40 + 80> b{};
  b[0] = 0x60;
  b[5] = 80;
  b[6] = kIpv6DestinationOptions;
  for (size_t i = 40; i < b.size(); i += 8) b[i] = kIpv6DestinationOptions;
  return b;
}
constexpr auto kIpv6Endless = many_options();
static_assert(!parse_ipv6(kIpv6Endless));
constexpr auto kIpv6SegmentsLeft = [] {
  auto b = hop_by_hop(6, 0);
  b[6] = kIpv6Routing;
  b[43] = 1;
  return b;
}();
static_assert(!parse_ipv6(kIpv6SegmentsLeft));

static_assert(icmpv4_meaning(3, 3)->error == ECONNREFUSED && icmpv4_meaning(3, 4)->too_big);
static_assert(!icmpv4_meaning(3, 16) && !icmpv4_meaning(8, 0) && !icmpv6_meaning(128, 0) &&
              !icmpv6_meaning(1, 7));
static_assert(next_plateau(1500) == 1492 && next_plateau(68) == 68);

constexpr Be<uint16_t> be16(uint16_t v) {
  Be<uint16_t> b{};
  b = v;
  return b;
}
static_assert(be16(0x1234).raw[0] == 0x12 && be16(0x1234) == 0x1234);

// ---- checksum ----
uint16_t plain(const std::vector<uint8_t>& b) {
  uint32_t sum = 0;
  for (size_t i = 0; i < b.size(); i += 2) sum += uint32_t{b[i]} << 8 | (i + 1 < b.size() ? b[i + 1] : 0);
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(~sum);
}
uint16_t host(uint16_t memory_order) { return static_cast<uint16_t>(memory_order << 8 | memory_order >> 8); }

TEST(Checksum, EqualsThePlainOneAtEveryLengthAndOffset) {
  std::mt19937 random(1);
  for (size_t n = 0; n < 700; ++n) {
    std::vector<uint8_t> b(n);
    for (auto& v : b) v = static_cast<uint8_t>(random());
    if (n % 3 == 0) std::fill(b.begin(), b.end(), 0xff);
    std::vector<uint8_t> room(n + 40, 0xee), copy(n + 40, 0xdd);
    const size_t offset = n % 33;
    std::copy(b.begin(), b.end(), room.begin() + offset);
    ASSERT_EQ(host(finish_sum(sum_bytes(&room[offset], n))), plain(b)) << n;
    ASSERT_EQ(host(finish_sum(copy_and_sum(&copy[7], &room[offset], n))), plain(b)) << n;
    ASSERT_TRUE(std::equal(b.begin(), b.end(), copy.begin() + 7)) << n;
    ASSERT_EQ(copy[7 + n], 0xdd) << n;
  }
}

TEST(Checksum, PartsOfAnyLengthsSumAsTheWhole) {
  std::mt19937 random(2);
  for (int round = 0; round < 500; ++round) {
    std::vector<uint8_t> b(random() % 10000);
    for (auto& v : b) v = static_cast<uint8_t>(random());
    PartSum sum;
    for (size_t at = 0; at < b.size();) {
      const size_t n = std::min<size_t>(b.size() - at, random() % 300);
      sum.add(&b[at], n);
      at += n;
    }
    ASSERT_EQ(host(finish_sum(sum.sum())), plain(b));
  }
}

TEST(Checksum, Rfc1071Example) {
  const uint8_t b[] = {0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7};
  EXPECT_EQ(host(fold_sum(sum_bytes(b, sizeof b))), 0xddf2);
}

}  // namespace
}  // namespace accel
