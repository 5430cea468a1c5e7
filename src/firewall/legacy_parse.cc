#include "firewall/legacy_parse.h"

#include <netinet/in.h>
// after libc's names for the same
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter_ipv4/ip_tables.h>
#include <linux/netfilter_ipv6/ip6_tables.h>

#include <algorithm>
#include <map>

#include "firewall/nft_expression.h"

namespace accel::firewall {
namespace {

using Kind = Expression::Kind;
constexpr Hook kHooks[] = {Hook::kPrerouting, Hook::kInput, Hook::kForward, Hook::kOutput,
                           Hook::kPostrouting};
constexpr const char* kHookNames[] = {"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"};

/// include/uapi/linux/netfilter_ipv4.h: enum nf_ip_hook_priorities
int32_t priority_of(const std::string& table, Hook hook) {
  if (table == "raw") return -300;
  if (table == "mangle") return -150;
  if (table == "nat") return hook == Hook::kPrerouting || hook == Hook::kOutput ? -100 : 100;
  return table == "security" ? 50 : 0;
}

/// The fields of an entry that differ between the families.
struct Entry {
  uint16_t target = 0, next = 0;  ///< offsets
  bool leads_away = false;        ///< a jump is a goto
  std::vector<Expression> matches;
};

Expression refusing(const char* what) {
  Expression e;
  e.kind = Kind::kRefuse;
  e.name = what;
  return e;
}

Expression load_network(uint32_t offset, uint32_t length) {
  Expression e;
  e.kind = Kind::kPayload;
  e.header = Header::kNetwork;
  e.offset = offset;
  e.length = length;
  return e;
}

Expression compared(Bytes data, bool invert) {
  Expression e;
  e.kind = Kind::kCompare;
  e.comparison = invert ? Comparison::kNotEqual : Comparison::kEqual;
  e.data = std::move(data);
  return e;
}

void add_address(std::vector<Expression>& to, uint32_t offset, View address, View mask, bool invert) {
  if (std::all_of(mask.begin(), mask.end(), [](uint8_t b) { return b == 0; }) && !invert) return;
  to.push_back(load_network(offset, static_cast<uint32_t>(mask.size())));
  Expression masking;
  masking.kind = Kind::kBitwise;
  masking.length = static_cast<uint32_t>(mask.size());
  masking.data.assign(mask.begin(), mask.end());
  masking.data2.assign(mask.size(), 0);
  to.push_back(std::move(masking));
  to.push_back(compared({address.begin(), address.end()}, invert));
}

void add_device(std::vector<Expression>& to, uint32_t key, const char* name, const unsigned char* mask,
                bool invert) {
  size_t length = 0;
  while (length < IFNAMSIZ && mask[length] != 0) ++length;
  if (length == 0) {
    if (invert) to.push_back(refusing("has a match of devices that is not understood"));
    return;
  }
  Expression load;
  load.kind = Kind::kMeta;
  load.key = key;
  to.push_back(load);
  const auto* bytes = reinterpret_cast<const uint8_t*>(name);
  to.push_back(compared({bytes, bytes + length}, invert));
}

void add_protocol(std::vector<Expression>& to, uint8_t protocol, bool invert) {
  Expression load;
  load.kind = Kind::kMeta;
  load.key = NFT_META_L4PROTO;
  to.push_back(load);
  to.push_back(compared({protocol}, invert));
}

template <class T>
View bytes_of(const T& t) {
  return {reinterpret_cast<const uint8_t*>(&t), sizeof t};
}

Expression no_match() {
  Expression e;
  e.kind = Kind::kNoMatch;
  return e;
}

static_assert(IPT_INV_SRCIP == IP6T_INV_SRCIP && IPT_INV_DSTIP == IP6T_INV_DSTIP &&
              IPT_INV_VIA_IN == IP6T_INV_VIA_IN && IPT_INV_VIA_OUT == IP6T_INV_VIA_OUT);

/// The addresses and devices of a head, ipt_ip or ip6t_ip6. `source`, `destination`: where the packet's
/// header has them.
template <class Head>
std::vector<Expression> ends_of(const Head& h, uint32_t source, uint32_t destination) {
  std::vector<Expression> m;
  add_address(m, source, bytes_of(h.src), bytes_of(h.smsk), h.invflags & IPT_INV_SRCIP);
  add_address(m, destination, bytes_of(h.dst), bytes_of(h.dmsk), h.invflags & IPT_INV_DSTIP);
  add_device(m, NFT_META_IIFNAME, h.iniface, h.iniface_mask, h.invflags & IPT_INV_VIA_IN);
  add_device(m, NFT_META_OIFNAME, h.outiface, h.outiface_mask, h.invflags & IPT_INV_VIA_OUT);
  return m;
}

/// ip_tables.c: ip_packet_match()
Entry head_of(const ipt_entry& e) {
  Entry out{e.target_offset, e.next_offset, (e.ip.flags & IPT_F_GOTO) != 0, ends_of(e.ip, 12, 16)};
  auto& m = out.matches;
  if (e.ip.proto != 0) add_protocol(m, static_cast<uint8_t>(e.ip.proto), e.ip.invflags & IPT_INV_PROTO);
  if ((e.ip.flags & IPT_F_FRAG) && !(e.ip.invflags & IPT_INV_FRAG)) m.push_back(no_match());
  return out;
}

/// ip6_tables.c: ip6_packet_match()
Entry head_of(const ip6t_entry& e) {
  Entry out{e.target_offset, e.next_offset, (e.ipv6.flags & IP6T_F_GOTO) != 0, ends_of(e.ipv6, 8, 24)};
  if (e.ipv6.flags & IP6T_F_PROTO)
    add_protocol(out.matches, static_cast<uint8_t>(e.ipv6.proto), e.ipv6.invflags & IP6T_INV_PROTO);
  return out;
}

/// A match or a target: size, name, revision, content (struct xt_entry_match, xt_entry_target).
struct Part {
  uint16_t size = 0;
  std::string name;
  uint8_t revision = 0;
  View info;
};
constexpr size_t kPartHead = sizeof(xt_entry_match);
static_assert(kPartHead == sizeof(xt_entry_target));

Part part_at(View bytes) {
  Part part;
  if (bytes.size() < kPartHead) return part;
  xt_entry_match head;
  std::memcpy(&head, bytes.data(), sizeof head);
  if (head.u.match_size < kPartHead || head.u.match_size > bytes.size()) return part;
  part.size = head.u.match_size;
  part.name = text({reinterpret_cast<const uint8_t*>(head.u.user.name), sizeof head.u.user.name});
  part.revision = head.u.user.revision;
  part.info = bytes.subspan(kPartHead, part.size - kPartHead);
  return part;
}

Expression extension(Kind kind, const Part& part) {
  Expression e;
  e.kind = kind;
  e.name = part.name;
  e.revision = part.revision;
  e.data.assign(part.info.begin(), part.info.end());
  return extension_effect(std::move(e));
}

/// xt_standard_target: a verdict, or the offset of a chain's first entry.
Expression standard(const Part& target, bool leads_away) {
  int32_t number = 0;
  if (target.info.size() < sizeof number) return refusing("has a target that is not understood");
  std::memcpy(&number, target.info.data(), sizeof number);
  Expression e;
  e.kind = Kind::kVerdict;
  if (number >= 0) {
    e.verdict.code = leads_away ? Verdict::Code::kGoto : Verdict::Code::kJump;
    e.verdict.chain = std::to_string(number);  // its name follows (name_jumps())
  } else if (number == -NF_ACCEPT - 1) {
    e.verdict.code = Verdict::Code::kAccept;
  } else if (number == -NF_DROP - 1) {
    e.verdict.code = Verdict::Code::kDrop;
  } else if (number == XT_RETURN) {
    e.verdict.code = Verdict::Code::kReturn;
  } else {
    e.verdict.code = Verdict::Code::kUnknown;
  }
  return e;
}

/// Entries one after the other. A chain's are those from its first to where the next chain begins: at a
/// hook's first entry, or behind an entry with the target ERROR, which names it.
class Reader {
 public:
  Reader(const LegacyTable& from, Table& table) : from_(from), table_(table) {}
  bool read() { return (from_.v4 ? read_entries<ipt_entry>() : read_entries<ip6t_entry>()) && name_jumps(); }

