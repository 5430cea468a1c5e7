// The answer of a single expression to a packet that is known in part: yes, no, or maybe.
#pragma once

#include "firewall/packet.h"
#include "firewall/rules.h"

namespace accel::firewall {

enum class Match : uint8_t { kNo, kMaybe, kYes };

constexpr Match inverted(Match m, bool invert = true) {
  if (!invert || m == Match::kMaybe) return m;
  return m == Match::kYes ? Match::kNo : Match::kYes;
}
constexpr Match both(Match a, Match b) { return a < b ? a : b; }
constexpr Match sure(bool yes) { return yes ? Match::kYes : Match::kNo; }

using Registers = Known<kRegisterBytes>;

/// The point at which a rule is evaluated.
struct Place {
  Hook hook = Hook::kNone;
  bool tracked = true;  ///< conntrack has seen the packet
};

/// `count` bytes of the registers against as many of `bytes`, compared as the kernel does (memcmp).
Match compare(const Registers& r, size_t at, std::span<const uint8_t> bytes, Comparison how);
Match in_range(const Registers& r, size_t at, std::span<const uint8_t> from, std::span<const uint8_t> to);

/// Loads: what the packet has, into the registers. kNo: it has no such thing, and the rule ends.
Match load_payload(const Expression& e, const Packet& p, Registers& r);
Match load_meta(const Expression& e, const Packet& p, const Place& place, Registers& r);
Match load_conntrack(const Expression& e, const Packet& p, const Place& place, Registers& r);
Match load_fib(const Expression& e, const Packet& p, Registers& r);
void compute_bitwise(const Expression& e, Registers& r);
void swap_bytes(const Expression& e, Registers& r);

/// Elements of a set that the key in the registers may be. `exact`: the first one is it, for sure.
struct Found {
  Match match = Match::kNo;
  std::vector<const SetElement*> candidates;
};
Found look_up(const Set& set, const Registers& r, size_t at);

/// An xtables match by its name and structure (include/uapi/linux/netfilter/xt_*.h).
Match xt_match(const Expression& e, const Packet& p, const Place& place);

}  // namespace accel::firewall
