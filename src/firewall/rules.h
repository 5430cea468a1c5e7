// A host's packet filter rules in one form, whichever tool made them: the kernel's nf_tables (nft,
// iptables-nft) and its older xtables (iptables-legacy) are read into it (nft_parse.h, legacy_parse.h). Data
// only; what rules do to a flow is judged by evaluate.h.
//
// The form is that of nf_tables (net/netfilter/nf_tables_core.c): a rule is a list of expressions that work
// on registers and end in a verdict.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace accel::firewall {

using Bytes = std::vector<uint8_t>;

enum class Family : uint8_t { kIp, kIp6, kInet, kNetdev, kOther };
enum class Hook : uint8_t { kNone, kPrerouting, kInput, kForward, kOutput, kPostrouting, kIngress, kEgress };

struct Verdict {
  enum class Code : uint8_t { kContinue, kAccept, kDrop, kQueue, kJump, kGoto, kReturn, kUnknown };
  Code code = Code::kContinue;
  std::string chain;  ///< where a jump leads
};

struct SetElement {
  Bytes key, key_end;   ///< key_end: the last key of a range, in a set of concatenated fields
  bool ends = false;    ///< in a set of intervals: the interval that began before ends just below `key`
  bool any = false;     ///< the element for keys that no other has
  bool unsure = false;  ///< it expires, or is limited: it matches or not
  Bytes data;           ///< of a map
  Verdict verdict;      ///< of a verdict map
};

struct Set {
  std::string name;
  uint32_t key_size = 0;
  bool intervals = false;
  bool verdicts = false;         ///< a verdict map
  bool from_packets = false;     ///< packets add elements: nothing is sure of it
  bool incomplete = false;       ///< its elements are too many, or could not be read
  std::vector<uint32_t> fields;  ///< sizes of concatenated fields; empty: one
  std::vector<SetElement> elements;
};

enum class Comparison : uint8_t { kEqual, kNotEqual, kLess, kLessOrEqual, kGreater, kGreaterOrEqual };

/// The header that a payload expression reads (enum nft_payload_bases).
enum class Header : uint8_t { kLink, kNetwork, kTransport, kOther };

struct Expression {
  enum class Kind : uint8_t {
    kNothing,     ///< has no effect on the packet: counters, comments
    kPayload,     ///< reads `length` bytes at `offset` of `header`
    kMeta,        ///< reads meta key `key`
    kConntrack,   ///< reads conntrack key `key`
    kFib,         ///< asks the routing table: result `key`, flags `flags`
    kUnknown,     ///< reads what cannot be known beforehand (random numbers, sockets)
    kNoMatch,     ///< reads what our packets do not have (extension headers), and ends the rule
    kImmediate,   ///< `data` into the register
    kVerdict,     ///< `verdict`
    kCompare,     ///< `source` with `data`
    kRange,       ///< `source` in data..data2, or not
    kBitwise,     ///< source & data ^ data2
    kByteOrder,   ///< swaps words of `length2` bytes
    kLookup,      ///< `source` in `set`, or not; of a map what it gives goes to `dest`
    kMaybe,       ///< matches now and then: limits
    kMark,        ///< sets the packet's mark from `source`
    kNoTracking,  ///< the packet is untracked from here on
    kMatch,       ///< an extension of xtables: `name`, `revision`, `data`
    kTarget,      ///< likewise
    kRefuse,      ///< does something to the packet that only the kernel can: `name` says what
  };
  Kind kind = Kind::kNothing;
  Header header = Header::kOther;
  Comparison comparison = Comparison::kEqual;
  bool invert = false;
  uint8_t source = 0, dest = 0;  ///< registers, as offsets into the 64 bytes of all
  uint32_t offset = 0, length = 0, length2 = 0;
  uint32_t key = 0, flags = 0, revision = 0;
  int set = -1;  ///< index into Table::sets; -1: not found
  Bytes data, data2;
  Verdict verdict;
  std::string name;
};

/// Registers that hold a verdict and not data.
inline constexpr uint8_t kVerdictRegister = 255;
inline constexpr uint32_t kRegisterBytes = 64;

struct Rule {
  uint64_t handle = 0;  ///< nf_tables': what `nft -a list ruleset` shows; of xtables: its number in the chain
  std::vector<Expression> expressions;
};

struct Chain {
  std::string name;
  Hook hook = Hook::kNone;  ///< kNone: reached by jumps only
  int32_t priority = 0;
  bool nat = false;                  ///< sees the first packet of a connection only
  bool drops = false;                ///< its policy
  std::vector<std::string> devices;  ///< of netdev hooks; "eth*": a prefix
  std::vector<Rule> rules;
};

struct Table {
  Family family = Family::kOther;
  bool legacy = false;  ///< of xtables: "iptables-legacy" shows it
  std::string name;
  std::vector<Chain> chains;
  std::vector<Set> sets;
  std::map<std::string, int> chain_numbers, set_numbers;  ///< by name: kube-proxy has thousands

  Chain& add(Chain chain) {
    chain_numbers[chain.name] = static_cast<int>(chains.size());
    return chains.emplace_back(std::move(chain));
  }
  Set& add(Set set) {
    set_numbers[set.name] = static_cast<int>(sets.size());
    return sets.emplace_back(std::move(set));
  }
  /// The kernel calls a chain of it that does something.
  bool meets_packets() const {
    return std::any_of(chains.begin(), chains.end(),
                       [](const Chain& c) { return c.hook != Hook::kNone && (c.drops || !c.rules.empty()); });
  }
  int chain_index(const std::string& chain) const { return number_in(chain_numbers, chain); }
  int set_index(const std::string& set) const { return number_in(set_numbers, set); }

 private:
  static int number_in(const std::map<std::string, int>& numbers, const std::string& name) {
    const auto found = numbers.find(name);
    return found == numbers.end() ? -1 : found->second;
  }
};

struct Ruleset {
  std::vector<Table> tables;
  bool empty() const { return tables.empty(); }
};

}  // namespace accel::firewall