 private:
  template <class Raw>
  bool read_entries() {
    View rest = from_.entries;
    uint32_t at = 0;
    while (!rest.empty()) {
      if (rest.size() < sizeof(Raw)) return false;
      Raw raw;
      std::memcpy(&raw, rest.data(), sizeof raw);
      if (raw.target_offset < sizeof raw || raw.next_offset < raw.target_offset ||
          raw.next_offset > rest.size())
        return false;
      if (!add(at, head_of(raw), rest.subspan(sizeof raw, raw.next_offset - sizeof raw),
               raw.target_offset - sizeof raw))
        return false;
      at += raw.next_offset;
      rest = rest.subspan(raw.next_offset);
    }
    return true;
  }

  /// `parts`: the entry's matches and, at `target_at`, its target.
  bool add(uint32_t at, Entry entry, View parts, size_t target_at) {
    begin_hook_at(at);
    Rule rule;
    rule.expressions = std::move(entry.matches);
    View matches = parts.first(target_at);
    while (!matches.empty()) {
      const Part part = part_at(matches);
      if (part.size == 0) return false;
      rule.expressions.push_back(extension(Kind::kMatch, part));
      matches = matches.subspan(part.size);
    }
    const Part target = part_at(parts.subspan(target_at));
    if (target.size == 0) return false;
    if (target.name == XT_ERROR_TARGET) {
      begin_chain(at + entry.next, text(target.info));
      return true;
    }
    rule.expressions.push_back(target.name.empty() ? standard(target, entry.leads_away)
                                                   : extension(Kind::kTarget, target));
    if (table_.chains.empty()) return false;
    auto& rules = table_.chains.back().rules;
    rule.handle = rules.size() + 1;
    rules.push_back(std::move(rule));
    return true;
  }

