#include "firewall/evaluate.h"

#include <linux/netfilter/xt_CT.h>
#include <linux/netfilter/xt_connmark.h>
#include <linux/netfilter/xt_mark.h>

#include <algorithm>
#include <utility>

#include "firewall/match.h"

namespace accel::firewall {
namespace {

constexpr int kConntrackPriority = -200;  ///< NF_IP_PRI_CONNTRACK: chains before it see no state
constexpr int kMostJumps = 16;            ///< NFT_JUMP_STACK_SIZE
constexpr uint32_t kMostRules = 400000;   ///< for one packet: beyond it we give up

const char* family_name(Family f) {
  constexpr const char* kNames[] = {"ip", "ip6", "inet", "netdev", "?"};
  return kNames[static_cast<size_t>(f)];
}

/// How a chain may be left. Neither: it refuses the packet.
struct Ways {
  bool accepts = false;
  bool goes_on = false;
};

/// A verdict that a rule may give.
struct Given {
  Verdict verdict;
  Match match = Match::kYes;
};

/// One packet's way through the hooks.
class Walk {
 public:
  Walk(const Ruleset& rules, Packet& packet) : rules_(rules), p_(packet) {}
  bool passes() {
    if (p_.incoming) return hook(Hook::kIngress) && hook(Hook::kPrerouting) && hook(Hook::kInput);
    return hook(Hook::kOutput) && hook(Hook::kPostrouting) && hook(Hook::kEgress);
  }
  const std::string& refusal() const { return refusal_; }

 private:
  struct Base {
    const Table* table;
    const Chain* chain;
  };

  bool sees(const Table& table, const Chain& chain, Hook hook) const;
  bool hook(Hook hook);
  Ways chain(const Table& table, const Chain& chain, bool certain, int depth);
  std::vector<Given> rule(const Table& table, const Chain& chain, const Rule& rule, bool certain);
  Match expression(const Table& table, const Expression& e, Registers& r, bool certain,
                   std::vector<Given>& given);
  Match lookup(const Table& table, const Expression& e, Registers& r, std::vector<Given>& given);
  Match target(const Expression& e, bool certain);
  void set_mark(KnownNumber mark, bool certain);
  void set_untracked(bool certain);
  bool follow(const Table& table, const Chain& chain, const Rule& rule, const Given& given, bool& certain,
              int depth, Ways& ways, bool* done);
  bool refuse(const Table& table, const Chain& chain, const Rule* rule, std::string what);

