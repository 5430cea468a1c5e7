#include "firewall/nft_parse.h"

#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>

#include <algorithm>

#include "firewall/nft_expression.h"

namespace accel::firewall {
namespace {

constexpr size_t kMostElements = 65536;  ///< of a set

Family family_of(uint8_t nfproto) {
  switch (nfproto) {
    case NFPROTO_IPV4:
      return Family::kIp;
    case NFPROTO_IPV6:
      return Family::kIp6;
    case NFPROTO_INET:
      return Family::kInet;
    case NFPROTO_NETDEV:
      return Family::kNetdev;
    default:
      return Family::kOther;  // bridge and ARP see no packets of ours
  }
}

Hook hook_of(Family family, uint32_t number) {
  if (family == Family::kNetdev) return number == NF_NETDEV_INGRESS ? Hook::kIngress : Hook::kEgress;
  constexpr Hook kHooks[] = {Hook::kPrerouting, Hook::kInput,       Hook::kForward,
                             Hook::kOutput,     Hook::kPostrouting, Hook::kIngress};
  return number < std::size(kHooks) ? kHooks[number] : Hook::kNone;
}

/// One message's subject.
struct Subject {
  uint8_t nfproto = 0;
  View attributes;
};

Subject subject_of(View payload) {
  if (payload.size() < sizeof(nfgenmsg)) return {};
  return {payload[0], payload.subspan(std::min(payload.size(), size_t{NLMSG_ALIGN(sizeof(nfgenmsg))}))};
}

Table* find(Ruleset& rules, uint8_t nfproto, const std::string& name) {
  for (Table& t : rules.tables)
    if (!t.legacy && t.family == family_of(nfproto) && t.name == name) return &t;
  return nullptr;
}

void add_table(const Subject& s, Ruleset& out) {
  Table table;
  table.family = family_of(s.nfproto);
  table.name = text(attribute(s.attributes, NFTA_TABLE_NAME));
  // A dormant table's chains are not called; without it its chains are not read either.
  if (be32(attribute(s.attributes, NFTA_TABLE_FLAGS)) & NFT_TABLE_F_DORMANT) return;
  if (table.family != Family::kOther) out.tables.push_back(std::move(table));
}

void add_chain(const Subject& s, Ruleset& out) {
  Table* table = find(out, s.nfproto, text(attribute(s.attributes, NFTA_CHAIN_TABLE)));
  if (table == nullptr) return;
  Chain chain;
  chain.name = text(attribute(s.attributes, NFTA_CHAIN_NAME));
  chain.nat = text(attribute(s.attributes, NFTA_CHAIN_TYPE)) == "nat";
  if (const View hook = attribute(s.attributes, NFTA_CHAIN_HOOK); !hook.empty()) {
    chain.hook = hook_of(table->family, be32(attribute(hook, NFTA_HOOK_HOOKNUM)));
    chain.priority = static_cast<int32_t>(be32(attribute(hook, NFTA_HOOK_PRIORITY)));
    if (const View one = attribute(hook, NFTA_HOOK_DEV); !one.empty()) chain.devices.push_back(text(one));
    // An entry may be a name's beginning (NFTA_DEVICE_PREFIX, 2 in the same list).
    each_attribute(attribute(hook, NFTA_HOOK_DEVS), [&](uint16_t type, View name) {
      chain.devices.push_back(text(name) + (type == NFTA_DEVICE_NAME ? "" : "*"));
    });
    if (const View policy = attribute(s.attributes, NFTA_CHAIN_POLICY); !policy.empty())
      chain.drops = be32(policy) != NF_ACCEPT;
  }
  table->add(std::move(chain));
}

void add_set(const Subject& s, Ruleset& out) {
  Table* table = find(out, s.nfproto, text(attribute(s.attributes, NFTA_SET_TABLE)));
  if (table == nullptr) return;
  Set set;
  const uint32_t flags = be32(attribute(s.attributes, NFTA_SET_FLAGS));
  set.name = text(attribute(s.attributes, NFTA_SET_NAME));
  set.key_size = be32(attribute(s.attributes, NFTA_SET_KEY_LEN));
  set.intervals = flags & NFT_SET_INTERVAL;
  set.from_packets = flags & NFT_SET_EVAL;
  set.incomplete = flags & NFT_SET_OBJECT;
  set.verdicts =
      (flags & NFT_SET_MAP) && be32(attribute(s.attributes, NFTA_SET_DATA_TYPE)) == NFT_DATA_VERDICT;
  const View fields = attribute(attribute(s.attributes, NFTA_SET_DESC), NFTA_SET_DESC_CONCAT);
  each_attribute(fields, [&](uint16_t, View field) {
    set.fields.push_back(be32(attribute(field, NFTA_SET_FIELD_LEN)));
  });
  table->add(std::move(set));
}

Bytes data_value(View data) {
  const View value = attribute(data, NFTA_DATA_VALUE);
  return {value.begin(), value.end()};
}

SetElement element_of(View attributes) {
  SetElement e;
  const uint32_t flags = be32(attribute(attributes, NFTA_SET_ELEM_FLAGS));
  e.key = data_value(attribute(attributes, NFTA_SET_ELEM_KEY));
  e.key_end = data_value(attribute(attributes, NFTA_SET_ELEM_KEY_END));
  e.ends = flags & NFT_SET_ELEM_INTERVAL_END;
  e.any = flags & NFT_SET_ELEM_CATCHALL;
  each_attribute(attributes, [&](uint16_t type, View payload) {
    if (type == NFTA_SET_ELEM_TIMEOUT || type == NFTA_SET_ELEM_EXPIRATION) e.unsure = true;
    if (type == NFTA_SET_ELEM_EXPR && text(attribute(payload, NFTA_EXPR_NAME)) != "counter") e.unsure = true;
    if (type == NFTA_SET_ELEM_EXPRESSIONS) e.unsure = true;
  });
  const View data = attribute(attributes, NFTA_SET_ELEM_DATA);
  e.data = data_value(data);
  if (const View verdict = attribute(data, NFTA_DATA_VERDICT); !verdict.empty())
    e.verdict = verdict_of(verdict);
  return e;
}

void add_elements(const Subject& s, Ruleset& out) {
  Table* table = find(out, s.nfproto, text(attribute(s.attributes, NFTA_SET_ELEM_LIST_TABLE)));
  if (table == nullptr) return;
  const int index = table->set_index(text(attribute(s.attributes, NFTA_SET_ELEM_LIST_SET)));
  if (index < 0) return;
  Set& set = table->sets[static_cast<size_t>(index)];
  each_attribute(attribute(s.attributes, NFTA_SET_ELEM_LIST_ELEMENTS), [&](uint16_t, View element) {
    if (set.elements.size() >= kMostElements)
      set.incomplete = true;
    else
      set.elements.push_back(element_of(element));
  });
}

void add_rule(const Subject& s, Ruleset& out) {
  Table* table = find(out, s.nfproto, text(attribute(s.attributes, NFTA_RULE_TABLE)));
  if (table == nullptr) return;
  const int index = table->chain_index(text(attribute(s.attributes, NFTA_RULE_CHAIN)));
  if (index < 0) return;
  Rule rule;
  rule.handle = be64(attribute(s.attributes, NFTA_RULE_HANDLE));
  each_attribute(attribute(s.attributes, NFTA_RULE_EXPRESSIONS), [&](uint16_t, View expression) {
    rule.expressions.push_back(
        expression_of(text(attribute(expression, NFTA_EXPR_NAME)), attribute(expression, NFTA_EXPR_DATA)));
  });
  table->chains[static_cast<size_t>(index)].rules.push_back(std::move(rule));
}

/// Elements in the order of their keys, ends of intervals before what begins there; names to indices.
void finish(Table& table) {
  for (Set& set : table.sets)
    std::stable_sort(set.elements.begin(), set.elements.end(), [](const SetElement& a, const SetElement& b) {
      return a.key != b.key ? a.key < b.key : a.ends && !b.ends;
    });
  for (Chain& chain : table.chains)
    for (Rule& rule : chain.rules)
      for (Expression& e : rule.expressions)
        if (e.kind == Expression::Kind::kLookup) e.set = table.set_index(e.name);
}

}  // namespace

void parse_nft(View messages, Ruleset& out) {
  each_message(messages, [&](uint16_t type, View payload) {
    if (NFNL_SUBSYS_ID(type) != NFNL_SUBSYS_NFTABLES) return;
    const Subject s = subject_of(payload);
    switch (NFNL_MSG_TYPE(type)) {
      case NFT_MSG_NEWTABLE:
        return add_table(s, out);
      case NFT_MSG_NEWCHAIN:
        return add_chain(s, out);
      case NFT_MSG_NEWSET:
        return add_set(s, out);
      case NFT_MSG_NEWSETELEM:
        return add_elements(s, out);
      case NFT_MSG_NEWRULE:
        return add_rule(s, out);
      default:
        return;
    }
  });
  for (Table& table : out.tables)
    if (!table.legacy) finish(table);
}

std::vector<SetName> sets_in(View messages) {
  std::vector<SetName> names;
  each_message(messages, [&](uint16_t type, View payload) {
    if (type != (NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWSET)) return;
    const Subject s = subject_of(payload);
    if (family_of(s.nfproto) == Family::kOther) return;
    names.push_back({s.nfproto, text(attribute(s.attributes, NFTA_SET_TABLE)),
                     text(attribute(s.attributes, NFTA_SET_NAME))});
  });
  return names;
}

bool has_base_chain(View messages) {
  bool found = false;
  each_message(messages, [&](uint16_t type, View payload) {
    if (type == (NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWCHAIN) &&
        attribute(subject_of(payload).attributes, NFTA_CHAIN_HOOK).data() != nullptr)
      found = true;
  });
  return found;
}

}  // namespace accel::firewall