  void begin_hook_at(uint32_t at) {
    for (size_t i = 0; i < std::size(kHooks); ++i) {
      if (!(from_.hooks >> i & 1) || from_.first[i] != at) continue;
      Chain& chain = begin_chain(at, kHookNames[i]);
      chain.hook = kHooks[i];
      chain.priority = priority_of(from_.name, chain.hook);
      chain.nat = from_.name == "nat";
    }
  }

  Chain& begin_chain(uint32_t at, const std::string& name) {
    names_[std::to_string(at)] = name;
    Chain chain;
    chain.name = name;
    return table_.add(std::move(chain));
  }

  bool name_jumps() {
    for (Chain& chain : table_.chains)
      for (Rule& rule : chain.rules)
        for (Expression& e : rule.expressions) {
          if (e.kind != Kind::kVerdict || e.verdict.chain.empty()) continue;
          const auto name = names_.find(e.verdict.chain);
          if (name == names_.end()) return false;
          e.verdict.chain = name->second;
        }
    return true;
  }

  const LegacyTable& from_;
  Table& table_;
  std::map<std::string, std::string> names_;  ///< of chains, by the offset of the first entry
};

/// The last of a hook's entries is its policy: said as such.
void take_policies(Table& table) {
  for (Chain& chain : table.chains) {
    if (chain.hook == Hook::kNone || chain.rules.empty()) continue;
    const auto& last = chain.rules.back().expressions;
    chain.drops = last.size() == 1 && last.front().verdict.code == Verdict::Code::kDrop;
    if (last.size() == 1 && (chain.drops || last.front().verdict.code == Verdict::Code::kAccept))
      chain.rules.pop_back();
  }
}

}  // namespace

void parse_legacy(const LegacyTable& from, Ruleset& out) {
  Table table;
  table.family = from.v4 ? Family::kIp : Family::kIp6;
  table.legacy = true;
  table.name = from.name;
  if (!Reader{from, table}.read()) {
    table.chains.clear();
    for (size_t i = 0; i < std::size(kHooks); ++i) {
      Chain chain;
      chain.name = kHookNames[i];
      chain.hook = kHooks[i];
      chain.rules.push_back({0, {refusing("the table is not understood")}});
      table.add(std::move(chain));
    }
  }
  take_policies(table);
  out.tables.push_back(std::move(table));
}

}  // namespace accel::firewall
