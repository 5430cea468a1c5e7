// The host's packet filters as path selection asks them: nf_tables, iptables-legacy, IPsec policies, tc
// filters and programs of cgroups. What an accelerated flow's packets would have met there, and pass by.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "base/instant.h"
#include "firewall/evaluate.h"
#include "firewall/ipsec.h"
#include "firewall/nft_parse.h"
#include "firewall/programs.h"
#include "firewall/sources.h"

namespace accel::firewall {

/// A flow is known by these: protocol, local and remote end, active, established (Question), ifindex, mark.
using Key = std::tuple<Protocol, Endpoint, Endpoint, bool, bool, int, uint32_t>;
inline Key key_of(const Question& q) {
  return {q.protocol, q.local, q.remote, q.active, q.established, q.device.ifindex, q.mark};
}

/// The filters of one network namespace: that of the thread that calls refresh() first. Not thread-safe.
class Firewall {
 public:
  /// Reads what has changed: nf_tables at once, by its events; the rest, which has none, when the last look
  /// is that old. True: something has, since the last time. Where there are no rules it costs one system
  /// call.
  bool refresh(Instant now, Duration between_looks = 1s);

  /// There is nothing that could touch a packet of the device, as far as it has been judged before.
  bool touches_nothing(int ifindex) const {
    return plain_ && controlled_.contains(ifindex) &&
           std::none_of(controlled_.begin(), controlled_.end(), [](const auto& d) { return d.second.any(); });
  }
  /// Whether the rules as last read plainly accept the flow; else what does not. The answer is kept, for
  /// judged(), until something changes.
  const Finding& judge(const Question& question);
  const Finding* judged(const Key& key) const {
    const auto known = judged_.find(key);
    return known == judged_.end() ? nullptr : &known->second;
  }
  /// Devices, addresses or routes have changed: what was judged before may be wrong.
  void forget_judgements() { judged_.clear(); }

  /// For accel check.
  const Ruleset& rules() const { return rules_; }
  const std::vector<IpsecPolicy>& policies() const { return policies_; }
  const CgroupPrograms& programs() const { return programs_; }
  const std::string& unreadable() const { return unreadable_; }
  /// Not empty: rules that lack of privilege hides, and that were never read. They are taken to be none.
  const std::string& unseen() const { return unseen_; }
  /// What tc(8) has put on the device; asked once, and then with each look.
  TrafficControl controls(int ifindex);

  /// In a forked child, whose engine is a new one: closes the descriptors.
  void abandon();

 private:
  std::string met_on(const Device& device);
  Result<void> look_at_nft(bool due);
  Result<void> look_at_legacy();
  Result<void> look_at_ipsec();
  Result<void> look_at_programs();
  void look_at_devices();
  Finding judge_anew(const Question& question);

  NetlinkSocket events_, netfilter_, ipsec_, route_;
  Ruleset rules_;
  std::vector<LegacyTable> legacy_;
  std::vector<IpsecPolicy> policies_;
  CgroupPrograms programs_;
  std::map<int, TrafficControl> controlled_;  ///< by ifindex
  std::string unreadable_;                    ///< not empty: why nothing can be judged
  std::string unseen_;
  std::map<Key, Finding> judged_;
  bool nft_changed_ = true;
  /// Read once: a process that gives up its privilege goes on with what it knows.
  bool knows_nft_ = false, knows_legacy_ = false, knows_ipsec_ = false, knows_programs_ = false;
  bool changed_ = false;
  bool plain_ = false;
  bool looked_ = false;
  Instant last_look_{};
};

}  // namespace accel::firewall
