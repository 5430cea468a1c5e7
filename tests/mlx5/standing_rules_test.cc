// Rules that keep the kernel's tables and groups: one of each kind, and none where the room is needed.
#include "mlx5/standing_rules.h"

#include <gtest/gtest.h>

#include <map>

namespace accel::mlx5 {
namespace {

/// Room for so many rules of each priority, as the kernel's driver has it.
struct Device : RuleMaker {
  Result<void*> create(const Match& match) override {
    if (refuse != 0) return err(refuse);
    size_t alike = 0;
    for (const auto& [rule, made] : rules) alike += made.priority == match.priority;
    if (alike >= room) return err(ENOSPC);
    if (alike == 0) ++tables;
    rules[++last] = match;
    return reinterpret_cast<void*>(last);  // NOLINT
  }
  void destroy(void* rule) override { EXPECT_EQ(rules.erase(reinterpret_cast<uintptr_t>(rule)), 1u); }
  size_t room = 1000, tables = 0;
  int refuse = 0;
  uintptr_t last = 0;
  std::map<uintptr_t, Match> rules;
};

RuleMaker::Match connection(uint16_t port) {
  const FlowKey key{Protocol::kTcp, {IpAddress::v4(0x0a000001), port}, {IpAddress::v4(0x0a000002), 80}};
  return {.key = key, .priority = 1, .tag = 7};
}

TEST(StandingRules, ATableIsMadeOnce) {
  Device device;
  StandingRules rules(device, 0x123456);
  ASSERT_TRUE(rules.begin());
  for (uint16_t port = 1; port < 100; ++port) {
    auto rule = rules.create(connection(port));
    ASSERT_TRUE(rule.ok());
    rules.destroy(*rule);
  }
  EXPECT_EQ(device.tables, 1u);
  EXPECT_EQ(device.rules.size(), 1u);
  rules.clear();
  EXPECT_TRUE(device.rules.empty());
}

TEST(StandingRules, EachKindHasOne) {
  Device device;
  StandingRules rules(device, 0x123456);
  ASSERT_TRUE(rules.begin());
  auto v6 = connection(1), udp = connection(2), vlan = connection(3), wide = connection(4),
       share = connection(5);
  v6.key.local.address = v6.key.remote.address = IpAddress::any_v6();
  v6.key.remote.address.bytes[15] = 1;
  udp.key.protocol = Protocol::kUdp;
  vlan.key.vlan = 5;
  wide.any_local_port = true;
  share.key.remote = {};
  share.remote_mask = 62;
  for (const auto& match : {connection(9), v6, udp, vlan, wide, share}) ASSERT_TRUE(rules.create(match).ok());
  EXPECT_EQ(rules.rules(), 6u);
  EXPECT_EQ(device.rules.size(), 12u);
  for (const auto& match : {connection(10), v6, udp, vlan, wide, share})
    ASSERT_TRUE(rules.create(match).ok());
  EXPECT_EQ(rules.rules(), 6u);
  for (const auto& [number, match] : device.rules) {
    EXPECT_EQ(match.key.vlan == 5, match.key.vlan != 0);
    EXPECT_EQ(match.remote_bits & ~match.remote_mask, 0);
  }
}

TEST(StandingRules, TheirRoomIsTheConnections) {
  Device device;
  device.room = 2;
  StandingRules rules(device, 0x123456);
  ASSERT_TRUE(rules.begin());
  ASSERT_TRUE(rules.create(connection(1)).ok());
  ASSERT_TRUE(rules.create(connection(2)).ok());
  EXPECT_EQ(rules.rules(), 0u);
  EXPECT_TRUE(rules.create(connection(3)).is(ENOSPC));
}

TEST(StandingRules, WhatRefusesTheFirstRefusesAll) {
  Device device;
  for (const int error : {EPERM, EOPNOTSUPP, EEXIST, ENOSPC}) {
    device.refuse = error;
    StandingRules rules(device, 1);
    const auto begun = rules.begin();
    EXPECT_EQ(begun.ok(), error == EEXIST || error == ENOSPC);
    EXPECT_TRUE(begun.ok() || begun.is(error));
  }
}

}  // namespace
}  // namespace accel::mlx5
