// Which frames are ours under which rules, with a device that has room for as many rules as the test says.
#include "mlx5/flow_table.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "stack/frame_pool.h"

namespace accel::mlx5 {
namespace {

struct Device : RuleMaker {
  Result<void*> create(const Match& match) override {
    if (refuse != 0) return err(refuse);
    if (rules.size() >= room) return err(ENOSPC);
    rules[++last] = match;
    return reinterpret_cast<void*>(last);  // NOLINT
  }
  void destroy(void* rule) override { EXPECT_EQ(rules.erase(reinterpret_cast<uintptr_t>(rule)), 1u); }
  size_t room = 1000;
  int refuse = 0;
  uintptr_t last = 0;
  std::map<uintptr_t, Match> rules;
};

const Endpoint kHere{IpAddress::v4(0x0a000001), 80};
const Endpoint kThere{IpAddress::v4(0x0a000002), 40000};
const FlowKey kListener{Protocol::kTcp, kHere, {}};
const FlowKey kConnection{Protocol::kTcp, kHere, kThere};

struct Frame {
  explicit Frame(const FlowKey& key, uint8_t flags = 0x10, uint16_t fragment = 0, bool vlan = false) {
    bytes[12] = 0x08;
    size_t at = 14;
    if (vlan || key.vlan != 0) {
      bytes[12] = 0x81;
      bytes[15] = static_cast<uint8_t>(key.vlan);
      bytes[16] = 0x08;
      at = 18;
    }
    bytes[at] = 0x45;
    bytes[at + 6] = static_cast<uint8_t>(fragment >> 8);
    bytes[at + 7] = static_cast<uint8_t>(fragment);
    bytes[at + 9] = static_cast<uint8_t>(key.protocol);
    std::memcpy(&bytes[at + 12], key.remote.address.v4_bytes(), 4);
    std::memcpy(&bytes[at + 16], key.local.address.v4_bytes(), 4);
    bytes[at + 20] = static_cast<uint8_t>(key.remote.port >> 8);
    bytes[at + 21] = static_cast<uint8_t>(key.remote.port);
    bytes[at + 22] = static_cast<uint8_t>(key.local.port >> 8);
    bytes[at + 23] = static_cast<uint8_t>(key.local.port);
    bytes[at + 33] = flags;
    packet.buffer = bytes;
    packet.capacity = packet.length = 64;
  }
  uint8_t bytes[64] = {};
  Packet packet;
};
constexpr uint8_t kSyn = 0x02, kAck = 0x10, kRst = 0x04;

TEST(FlowTable, ListenerTakesSynsAndItsConnections) {
  Device device;
  FlowTable table(device, 7);
  ASSERT_TRUE(table.add(kListener));
  ASSERT_EQ(device.rules.size(), 1u);
  const uint32_t tag = device.rules.begin()->second.tag;
  EXPECT_TRUE(table.is_ours(Frame(kConnection, kSyn).packet, tag));
  EXPECT_FALSE(table.is_ours(Frame(kConnection, kSyn | kAck).packet, tag));
  EXPECT_FALSE(table.is_ours(Frame(kConnection, kAck).packet, tag)) << "a connection that the kernel has";
  ASSERT_TRUE(table.add(kConnection));
  EXPECT_EQ(device.rules.size(), 1u) << "the listener's rule brings it";
  EXPECT_TRUE(table.is_ours(Frame(kConnection, kAck).packet, tag));
  EXPECT_TRUE(table.is_ours(Frame(kConnection, kRst).packet, tag));
  EXPECT_TRUE(table.is_ours(Frame(kConnection, kAck, 0, true).packet, tag)) << "with a priority tag";
  table.remove(kConnection);
  EXPECT_FALSE(table.is_ours(Frame(kConnection, kAck).packet, tag));
}

/// A device cannot be asked for untagged frames alone.
TEST(FlowTable, ASynOfATupleThatTheKernelHasIsTheKernels) {
  Device device;
  static int asked;
  asked = 0;
  const auto kernel_has = [](const Endpoint&, const Endpoint& remote) {
    ++asked;
    return remote.port == kConnection.remote.port;
  };
  FlowTable table(device, 7, nullptr, kernel_has);
  ASSERT_TRUE(table.add(kListener).ok());
  const uint32_t tag = device.rules.begin()->second.tag;
  FlowKey other = kConnection;
  ++other.remote.port;
  EXPECT_TRUE(table.is_ours(Frame(kConnection, kSyn).packet, tag));
  EXPECT_EQ(asked, 0) << "no connection of the kernel's has been seen there";
  EXPECT_FALSE(table.is_ours(Frame(kConnection, kAck).packet, tag));
  EXPECT_FALSE(table.is_ours(Frame(kConnection, kSyn).packet, tag));
  EXPECT_TRUE(table.is_ours(Frame(other, kSyn).packet, tag));
  table.take_acks(kListener, true);
  EXPECT_FALSE(table.is_ours(Frame(kConnection, kAck).packet, tag));
  EXPECT_TRUE(table.is_ours(Frame(other, kAck).packet, tag)) << "it may bring back a SYN cookie";
  EXPECT_EQ(asked, 4);
  ASSERT_TRUE(table.add(kConnection).ok());
  EXPECT_TRUE(table.is_ours(Frame(kConnection, kSyn).packet, tag)) << "a connection of ours";
  EXPECT_EQ(asked, 4);
}

TEST(FlowTable, VlansFlowsAreTheirs) {
  Device device;
  FlowTable table(device, 7);
  FlowKey tagged = kConnection, listener = kListener;
  tagged.vlan = listener.vlan = 5;
  ASSERT_TRUE(table.add(kConnection));
  const uint32_t exact = device.rules.begin()->second.tag;
  EXPECT_TRUE(table.is_ours(Frame(kConnection).packet, exact));
  EXPECT_FALSE(table.is_ours(Frame(tagged).packet, exact));
  ASSERT_TRUE(table.add(tagged));
  ASSERT_EQ(device.rules.size(), 2u);
  EXPECT_TRUE(table.is_ours(Frame(tagged).packet, exact));
  ASSERT_TRUE(table.add(listener));
  uint32_t wide = 0;
  for (const auto& [id, rule] : device.rules)
    if (!rule.key.is_connected()) wide = rule.tag;
  EXPECT_TRUE(table.is_ours(Frame(listener, kSyn).packet, wide));
  FlowKey other = listener;
  other.vlan = 6;
  EXPECT_FALSE(table.is_ours(Frame(other, kSyn).packet, wide));
  EXPECT_FALSE(table.is_ours(Frame(kListener, kSyn).packet, wide));
  table.remove(kConnection);
  EXPECT_TRUE(table.is_ours(Frame(tagged).packet, exact));
}

TEST(FlowTable, RuleStaysForConnectionsOfAClosedListener) {
  Device device;
  FlowTable table(device, 7);
  ASSERT_TRUE(table.add(kListener));
  const uint32_t tag = device.rules.begin()->second.tag;
  ASSERT_TRUE(table.add(kConnection));
  table.remove(kListener);
  EXPECT_EQ(device.rules.size(), 1u);
  EXPECT_TRUE(table.is_ours(Frame(kConnection, kAck).packet, tag));
  const FlowKey stranger{Protocol::kTcp, kHere, {kThere.address, 40001}};
  EXPECT_FALSE(table.is_ours(Frame(stranger, kSyn).packet, tag)) << "nobody of ours listens";
  ASSERT_TRUE(table.add(kListener)) << "again, under the rule that is there";
  EXPECT_EQ(device.rules.size(), 1u);
  EXPECT_TRUE(table.is_ours(Frame(stranger, kSyn).packet, tag));
  table.remove(kListener);
  table.remove(kConnection);
  EXPECT_EQ(device.rules.size(), 0u);
  EXPECT_EQ(table.rules(), 0u);
}

TEST(FlowTable, ActiveConnectionHasItsRuleAndItsTagSaysSo) {
  Device device;
  FlowTable table(device, 7);
  ASSERT_TRUE(table.add(kConnection));
  ASSERT_TRUE(table.add(kConnection)) << "twice is once";
  ASSERT_EQ(device.rules.size(), 1u);
  const auto& rule = device.rules.begin()->second;
  EXPECT_EQ(rule.key, kConnection);
  EXPECT_TRUE(table.is_ours(Frame(kConnection).packet, rule.tag));
  EXPECT_FALSE(table.is_ours(Frame(kConnection, 0, 0x2000).packet, rule.tag)) << "a fragment";
  EXPECT_TRUE(table.is_ours(Frame(kConnection).packet, 0)) << "a device without tags";
  table.remove(kConnection);
  EXPECT_TRUE(device.rules.empty());
  table.remove(kConnection);
}

TEST(FlowTable, ExactRulesWinOverListeners) {
  Device device;
  FlowTable table(device, 7);
  ASSERT_TRUE(table.add(kConnection));
  ASSERT_TRUE(table.add(kListener));
  uint16_t exact = 0, wide = 0;
  for (const auto& [id, rule] : device.rules) (rule.key == kConnection ? exact : wide) = rule.priority;
  EXPECT_LT(exact, wide);
}

TEST(FlowTable, BoundUdp) {
  Device device;
  FlowTable table(device, 7);
  const FlowKey bound{Protocol::kUdp, kHere, {}}, connected{Protocol::kUdp, kHere, kThere};
  ASSERT_TRUE(table.add(bound));
  const uint32_t tag = device.rules.begin()->second.tag;
  EXPECT_TRUE(table.is_ours(Frame(connected).packet, tag));
  EXPECT_FALSE(table.is_ours(Frame(connected, 0, 0x0001).packet, tag));
  EXPECT_TRUE(table.is_ours(Frame(connected).packet, 0));
  EXPECT_FALSE(table.is_ours(Frame(kConnection).packet, 0)) << "TCP to that port is not ours";
}

/// Room for three rules, which exact ones took; one goes, and the next connection's wide rule takes its
/// place.
TEST(FlowTable, AFullDeviceSharesARuleByRemoteEnd) {
  struct Full : Device {
    Result<void*> create(const Match& match) override {
      if (!match.any_local_port && rules.size() >= 3) return err(ENOSPC);  // keeps one for wide rules
      return Device::create(match);
    }
  } device;
  device.room = 4;
  FlowTable table(device, 7);
  std::vector<FlowKey> keys;
  for (uint16_t i = 0; i < 50; ++i) {
    keys.push_back({Protocol::kTcp, {kHere.address, static_cast<uint16_t>(50000 + i)}, kThere});
    ASSERT_TRUE(table.add(keys.back())) << i;
  }
  ASSERT_EQ(device.rules.size(), 4u);
  const auto& wide = device.rules.rbegin()->second;
  ASSERT_TRUE(wide.any_local_port);
  for (const FlowKey& key : keys) EXPECT_TRUE(table.is_ours(Frame(key).packet, wide.tag));
  EXPECT_FALSE(table.is_ours(Frame({Protocol::kTcp, {kHere.address, 51000}, kThere}).packet, wide.tag));
  // Another remote end would need a rule that there is no room for.
  const Endpoint other{IpAddress::v4(0x0a000003), 443};
  EXPECT_TRUE(table.add({Protocol::kTcp, {kHere.address, 50000}, other}).is(ENOSPC));
  for (const FlowKey& key : keys) table.remove(key);
  EXPECT_TRUE(device.rules.empty());
}

TEST(FlowTable, AnotherProcesssRuleIsReported) {
  Device device;
  device.refuse = EEXIST;
  FlowTable table(device, 7);
  EXPECT_TRUE(table.add(kListener).is(EEXIST));
  EXPECT_TRUE(table.add(kConnection).is(EEXIST));
  EXPECT_EQ(table.flows(), 0u);
}

/// What the other processes would say, by the test's mouth.
struct Others : ListenerSharing {
  void set_holder(Holder* h) override { holder = h; }
  bool join(const FlowKey&) override { return ++joined, first; }
  void set_listening(const FlowKey&, bool on) override { listening = on; }
  void leave(const FlowKey&) override { --joined; }
  void serve() override {
    if (said) holder->hold(kListener, *std::exchange(said, {}));
  }
  void user_changed() override {}
  int event_fd() const override { return -1; }
  void abandon() override {}
  Shares say(Shares wanted, const FlowKey& local = kListener) const { return holder->hold(local, wanted); }
  std::optional<Shares> said;  ///< for serve()
  Holder* holder = nullptr;
  bool first = true, listening = true;
  int joined = 0;
};

FlowKey from_port(uint16_t port) { return {Protocol::kTcp, kHere, {kThere.address, port}}; }

TEST(FlowTable, WhoClosedLeavesWithTheLastConnectionUnderItsShares) {
  Device device;
  Others others;
  FlowTable table(device, 7, &others);
  ASSERT_TRUE(table.add(kListener));
  ASSERT_TRUE(table.add(kConnection));
  table.remove(kListener);
  EXPECT_FALSE(others.listening);
  EXPECT_EQ(others.joined, 1) << "a connection lies under its rule";
  others.said = 0;  // one came who listens
  table.serve();
  EXPECT_EQ(others.joined, 0);
  EXPECT_EQ(device.rules.size(), 1u) << "the connection's own";
  EXPECT_EQ(table.flows(), 1u);
  table.remove(kConnection);
  EXPECT_EQ(device.rules.size(), 0u);
}

TEST(FlowTable, AShareIsARuleOfSomeSourcePorts) {
  Device device;
  Others others;
  others.first = false;
  FlowTable table(device, 7, &others);
  ASSERT_TRUE(table.add(kListener));
  EXPECT_TRUE(device.rules.empty()) << "until the others leave us some";
  EXPECT_EQ(others.say(0x21), 0x21u);
  ASSERT_EQ(device.rules.size(), 2u);
  for (const auto& [id, rule] : device.rules) {
    EXPECT_EQ(rule.key, kListener);
    EXPECT_EQ(rule.remote_mask, 0x3e) << "connect() takes ports of one parity";
    EXPECT_EQ(rule.remote_bits & ~rule.remote_mask, 0);
  }
  EXPECT_EQ(device.rules.begin()->second.remote_bits, 0);
  EXPECT_EQ(device.rules.rbegin()->second.remote_bits, 10);
  ASSERT_TRUE(table.add(from_port(40010)));  // 40010 is share 5
  EXPECT_EQ(device.rules.size(), 2u) << "covered";
  ASSERT_TRUE(table.add(from_port(40012)));
  EXPECT_EQ(device.rules.size(), 3u) << "of a share that is not ours any more";
  table.remove(kListener);
  EXPECT_EQ(others.joined, 1) << "for its connection";
  EXPECT_FALSE(others.listening);
  table.remove(from_port(40010));
  EXPECT_EQ(others.joined, 0);
  EXPECT_EQ(device.rules.size(), 1u);
}

TEST(FlowTable, ConnectionsOfAShareGivenUpHaveTheirOwnRules) {
  Device device;
  Others others;
  FlowTable table(device, 7, &others);
  ASSERT_TRUE(table.add(kListener));
  ASSERT_TRUE(table.add(from_port(40010)));
  ASSERT_TRUE(table.add(from_port(40000)));  // share 0
  ASSERT_EQ(device.rules.size(), 1u);
  EXPECT_EQ(others.say(0x3), 0x3u);
  std::map<uint16_t, int> priorities;
  for (const auto& [id, rule] : device.rules) ++priorities[rule.priority];
  EXPECT_EQ(priorities, (std::map<uint16_t, int>{{1, 1}, {3, 2}})) << "one exact, two shares, the whole gone";
  EXPECT_EQ(table.rules(), 3u);
  EXPECT_EQ(others.say(0xff), 0xffu);
  EXPECT_EQ(others.say(0), 0u);
  EXPECT_EQ(table.rules(), 2u) << "both have their own now";
  EXPECT_EQ(table.shares_given(), 38u);
  EXPECT_EQ(table.shares_taken(), 6u);
}

TEST(FlowTable, DatagramsAreSharedWhereTheSocketIs) {
  Device device;
  Others others;
  FlowTable table(device, 7, &others);
  const FlowKey bound{Protocol::kUdp, kHere, {}}, alone{Protocol::kUdp, {kHere.address, 81}, {}};
  ASSERT_TRUE(table.add(alone, false));
  EXPECT_EQ(others.joined, 0);
  ASSERT_TRUE(table.add(bound, true));
  EXPECT_EQ(others.joined, 1);
  EXPECT_EQ(others.say(0x21, bound), 0x21u);
  EXPECT_EQ(table.rules(), 3u);
  for (const auto& [id, rule] : device.rules)
    EXPECT_EQ(rule.remote_mask, rule.key == bound ? 0x3e : 0) << "the other's is whole";
  EXPECT_EQ(others.say(0x20, bound), 0x20u);
  const FlowKey given{Protocol::kUdp, kHere, kThere};  // of share 0
  EXPECT_TRUE(table.is_ours(Frame(given).packet, device.rules.rbegin()->second.tag)) << "it came before";
  table.remove(bound);
  EXPECT_EQ(others.joined, 0);
  EXPECT_EQ(table.rules(), 1u);
}

TEST(FlowTable, WithoutRoomAShareIsKept) {
  Device device;
  Others others;
  FlowTable table(device, 7, &others);
  ASSERT_TRUE(table.add(kListener));
  ASSERT_TRUE(table.add(from_port(40010)));
  device.room = 1;
  EXPECT_EQ(others.say(0x1), kAllShares) << "no room to divide";
  device.room = 3;
  EXPECT_EQ(others.say(0x1), 0x1u) << "the connection's own and the share's, beside the whole's until then";
  ASSERT_TRUE(table.add(from_port(40000)));
  device.room = 2;
  EXPECT_EQ(others.say(0x2), 0x1u) << "the connection keeps its share, and there is no room for the other";
  table.clear();
  EXPECT_TRUE(device.rules.empty());
  EXPECT_EQ(others.joined, 0);
}

TEST(FlowTable, TagsOfTwoOwnersDifferAndAreNeverNought) {
  for (uint32_t owner : {1u, 2u, 0x7fffffu, 0x800000u, 0xffffffffu}) {
    Device device;
    FlowTable table(device, owner);
    ASSERT_TRUE(table.add(kListener));
    ASSERT_TRUE(table.add({Protocol::kUdp, kHere, {}}));
    std::vector<uint32_t> tags;
    for (const auto& [id, rule] : device.rules) tags.push_back(rule.tag);
    EXPECT_NE(tags[0], tags[1]);
    for (uint32_t tag : tags) {
      EXPECT_NE(tag, 0u);
      EXPECT_EQ(tag >> 24, 0u) << "24 bits";
    }
  }
}

TEST(FlowTable, MalformedFramesAreTheStacksToCount) {
  Device device;
  FlowTable table(device, 7);
  ASSERT_TRUE(table.add(kListener));
  const uint32_t tag = device.rules.begin()->second.tag;
  Frame frame(kConnection);
  for (uint32_t length = 0; length <= 64; ++length) {
    frame.packet.length = length;  // never read beyond
    (void)table.is_ours(frame.packet, tag);
  }
  frame.packet.length = 40;
  EXPECT_TRUE(table.is_ours(frame.packet, tag));
}

TEST(FlowTable, AbandonTouchesNothing) {
  Device device;
  {
    FlowTable table(device, 7);
    ASSERT_TRUE(table.add(kListener));
    table.abandon();
  }
  EXPECT_EQ(device.rules.size(), 1u);
}

}  // namespace
}  // namespace accel::mlx5
