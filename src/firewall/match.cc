#include "firewall/match.h"

#include <netinet/in.h>
// after libc's names for the same
#include <linux/if_arp.h>
#include <linux/if_ether.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_conntrack_common.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/rtnetlink.h>

#include <algorithm>

namespace accel::firewall {
namespace {

constexpr size_t kNameSize = 16;  ///< IFNAMSIZ

/// The least and the greatest value that the known bits leave, against `bytes`: -1, 0, 1 as memcmp.
int compare_bound(const Registers& r, size_t at, std::span<const uint8_t> bytes, bool greatest) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    const uint8_t known = r.known[at + i];
    const auto mine = static_cast<uint8_t>(r.value[at + i] | (greatest ? ~known : 0));
    if (mine != bytes[i]) return mine < bytes[i] ? -1 : 1;
  }
  return 0;
}

Match equal(const Registers& r, size_t at, std::span<const uint8_t> bytes) {
  bool all = true;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const uint8_t known = r.known[at + i];
    if ((r.value[at + i] ^ bytes[i]) & known) return Match::kNo;
    all = all && known == 0xff;
  }
  return all ? Match::kYes : Match::kMaybe;
}

Match less(const Registers& r, size_t at, std::span<const uint8_t> bytes, bool or_equal) {
  const int least = compare_bound(r, at, bytes, false), greatest = compare_bound(r, at, bytes, true);
  if (greatest < 0 || (or_equal && greatest == 0)) return Match::kYes;
  if (least > 0 || (!or_equal && least == 0)) return Match::kNo;
  return Match::kMaybe;
}

/// The kernel clears the last word before it loads what does not fill it.
void clear_rest(Registers& r, size_t at, size_t length) {
  for (size_t i = at + length; i < at + ((length + 3) & ~size_t{3}) && i < kRegisterBytes; ++i)
    r.set_bits(i, 0, 0xff);
}

void set_name(Registers& r, size_t at, const std::string& name) {
  r.forget(at, kNameSize);
  for (size_t i = 0; i < kNameSize && at + i < kRegisterBytes; ++i)
    r.set_bits(at + i, i < name.size() ? static_cast<uint8_t>(name[i]) : 0, 0xff);
}

void set_known(Registers& r, size_t at, KnownNumber n) {
  r.set_number(at, n.value & n.known);
  std::memcpy(&r.known[at], &n.known, sizeof n.known);
}

bool is_in(const Place& place, std::initializer_list<Hook> hooks) {
  return std::find(hooks.begin(), hooks.end(), place.hook) != hooks.end();
}

/// An expression of the parser's may not name registers beyond the last.
bool fits(const Expression& e) { return e.dest < kRegisterBytes && e.length <= kRegisterBytes - e.dest; }

}  // namespace

Match compare(const Registers& r, size_t at, std::span<const uint8_t> bytes, Comparison how) {
  if (at + bytes.size() > kRegisterBytes) return Match::kMaybe;
  switch (how) {
    case Comparison::kEqual:
      return equal(r, at, bytes);
    case Comparison::kNotEqual:
      return inverted(equal(r, at, bytes));
    case Comparison::kLess:
      return less(r, at, bytes, false);
    case Comparison::kLessOrEqual:
      return less(r, at, bytes, true);
    case Comparison::kGreater:
      return inverted(less(r, at, bytes, true));
    case Comparison::kGreaterOrEqual:
      return inverted(less(r, at, bytes, false));
  }
  return Match::kMaybe;
}

Match in_range(const Registers& r, size_t at, std::span<const uint8_t> from, std::span<const uint8_t> to) {
  return both(compare(r, at, from, Comparison::kGreaterOrEqual),
              compare(r, at, to, Comparison::kLessOrEqual));
}

Match load_payload(const Expression& e, const Packet& p, Registers& r) {
  if (!fits(e)) return Match::kMaybe;
  r.forget(e.dest, e.length);
  clear_rest(r, e.dest, e.length);
  auto copy = [&](const auto& header) {
    for (size_t i = 0; i < e.length && e.offset + i < header.value.size(); ++i)
      r.set_bits(e.dest + i, header.value[e.offset + i], header.known[e.offset + i]);
  };
  if (e.header == Header::kNetwork) copy(p.network);
  if (e.header == Header::kTransport) copy(p.transport);
  if (e.header == Header::kLink) {
    const uint16_t type = p.v4 ? ETH_P_IP : ETH_P_IPV6;
    for (size_t i = 0; i < e.length; ++i)
      if (e.offset + i == 12 || e.offset + i == 13)
        r.set_bits(e.dest + i, static_cast<uint8_t>(e.offset + i == 12 ? type >> 8 : type), 0xff);
  }
  return Match::kYes;
}

