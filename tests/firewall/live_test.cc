// The rule files loaded into the running kernel, each in a network namespace of its own, and read from it.
// With FIREWALL_RECORD=FOLDER what the kernel tells is written there (data/ is made so).
#include <linux/capability.h>
#include <net/if.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>

#include "firewall/firewall.h"
#include "tests/firewall/cases.h"
#include "tests/firewall/recording.h"

namespace accel::firewall::test {
namespace {

bool sh(const std::string& command) { return std::system(command.c_str()) == 0; }

class Live : public testing::TestWithParam<RuleFile> {
 protected:
  void SetUp() override {
    ASSERT_EQ(unshare(CLONE_NEWNET), 0) << "root is needed";
    ASSERT_TRUE(sh("ip link set lo up && ip link add eth0 type veth peer name eth0p && ip link set eth0 up"));
  }
};

TEST_P(Live, MeansWhatItShould) {
  const RuleFile& file = GetParam();
  const std::string tool = std::string(file.how).substr(0, std::string(file.how).find(' '));
  if (!sh("command -v " + tool + " > /dev/null")) GTEST_SKIP() << tool << " is not installed";
  ASSERT_TRUE(sh(std::string(file.how) + " < " + RULES_FOLDER + "/" + file.file));
  NetlinkSocket netfilter;
  ASSERT_TRUE(netfilter.open(NETLINK_NETFILTER));
  Recording read;
  auto nft = read_nft(netfilter);
  ASSERT_TRUE(nft);
  read.nft = *nft;
  auto legacy = read_legacy();
  ASSERT_TRUE(legacy);
  read.legacy = *legacy;
  check(read.rules(), file);
  if (const char* folder = std::getenv("FIREWALL_RECORD")) {
    ASSERT_TRUE(read.write(std::string(folder) + "/" + file.name + ".rules"));
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, Live, testing::ValuesIn(rule_files()),
                         [](const auto& file) { return std::string(file.param.name); });

/// The whole way: what Firewall reads by itself, and hears of.
TEST(Follow, ChangesActAtOnce) {
  ASSERT_EQ(unshare(CLONE_NEWNET), 0);
  Firewall firewall;
  const Question q = listen(80);
  Instant now{};
  (void)firewall.refresh(now);
  EXPECT_TRUE(firewall.judge(q).accepted);
  EXPECT_FALSE(firewall.refresh(now));
  ASSERT_TRUE(
      sh("nft 'add table inet t; add chain inet t c { type filter hook input priority 0; }; "
         "add rule inet t c tcp dport 80 drop'"));
  EXPECT_TRUE(firewall.refresh(now));
  EXPECT_EQ(firewall.judged(key_of(q)), nullptr);
  const Finding refused = firewall.judge(q);
  EXPECT_FALSE(refused.accepted);
  EXPECT_NE(refused.rule.find("inet t/c handle"), std::string::npos) << refused.rule;
  ASSERT_TRUE(sh("nft delete table inet t"));
  EXPECT_TRUE(firewall.refresh(now));
  EXPECT_TRUE(firewall.judge(q).accepted);
  EXPECT_FALSE(firewall.refresh(now));
}

/// Without CAP_NET_ADMIN while it lives. Programs that it starts have the capability again, as root's.
class Unprivileged {
 public:
  Unprivileged() {
    EXPECT_EQ(syscall(SYS_capget, &header_, before_), 0);
    __user_cap_data_struct less[2] = {before_[0], before_[1]};
    less[0].effective &= ~(1u << CAP_NET_ADMIN);
    EXPECT_EQ(syscall(SYS_capset, &header_, less), 0);
  }
  ~Unprivileged() { EXPECT_EQ(syscall(SYS_capset, &header_, before_), 0); }

 private:
  __user_cap_header_struct header_{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct before_[2]{};
};

constexpr char kDropPort80[] =
    "nft 'add table inet t; add chain inet t c { type filter hook input priority 0; }; "
    "add rule inet t c tcp dport 80 drop'";

TEST(Privilege, WhatWasReadHoldsUntilSomethingChanges) {
  ASSERT_EQ(unshare(CLONE_NEWNET), 0);
  Firewall firewall;
  const Question q = listen(80);
  Instant now{};
  (void)firewall.refresh(now);
  {
    const Unprivileged less;
    EXPECT_FALSE(firewall.refresh(now += 2s));
    EXPECT_TRUE(firewall.judge(q).accepted);
    EXPECT_EQ(firewall.unseen(), "");
    ASSERT_TRUE(sh(kDropPort80));
    EXPECT_TRUE(firewall.refresh(now));
    EXPECT_EQ(firewall.judge(q).rule, "changed rules of nf_tables cannot be read: Operation not permitted");
    EXPECT_FALSE(firewall.refresh(now += 2s));
    EXPECT_FALSE(firewall.judge(q).accepted);
  }
  EXPECT_TRUE(firewall.refresh(now));
  EXPECT_NE(firewall.judge(q).rule.find("inet t/c handle"), std::string::npos);
}

TEST(Privilege, WhatWasNeverReadIsTakenToBeNone) {
  ASSERT_EQ(unshare(CLONE_NEWNET), 0);
  ASSERT_TRUE(sh(kDropPort80));
  Firewall firewall;
  const Question q = listen(80);
  Instant now{};
  {
    const Unprivileged less;
    (void)firewall.refresh(now);
    EXPECT_TRUE(firewall.judge(q).accepted);
    EXPECT_EQ(firewall.unseen(), "nf_tables' rules cannot be read: Operation not permitted");
  }
  EXPECT_TRUE(firewall.refresh(now += 2s));
  EXPECT_FALSE(firewall.judge(q).accepted);
  EXPECT_EQ(firewall.unseen(), "");
}

TEST(Follow, LegacyTablesAreSeenBySlowLooks) {
  if (!sh("command -v iptables-legacy > /dev/null")) GTEST_SKIP() << "iptables is not installed";
  ASSERT_EQ(unshare(CLONE_NEWNET), 0);
  Firewall firewall;
  const Question q = listen(80);
  Instant now{};
  (void)firewall.refresh(now);
  EXPECT_TRUE(firewall.judge(q).accepted);
  ASSERT_TRUE(sh("iptables-legacy -A INPUT -p tcp --dport 80 -j DROP"));
  EXPECT_TRUE(firewall.refresh(now + 2s));
  EXPECT_NE(firewall.judge(q).rule.find("ip filter/INPUT rule 1 (iptables-legacy): drops"), std::string::npos)
      << firewall.judge(q).rule;
  ASSERT_TRUE(sh("iptables-legacy -D INPUT 1"));
  EXPECT_TRUE(firewall.refresh(now + 4s));
  EXPECT_TRUE(firewall.judge(q).accepted);
}

TEST(Follow, IpsecPoliciesAndTcFilters) {
  ASSERT_EQ(unshare(CLONE_NEWNET), 0);
  ASSERT_TRUE(sh("ip link add eth0 numtxqueues 2 type veth peer name eth0p && ip link set eth0 up"));
  const auto number = static_cast<int>(if_nametoindex("eth0"));
  Question q = connect("192.0.2.9", 443);
  q.device = {number, "eth0"};
  Firewall firewall;
  const auto judge = [&](Instant now) {
    (void)firewall.refresh(now);
    return firewall.judge(q);
  };
  Instant now{};
  EXPECT_TRUE(judge(now).accepted);
  EXPECT_TRUE(firewall.touches_nothing(number));
  ASSERT_TRUE(sh(
      "ip xfrm policy add src 0.0.0.0/0 dst 192.0.2.0/24 dir out tmpl src 10.7.0.1 dst 203.0.113.1 proto esp "
      "mode tunnel"));
  EXPECT_NE(judge(now += 2s).rule.find("IPsec policy"), std::string::npos);
  q.remote.address = address("198.51.100.1");
  EXPECT_TRUE(judge(now).accepted);
  ASSERT_TRUE(
      sh("tc qdisc add dev eth0 clsact && tc filter add dev eth0 egress protocol ip u32 match u32 0 0 "
         "classid 1:1"));
  EXPECT_EQ(judge(now += 2s).rule, "tc filters on eth0");
  ASSERT_TRUE(
      sh("tc qdisc del dev eth0 clsact && tc qdisc add dev eth0 root tbf rate 1mbit burst 32k latency 50ms"));
  EXPECT_EQ(judge(now += 2s).rule, "a qdisc on eth0 that limits or delays");
  ASSERT_TRUE(
      sh("tc qdisc replace dev eth0 root handle 1: mq && tc qdisc add dev eth0 parent 1:1 tbf rate 1mbit "
         "burst 32k latency 50ms"));
  EXPECT_EQ(judge(now += 2s).rule, "a qdisc on eth0 that limits or delays") << "below another";
  ASSERT_TRUE(sh("tc qdisc replace dev eth0 parent 1:1 pfifo"));
  EXPECT_TRUE(judge(now += 2s).accepted) << "one that only orders";
  ASSERT_TRUE(sh("tc qdisc del dev eth0 root && ip xfrm policy flush"));
  EXPECT_TRUE(judge(now += 2s).accepted);
  EXPECT_TRUE(firewall.touches_nothing(number));
}

}  // namespace
}  // namespace accel::firewall::test
