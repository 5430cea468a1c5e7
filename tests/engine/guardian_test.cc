// What the guardian makes rules for: what its process had while it could make them itself, and nothing else.
#include <fcntl.h>

#include <cstring>

#include "tests/engine/fixture.h"

namespace accel::test {
namespace {

using guardian::Errand;

FlowRule rule_for(const Endpoint& local, Protocol protocol = Protocol::kTcp, uint16_t vlan = 0) {
  FlowRule rule;
  rule.protocol = static_cast<uint8_t>(protocol);
  rule.local_port = local.port;
  rule.vlan = vlan;
  std::memcpy(rule.local, local.address.bytes.data(), sizeof rule.local);
  return rule;
}

TEST(Guardian, MakesRulesForTheLocalEndsOfBeforeAlone) {
  Counters counters;
  Guardian guardian(counters);
  guardian.begin();
  ASSERT_TRUE(guardian.running());
  const int no_device = open("/dev/null", O_RDWR | O_CLOEXEC);
  const auto ask = [&](Errand errand, const FlowRule& rule) {
    return static_cast<int>(guardian.run({errand, 0, 0, {}, rule}, no_device).error());
  };
  const FlowRule ours = rule_for({kNear, 80}), other_port = rule_for({kNear, 22});
  EXPECT_EQ(ask(Errand::kLocalEnd, ours), 0);
  EXPECT_EQ(ask(Errand::kRule, ours), EPERM) << "not yet: the process may make it";
  EXPECT_EQ(ask(Errand::kSeal, {}), 0);
  EXPECT_EQ(ask(Errand::kLocalEnd, other_port), EPERM) << "too late";
  EXPECT_EQ(ask(Errand::kRule, ours), ENOTTY) << "the device is asked";
  for (const FlowRule& strange : {other_port, rule_for({kFar, 80}), rule_for({kNear, 80}, Protocol::kUdp),
                                  rule_for({kNear, 80}, Protocol::kTcp, 5), rule_for({kNear, 0}), FlowRule{}})
    EXPECT_EQ(ask(Errand::kRule, strange), EPERM);
  FlowRule connection = ours;
  connection.one_remote = true;
  connection.remote_mask = 0xffff;
  EXPECT_EQ(ask(Errand::kRule, connection), ENOTTY);
  EXPECT_TRUE(guardian.run({Errand::kRule, 0, 0, {}, ours}, -1).is(EBADF));
  close(no_device);
}

}  // namespace
}  // namespace accel::test