Match load_meta(const Expression& e, const Packet& p, const Place& place, Registers& r) {
  const Question& q = *p.question;
  const bool in = is_in(place, {Hook::kIngress, Hook::kPrerouting, Hook::kInput});
  const bool out = is_in(place, {Hook::kOutput, Hook::kPostrouting, Hook::kEgress});
  auto one_byte = [&](uint8_t value) {
    r.set_bits(e.dest, value, 0xff);
    clear_rest(r, e.dest, 1);
    return Match::kYes;
  };
  auto two_bytes = [&](uint16_t value) {
    r.set_number(e.dest, value);
    clear_rest(r, e.dest, 2);
    return Match::kYes;
  };
  if (e.dest > kRegisterBytes - kNameSize && (e.key == NFT_META_IIFNAME || e.key == NFT_META_OIFNAME))
    return Match::kMaybe;
  switch (e.key) {
    case NFT_META_PROTOCOL:
      return two_bytes(__builtin_bswap16(p.v4 ? ETH_P_IP : ETH_P_IPV6));
    case NFT_META_NFPROTO:
      return one_byte(p.v4 ? NFPROTO_IPV4 : NFPROTO_IPV6);
    case NFT_META_L4PROTO:
      return one_byte(static_cast<uint8_t>(p.protocol));
    case NFT_META_MARK:
      set_known(r, e.dest, p.mark);
      return Match::kYes;
    case NFT_META_IIF:
      r.set_number(e.dest, static_cast<uint32_t>(in ? q.device.ifindex : 0));
      return Match::kYes;
    case NFT_META_OIF:
      r.set_number(e.dest, static_cast<uint32_t>(out ? q.device.ifindex : 0));
      return Match::kYes;
    case NFT_META_IIFNAME:
      set_name(r, e.dest, in ? q.device.name : "");
      return Match::kYes;
    case NFT_META_OIFNAME:
      set_name(r, e.dest, out ? q.device.name : "");
      return Match::kYes;
    case NFT_META_IIFTYPE:
    case NFT_META_OIFTYPE:
      if ((e.key == NFT_META_IIFTYPE) != in) return Match::kNo;
      return two_bytes(ARPHRD_ETHER);
    case NFT_META_PKTTYPE:
      if (in) return one_byte(0);  // PACKET_HOST
      r.forget(e.dest, 4);
      return Match::kYes;
    case NFT_META_SECPATH:
      return one_byte(0);  // what IPsec has unpacked reaches us by no device
    default:
      r.forget(e.dest, kRegisterBytes - e.dest);
      return Match::kYes;
  }
}

Match load_conntrack(const Expression& e, const Packet& p, const Place& place, Registers& r) {
  constexpr uint32_t kNeverOurs = IPS_SRC_NAT | IPS_DST_NAT | IPS_EXPECTED;
  const bool known = place.tracked || p.state.value == kUntracked;
  switch (e.key) {
    case NFT_CT_STATE:
      set_known(r, e.dest, known ? p.state : KnownNumber{0, 0});
      return Match::kYes;
    case NFT_CT_STATUS:
      set_known(r, e.dest, known ? KnownNumber{0, kNeverOurs} : KnownNumber{0, 0});
      return Match::kYes;
    case NFT_CT_DIRECTION:
      r.forget(e.dest, 4);
      if (known && p.protocol == Protocol::kTcp) r.set_bits(e.dest, p.original ? 0 : 1, 0xff);
      clear_rest(r, e.dest, 1);
      return Match::kYes;
    default:
      r.forget(e.dest, kRegisterBytes - e.dest);
      return Match::kYes;
  }
}

Match load_fib(const Expression& e, const Packet& p, Registers& r) {
  const Question& q = *p.question;
  const bool of_source = e.flags & NFTA_FIB_F_SADDR;
  const bool ours = of_source ? !p.incoming : p.incoming;
  r.forget(e.dest, 4);
  if (e.key == NFT_FIB_RESULT_OIFNAME && !(e.flags & NFTA_FIB_F_PRESENT))
    r.forget(e.dest, kRegisterBytes - e.dest);
  if (e.key == NFT_FIB_RESULT_ADDRTYPE) {
    const bool by_device = e.flags & (NFTA_FIB_F_IIF | NFTA_FIB_F_OIF);
    if (ours && (!by_device || q.local_on_device)) r.set_number(e.dest, uint32_t{RTN_LOCAL});
    if (!ours && !by_device) r.set_number(e.dest, uint32_t{RTN_UNICAST});  // others are martians
    return Match::kYes;
  }
  if (ours || !of_source || !q.peer_by_device || q.marks_route) return Match::kYes;
  if (e.flags & NFTA_FIB_F_PRESENT) {
    r.set_bits(e.dest, 1, 0xff);
    clear_rest(r, e.dest, 1);
  } else if (e.key == NFT_FIB_RESULT_OIF) {
    r.set_number(e.dest, static_cast<uint32_t>(q.device.ifindex));
  }
  return Match::kYes;
}

