// The meaning of known tools' rule sets for flows of the host 10.7.0.1 / fd07::1 on eth0: one table,
// evaluated on what the running kernel tells (live_test.cc) and on what one told before (recorded_test.cc,
// data/).
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "firewall/evaluate.h"

namespace accel::firewall::test {

inline IpAddress address(const std::string& text) {
  uint8_t bytes[16];
  if (inet_pton(AF_INET, text.c_str(), bytes) == 1) return IpAddress::from_v4_bytes(bytes);
  EXPECT_EQ(inet_pton(AF_INET6, text.c_str(), bytes), 1) << text;
  return IpAddress::from_v6_bytes(bytes);
}

inline Question flow(Protocol protocol, const std::string& local, uint16_t port) {
  Question q;
  q.protocol = protocol;
  q.local = {address(local), port};
  q.device = {7, "eth0"};
  q.local_on_device = true;
  return q;
}

/// A listener or bound socket, for any peer.
inline Question listen(uint16_t port, Protocol protocol = Protocol::kTcp,
                       const std::string& at = "10.7.0.1") {
  return flow(protocol, at, port);
}

inline Question connect(const std::string& to, uint16_t port, Protocol protocol = Protocol::kTcp) {
  Question q = flow(protocol, to.find(':') == std::string::npos ? "10.7.0.1" : "fd07::1", 0);
  q.remote = {address(to), port};
  q.active = protocol == Protocol::kTcp;
  q.port_from = 32768;
  q.port_to = 60999;
  q.peer_by_device = true;
  return q;
}

struct Case {
  const char* name;
  Question question;
  const char* refused_by;  ///< part of the rule's text; nullptr: accepted
};

/// `how` loads `file` into the namespace; both also name the recorded data.
struct RuleFile {
  const char* name;
  const char* how;  ///< a shell command, with the file as its standard input
  const char* file;
  std::vector<Case> cases;
};

const std::vector<RuleFile>& rule_files();

inline void check(const Ruleset& rules, const RuleFile& file) {
  for (const Case& c : file.cases) {
    const Finding found = evaluate(rules, c.question);
    EXPECT_EQ(found.accepted, c.refused_by == nullptr) << file.name << ": " << c.name << ": " << found.rule;
    if (c.refused_by == nullptr) continue;
    EXPECT_NE(found.rule.find(c.refused_by), std::string::npos)
        << file.name << ": " << c.name << ": " << found.rule;
  }
}

}  // namespace accel::firewall::test
