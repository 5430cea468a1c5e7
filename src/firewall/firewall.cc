#include "firewall/firewall.h"

#include <sys/socket.h>
// after libc's names for the same
#include <linux/netfilter/nfnetlink.h>
#include <linux/xfrm.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace accel::firewall {
namespace {

constexpr size_t kMostJudged = 8192;

bool lacks_privilege(const Result<void>& r) { return r.is(EPERM) || r.is(EACCES); }

std::string why_unreadable(const char* what, Errno error) {
  const char* text = strerrordesc_np(static_cast<int>(error));
  return std::string(what) + " cannot be read: " + (text != nullptr ? text : "unknown error");
}

}  // namespace

bool Firewall::refresh(Instant now, Duration between_looks) {
  if (events_.heard()) nft_changed_ = true;
  const bool due = !looked_ || now - last_look_ >= between_looks;
  if (due || nft_changed_) {
    const std::string before = std::exchange(unreadable_, {});
    if (due) unseen_.clear();
    auto note = [&](const char* what, const Result<void>& read, bool known) {
      if (read || (known && lacks_privilege(read))) return;
      std::string& why = lacks_privilege(read) ? unseen_ : unreadable_;
      if (why.empty()) why = why_unreadable(what, read.error());
    };
    const Result<void> nft = look_at_nft(due);
    if (knows_nft_ && lacks_privilege(nft))  // asked only after a change
      unreadable_ = why_unreadable("changed rules of nf_tables", nft.error());
    else
      note("nf_tables' rules", nft, false);
    if (due) {
      looked_ = true;
      last_look_ = now;
      note("iptables' tables", look_at_legacy(), knows_legacy_);
      note("IPsec policies", look_at_ipsec(), knows_ipsec_);
      const Result<void> programs = look_at_programs();
      note("programs of the cgroup", programs, knows_programs_ || lacks_privilege(programs));
      look_at_devices();
    } else if (unreadable_.empty()) {
      unreadable_ = before.find("nf_tables") != std::string::npos ? "" : before;
    }
    if (unreadable_ != before) changed_ = true;
    if (changed_) judged_.clear();
    const bool meets_rules = std::any_of(rules_.tables.begin(), rules_.tables.end(),
                                         [](const Table& t) { return t.meets_packets(); });
    plain_ = unreadable_.empty() && !meets_rules && policies_.empty() && programs_ == CgroupPrograms{};
  }
  return std::exchange(changed_, false);
}

Result<void> Firewall::look_at_nft(bool due) {
  if (!events_.is_open()) {
    if (!due || !netlink_protocol_exists(NETLINK_NETFILTER)) return {};
    Result<void> opened = events_.open(NETLINK_NETFILTER);
    if (opened) opened = events_.join(NFNLGRP_NFTABLES);
    if (opened) opened = netfilter_.open(NETLINK_NETFILTER);
    if (!opened) {
      events_.close();
      return opened;
    }
    nft_changed_ = true;
  }
  if (!nft_changed_) return {};
  const auto read = read_nft(netfilter_);
  if (!read) return read.error();
  nft_changed_ = false;
  knows_nft_ = true;
  changed_ = changed_ || !read->empty() || !rules_.empty();
  std::erase_if(rules_.tables, [](const Table& t) { return !t.legacy; });
  parse_nft(*read, rules_);
  return {};
}

Result<void> Firewall::look_at_legacy() {
  auto read = read_legacy();
  if (!read) return read.error();
  knows_legacy_ = true;
  if (*read == legacy_) return {};
  legacy_ = std::move(*read);
  changed_ = true;
  std::erase_if(rules_.tables, [](const Table& t) { return t.legacy; });
  for (const LegacyTable& table : legacy_) parse_legacy(table, rules_);
  return {};
}

Result<void> Firewall::look_at_ipsec() {
  if (!ipsec_.is_open()) {
    if (!netlink_protocol_exists(NETLINK_XFRM)) return {};
    if (auto opened = ipsec_.open(NETLINK_XFRM); !opened) return opened;
  }
  Bytes answer;
  if (auto r = ipsec_.dump(XFRM_MSG_GETPOLICY, Payload{xfrm_userpolicy_id{}}.view(), answer); !r) {
    ipsec_.close();  // the kernel looks at the privilege of whoever opened it, too
    return r;
  }
  knows_ipsec_ = true;
  auto policies = parse_policies(answer);
  if (policies == policies_) return {};
  policies_ = std::move(policies);
  changed_ = true;
  return {};
}

Result<void> Firewall::look_at_programs() {
  const auto read = cgroup_programs();
  if (!read) return read.error();
  knows_programs_ = true;
  if (*read == programs_) return {};
  programs_ = *read;
  changed_ = true;
  return {};
}

void Firewall::look_at_devices() {
  for (auto& [ifindex, before] : controlled_)
    if (const auto now = traffic_control(route_, ifindex); now && *now != before) {
      before = *now;
      changed_ = true;
    }
}

TrafficControl Firewall::controls(int ifindex) {
  if (const auto known = controlled_.find(ifindex); known != controlled_.end()) return known->second;
  if (!route_.open(NETLINK_ROUTE)) return {};
  const auto asked = traffic_control(route_, ifindex);
  return controlled_[ifindex] = asked ? *asked : TrafficControl{};
}

/// What passes a device of these meets there; empty: nothing.
std::string Firewall::met_on(const Device& device) {
  const TrafficControl there = controls(device.ifindex);
  if (there.filters) return "tc filters on " + device.name;
  return there.shapes ? "a qdisc on " + device.name + " that limits or delays" : std::string();
}

const Finding& Firewall::judge(const Question& q) {
  if (judged_.size() >= kMostJudged) judged_.clear();
  return judged_[key_of(q)] = unreadable_.empty() ? judge_anew(q) : Finding{false, unreadable_};
}

Finding Firewall::judge_anew(const Question& q) {
  for (const Device& d : q.below)
    if (std::string met = met_on(d); !met.empty()) return {false, std::move(met)};
  if (std::string met = met_on(q.device); !met.empty()) return {false, std::move(met)};
  if (const char* hook = cgroup_hook_for(programs_, q)) return {false, hook};
  if (const IpsecPolicy* p = policy_for(policies_, q))
    return {false, "IPsec policy with index " + std::to_string(p->index)};
  return evaluate(rules_, q);
}

void Firewall::abandon() {
  for (NetlinkSocket* s : {&events_, &netfilter_, &ipsec_, &route_}) s->close();
}

}  // namespace accel::firewall