void compute_bitwise(const Expression& e, Registers& r) {
  Known<kRegisterBytes> from = r;
  r.forget(e.dest, e.length);
  if (e.data.size() < e.length || e.data2.size() < e.length) return;  // a shift
  for (size_t i = 0; i < e.length && e.source + i < kRegisterBytes && e.dest + i < kRegisterBytes; ++i) {
    const uint8_t mask = e.data[i];
    const auto known = static_cast<uint8_t>(from.known[e.source + i] | ~mask);
    r.set_bits(e.dest + i, static_cast<uint8_t>((from.value[e.source + i] & mask) ^ e.data2[i]), known);
  }
}

void swap_bytes(const Expression& e, Registers& r) {
  const Known<kRegisterBytes> from = r;
  const size_t word = e.length2;
  r.forget(e.dest, e.length);
  if (word == 0) return;
  for (size_t i = 0; i + word <= e.length; i += word)
    for (size_t j = 0; j < word; ++j) {
      const size_t a = e.source + i + j, b = e.dest + i + word - 1 - j;
      if (a < kRegisterBytes && b < kRegisterBytes) r.set_bits(b, from.value[a], from.known[a]);
    }
}

namespace {

/// Each field of a concatenation is a range of its own (nft_set_pipapo.c).
Match in_element(const Set& set, const SetElement& element, const Registers& r, size_t at) {
  if (element.key_end.empty()) return compare(r, at, element.key, Comparison::kEqual);
  Match match = Match::kYes;
  size_t offset = 0;
  const auto field = [&](size_t size) {
    if (offset + size > element.key.size() || offset + size > element.key_end.size()) return;
    match =
        both(match, in_range(r, at + offset, {&element.key[offset], size}, {&element.key_end[offset], size}));
    offset += (size + 3) & ~size_t{3};
  };
  if (set.fields.empty()) field(element.key.size());
  for (const uint32_t size : set.fields) field(size);
  return match;
}

void add(Found& found, const SetElement& element, Match match) {
  if (element.unsure) match = both(match, Match::kMaybe);
  if (match == Match::kNo) return;
  found.match = std::max(found.match, match);
  found.candidates.push_back(&element);
}

bool all_known(const Registers& r, size_t at, size_t size) {
  return std::all_of(&r.known[at], &r.known[at] + size, [](uint8_t mask) { return mask == 0xff; });
}

/// Elements come sorted by key. The first that may be equal to one that is known.
size_t first_not_below(const Set& set, const Registers& r, size_t at) {
  const Bytes key(&r.value[at], &r.value[at] + set.key_size);
  const auto first = std::lower_bound(set.elements.begin(), set.elements.end(), key,
                                      [](const SetElement& e, const Bytes& k) { return e.key < k; });
  return static_cast<size_t>(first - set.elements.begin());
}

/// One begins an interval, the next that ends one ends it (nft_set_rbtree.c).
Found look_up_interval(const Set& set, const Registers& r, size_t at) {
  Found found;
  size_t i = 0, end = set.elements.size();
  if (all_known(r, at, set.key_size)) {  // that with its key, or the one before
    const size_t next = first_not_below(set, r, at);
    i = next == 0 ? 0 : next - 1;
    end = std::min(end, next + 2);
  }
  for (; i < end && found.match != Match::kYes; ++i) {
    const SetElement& begin = set.elements[i];
    if (begin.ends || begin.any) continue;
    Match match = compare(r, at, begin.key, Comparison::kGreaterOrEqual);
    if (match == Match::kNo) continue;
    for (size_t j = i + 1; j < set.elements.size(); ++j)
      if (!set.elements[j].any) {  // the next begins where this one ends at the latest
        match = both(match, compare(r, at, set.elements[j].key, Comparison::kLess));
        break;
      }
    add(found, begin, match);
  }
  return found;
}

}  // namespace

Found look_up(const Set& set, const Registers& r, size_t at) {
  Found found;
  if (set.from_packets || set.incomplete || at + set.key_size > kRegisterBytes) {
    for (const SetElement& e : set.elements)
      if (!e.ends) found.candidates.push_back(&e);
    found.match = Match::kMaybe;
    return found;
  }
  if (set.intervals && set.fields.size() <= 1) {
    found = look_up_interval(set, r, at);
  } else {
    const bool sorted = !set.intervals && all_known(r, at, set.key_size);
    for (size_t i = sorted ? first_not_below(set, r, at) : 0; i < set.elements.size(); ++i) {
      const SetElement& e = set.elements[i];
      if (sorted && !e.any && compare(r, at, e.key, Comparison::kLess) == Match::kYes) break;
      if (e.any || e.ends) continue;
      add(found, e, in_element(set, e, r, at));
      if (found.match == Match::kYes) break;
    }
  }
  if (found.match == Match::kYes) {  // none before it is, for sure
    found.candidates.front() = found.candidates.back();
    found.candidates.resize(1);
    return found;
  }
  for (const SetElement& e : set.elements)
    if (e.any) add(found, e, found.candidates.empty() ? Match::kYes : Match::kMaybe);
  return found;
}

}  // namespace accel::firewall