  const Ruleset& rules_;
  Packet& p_;
  Place place_;
  uint32_t walked_ = 0;
  std::string what_;     ///< why the expression at hand is refused
  std::string refusal_;  ///< not empty: the packet does not pass
};

bool Walk::refuse(const Table& table, const Chain& chain, const Rule* rule, std::string what) {
  if (!refusal_.empty()) return false;
  refusal_ = std::string(family_name(table.family)) + " " + table.name + "/" + chain.name;
  if (rule != nullptr) refusal_ += (table.legacy ? " rule " : " handle ") + std::to_string(rule->handle);
  if (table.legacy) refusal_ += " (iptables-legacy)";
  refusal_ += ": " + what;
  return false;
}

bool on_device(const Chain& chain, const std::string& device) {
  return std::any_of(chain.devices.begin(), chain.devices.end(), [&](const std::string& d) {
    return d.ends_with('*') ? device.starts_with(d.substr(0, d.size() - 1)) : device == d;
  });
}

bool Walk::sees(const Table& table, const Chain& chain, Hook hook) const {
  if (chain.hook != hook || (chain.nat && !p_.first)) return false;
  switch (table.family) {
    case Family::kIp:
      if (!p_.v4) return false;
      break;
    case Family::kIp6:
      if (p_.v4) return false;
      break;
    case Family::kOther:
      return false;
    default:
      break;
  }
  if (hook != Hook::kIngress && hook != Hook::kEgress) return true;
  const Question& q = *p_.question;
  return chain.devices.empty() || on_device(chain, q.device.name) ||
         std::any_of(q.below.begin(), q.below.end(), [&](const auto& d) { return on_device(chain, d.name); });
}

bool Walk::hook(Hook hook) {
  std::vector<Base> bases;
  for (const Table& table : rules_.tables)
    for (const Chain& chain : table.chains)
      if (sees(table, chain, hook)) bases.push_back({&table, &chain});
  std::stable_sort(bases.begin(), bases.end(),
                   [](const Base& a, const Base& b) { return a.chain->priority < b.chain->priority; });
  const KnownNumber mark = p_.mark;
  for (const Base& base : bases) {
    place_.hook = hook;
    place_.tracked =
        base.chain->priority > kConntrackPriority && hook != Hook::kIngress && hook != Hook::kEgress;
    const Ways ways = chain(*base.table, *base.chain, true, 0);
    if (!refusal_.empty()) return false;
    if (ways.goes_on && base.chain->drops)
      return refuse(*base.table, *base.chain, nullptr, "its policy drops");
    const bool routes = hook == Hook::kPrerouting || hook == Hook::kOutput;
    if (routes && p_.question->marks_route && (p_.mark.value != mark.value || p_.mark.known != mark.known))
      return refuse(*base.table, *base.chain, nullptr, "sets a mark that routing may heed");
  }
  return true;
}

Ways Walk::chain(const Table& table, const Chain& chain, bool certain, int depth) {
  Ways ways;
  for (const Rule& r : chain.rules) {
    if (++walked_ > kMostRules) refuse(table, chain, &r, "too many rules to look at");
    const std::vector<Given> given = rule(table, chain, r, certain);
    bool done = false;
    for (const Given& g : given)
      if (!follow(table, chain, r, g, certain, depth, ways, &done)) return {};
    if (!refusal_.empty()) return {};
    if (done) return ways;
  }
  ways.goes_on = true;
  return ways;
}

/// False: refused. `done`: the chain is left for sure.
bool Walk::follow(const Table& table, const Chain& here, const Rule& rule, const Given& given, bool& certain,
                  int depth, Ways& ways, bool* done) {
  const bool yes = given.match == Match::kYes;
  switch (given.verdict.code) {
    case Verdict::Code::kContinue:
      return true;
    case Verdict::Code::kAccept:
      ways.accepts = true;
      break;
    case Verdict::Code::kReturn:
      ways.goes_on = true;
      break;
    case Verdict::Code::kDrop:
      return refuse(table, here, &rule, yes ? "drops" : "may drop");
    case Verdict::Code::kQueue:
      return refuse(table, here, &rule, "queues to a program");
    case Verdict::Code::kUnknown:
      return refuse(table, here, &rule, "has a verdict that is not understood");
    case Verdict::Code::kJump:
    case Verdict::Code::kGoto: {
      const int target = table.chain_index(given.verdict.chain);
      if (target < 0 || depth >= kMostJumps)
        return refuse(table, here, &rule, "jumps to a chain that is not known");
      const Ways there = chain(table, table.chains[static_cast<size_t>(target)], certain && yes, depth + 1);
      if (!refusal_.empty()) return false;
      ways.accepts |= there.accepts;
      if (there.accepts || !yes) certain = false;
      if (given.verdict.code == Verdict::Code::kJump) {
        if (yes && !there.goes_on) *done = true;
        return true;
      }
      ways.goes_on |= there.goes_on;
      break;
    }
  }
  if (yes)
    *done = true;
  else
    certain = false;  // from here on some packets have gone another way
  return true;
}

/// The verdicts that the rule may give; none: the next rule's turn.
std::vector<Given> Walk::rule(const Table& table, const Chain& chain, const Rule& rule, bool certain) {
  Registers r;
  Match match = Match::kYes;
  std::vector<Given> given;
  for (const Expression& e : rule.expressions) {
    const Match one = expression(table, e, r, certain && match == Match::kYes, given);
    if (!what_.empty()) {
      refuse(table, chain, &rule, std::exchange(what_, {}));
      return {};
    }
    match = both(match, one);
    if (match == Match::kNo) return {};
    if (!given.empty()) break;
  }
  for (Given& g : given) g.match = both(g.match, match);
  return given;
}

Match Walk::expression(const Table& table, const Expression& e, Registers& r, bool certain,
                       std::vector<Given>& given) {
  using Kind = Expression::Kind;
  switch (e.kind) {
    case Kind::kNothing:
      return Match::kYes;
    case Kind::kPayload:
      return load_payload(e, p_, r);
    case Kind::kMeta:
      return load_meta(e, p_, place_, r);
    case Kind::kConntrack:
      return load_conntrack(e, p_, place_, r);
    case Kind::kFib:
      return load_fib(e, p_, r);
    case Kind::kUnknown:
      r.forget(e.dest, kRegisterBytes - e.dest);
      return Match::kYes;
    case Kind::kNoMatch:
      return Match::kNo;
    case Kind::kImmediate:
      r.set(e.dest, e.data);
      return Match::kYes;
    case Kind::kVerdict:
      given.push_back({e.verdict, Match::kYes});
      return Match::kYes;
    case Kind::kCompare:
      return compare(r, e.source, e.data, e.comparison);
    case Kind::kRange:
      return inverted(in_range(r, e.source, e.data, e.data2), e.invert);
    case Kind::kBitwise:
      compute_bitwise(e, r);
      return Match::kYes;
    case Kind::kByteOrder:
      swap_bytes(e, r);
      return Match::kYes;
    case Kind::kLookup:
      return lookup(table, e, r, given);
    case Kind::kMaybe:
      return Match::kMaybe;
    case Kind::kMark: {
      KnownNumber mark;
      std::memcpy(&mark.value, &r.value[e.source], sizeof mark.value);
      std::memcpy(&mark.known, &r.known[e.source], sizeof mark.known);
      set_mark(mark, certain);
      return Match::kYes;
    }
    case Kind::kNoTracking:
      set_untracked(certain);
      return Match::kYes;
    case Kind::kMatch:
      return xt_match(e, p_, place_);
    case Kind::kTarget:
      return target(e, certain);
    case Kind::kRefuse:
      what_ = e.name;
      return Match::kNo;
  }
  return Match::kMaybe;
}

Match Walk::lookup(const Table& table, const Expression& e, Registers& r, std::vector<Given>& given) {
  if (e.set < 0 || static_cast<size_t>(e.set) >= table.sets.size()) {
    what_ = "looks into a set that is not known";
    return Match::kMaybe;
  }
  const Set& set = table.sets[static_cast<size_t>(e.set)];
  const Found found = look_up(set, r, e.source);
  if (set.verdicts) {
    if (set.incomplete) what_ = "looks into a map that is too large";
    if (set.from_packets) what_ = "looks into a map that packets change";
    const Match each = found.match == Match::kYes ? Match::kYes : Match::kMaybe;
    for (const SetElement* element : found.candidates) given.push_back({element->verdict, each});
    return found.match == Match::kNo ? Match::kNo : Match::kYes;
  }
  if (e.dest != kVerdictRegister) {  // a map: what it gives is known if one element is
    r.forget(e.dest, kRegisterBytes - e.dest);
    if (found.match == Match::kYes) r.set(e.dest, found.candidates.front()->data);
  }
  return inverted(found.match, e.invert);
}

/// Targets of xtables that change nothing but what is kept here.
Match Walk::target(const Expression& e, bool certain) {
  if (e.name == "MARK" && e.revision == 2 && e.data.size() >= sizeof(xt_mark_tginfo2)) {
    xt_mark_tginfo2 info;
    std::memcpy(&info, e.data.data(), sizeof info);
    set_mark(
        {((p_.mark.value & ~info.mask) ^ info.mark) & (p_.mark.known | info.mask), p_.mark.known | info.mask},
        certain);
  } else if (e.name == "CONNMARK" && e.revision >= 1 && e.data.size() >= sizeof(xt_connmark_tginfo1)) {
    const uint8_t mode =
        e.data[e.revision == 1 ? offsetof(xt_connmark_tginfo1, mode) : offsetof(xt_connmark_tginfo2, mode)];
    if (mode == XT_CONNMARK_RESTORE) set_mark({0, 0}, certain);
  } else if (e.name == "NOTRACK") {
    set_untracked(certain);
  } else if (e.name == "CT" && e.data.size() >= sizeof(xt_ct_target_info::flags)) {
    uint16_t flags;
    std::memcpy(&flags, e.data.data(), sizeof flags);
    if (flags & XT_CT_NOTRACK)
      set_untracked(certain);
    else
      what_ = "sets up connection tracking (CT)";
  } else {
    what_ = "has the target " + e.name;
  }
  return Match::kYes;
}

void Walk::set_mark(KnownNumber mark, bool certain) {
  if (!certain) {
    const uint32_t same = p_.mark.known & mark.known & ~(p_.mark.value ^ mark.value);
    mark = {mark.value & same, same};
  }
  p_.mark = mark;
}

void Walk::set_untracked(bool certain) {
  if (certain)
    p_.state = {kUntracked, ~0u};
  else
    p_.state = {0, 0};
}

}  // namespace

Finding evaluate(const Ruleset& rules, const Question& question) {
  if (rules.empty()) return {};
  for (Packet& packet : packets_of(question)) {
    Walk walk{rules, packet};
    if (!walk.passes()) return {false, walk.refusal()};
  }
  return {};
}

}  // namespace accel::firewall
