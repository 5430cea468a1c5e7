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
static_assert(parse_ipv4(kIpv4Offset)->fragment && parse_ipv4(kIpv4Offset)->fragment_offset == 8);

constexpr uint8_t kNoOptions[] = {1, 1, 0, 131};  // what follows the end counts for nothing
static_assert(look_at_ipv4_options(kNoOptions) == Ipv4Options::kPlain);
constexpr uint8_t kRecordRoute[] = {7, 3, 4, 0};
static_assert(look_at_ipv4_options(kRecordRoute) == Ipv4Options::kPlain);
constexpr uint8_t kLooseRoute[] = {1, 131, 7, 4, 10, 77, 0, 50};
static_assert(look_at_ipv4_options(kLooseRoute) == Ipv4Options::kSourceRoute);
constexpr uint8_t kStrictRoute[] = {137, 3, 4, 0};
static_assert(look_at_ipv4_options(kStrictRoute) == Ipv4Options::kSourceRoute);
constexpr uint8_t kOptionBeyond[] = {7, 5, 4, 0}, kOptionOfNoLength[] = {7, 0, 0, 0},
                  kOptionCut[] = {1, 1, 1, 7};
static_assert(look_at_ipv4_options(kOptionBeyond) == Ipv4Options::kMalformed &&
              look_at_ipv4_options(kOptionOfNoLength) == Ipv4Options::kMalformed &&
              look_at_ipv4_options(kOptionCut) == Ipv4Options::kMalformed);

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
constexpr auto kIpv6AtomicFragment = hop_by_hop(kIpv6Fragment, 0);
static_assert(!parse_ipv6(kIpv6AtomicFragment)->fragment &&
              parse_ipv6(kIpv6AtomicFragment)->header_length == 56);
constexpr auto fragment_after_options(uint8_t offset_and_more) {
  auto b = kIpv6AtomicFragment;
  b[48] = 6;
  b[51] = offset_and_more;
  b[55] = 9;
  return b;
}
constexpr auto kIpv6First = fragment_after_options(1), kIpv6Later = fragment_after_options(16);
static_assert(parse_ipv6(kIpv6First)->fragment && parse_ipv6(kIpv6First)->more_fragments &&
              parse_ipv6(kIpv6First)->protocol == 6 && parse_ipv6(kIpv6First)->header_length == 56);
static_assert(parse_ipv6(kIpv6Later)->fragment_offset == 16 && !parse_ipv6(kIpv6Later)->more_fragments &&
              parse_ipv6(kIpv6Later)->id == 9);
constexpr uint8_t kRouterAlert[] = {5, 2, 0, 0, 1, 0}, kSkipped[] = {0x3e, 2, 1, 2, 1, 0};
static_assert(ipv6_options_pass(kRouterAlert) && ipv6_options_pass(kSkipped));
constexpr uint8_t kUnknownDrops[] = {0x7e, 2, 1, 2, 1, 0}, kUnknownTells[] = {0xbe, 2, 1, 2, 1, 0};
static_assert(!ipv6_options_pass(kUnknownDrops) && !ipv6_options_pass(kUnknownTells));
constexpr uint8_t kLoudPadding[] = {1, 4, 0, 0, 7, 0}, kOptionTooLong[] = {5, 5, 0, 0, 1, 0};
static_assert(!ipv6_options_pass(kLoudPadding) && !ipv6_options_pass(kOptionTooLong));
constexpr std::array<uint8_t, 8> kMuchPadding{};
static_assert(!ipv6_options_pass(kMuchPadding));
constexpr std::array<uint8_t, 18> kManyOptions = [] {
  std::array<uint8_t, 18> b{};
  for (size_t i = 0; i < b.size(); i += 2) b[i] = 5;
  return b;
}();
static_assert(!ipv6_options_pass(kManyOptions) && ipv6_options_pass(std::span(kManyOptions).first(16)));
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
