// Steering rules: what matches, in which order, to which queues. The layout of specifications is the kernel's
// (rdma/ib_user_verbs.h, ib_uverbs_flow_spec_*); filters may be shorter than the header's structs, as old
// libraries send them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/core/frame.h"

namespace model {

/// The fields that a rule can look at, laid out so that matching is (field & mask) == value over plain bytes.
struct FlowFields {
  std::array<uint8_t, 6> dst_mac{}, src_mac{};
  std::array<uint8_t, 2> type{};
  std::array<uint8_t, 2> vlan{};
  std::array<uint8_t, 4> src4{}, dst4{};
  uint8_t tos = 0, ttl = 0;
  std::array<uint8_t, 16> src6{}, dst6{};
  std::array<uint8_t, 4> flow_label{};
  uint8_t traffic_class = 0, hop_limit = 0;
  uint8_t proto = 0;
  uint8_t l4 = 0;  // L4, so that a port is only compared where there is one
  uint8_t vlan_there = 0;
  std::array<uint8_t, 2> dst_port{}, src_port{};
};
static_assert(sizeof(FlowFields) == 71 && alignof(FlowFields) == 1);

enum class FlowKind : uint8_t { kNormal, kAllDefault, kMulticastDefault };

struct FlowRule {
  FlowKind kind = FlowKind::kNormal;
  uint16_t priority = 0;
  FlowFields value, mask;
  uint32_t tag = 0;
  bool drop = false;
  uint32_t target = 0;  // QP handle

  bool same_match(const FlowRule& other) const;
  /// Of two rules that match a frame this one has it.
  bool before(const FlowRule& other) const;
};

FlowFields fields_of(std::span<const uint8_t> frame, const Parsed& p);
bool matches(const FlowRule& rule, const FlowFields& fields);

/// Reads `count` specifications; EOPNOTSUPP for what is not modelled, EINVAL for what is malformed.
accel::Result<FlowRule> parse_flow(uint32_t type, uint16_t priority, uint8_t count,
                                   std::span<const uint8_t> specs);

class FlowTable {
 public:
  /// EEXIST when the same match exists with another tag or action; the same match to another target is one
  /// more copy.
  accel::Result<uint32_t> add(const FlowRule& rule);
  bool remove(uint32_t handle);
  bool uses(uint32_t target) const;
  const FlowRule* find(uint32_t handle) const;
  size_t size() const { return rules_.size(); }
  size_t count(uint16_t priority) const;

  /// The rules of the best class that match (normal by priority, then defaults): copies go to each.
  std::span<const FlowRule* const> lookup(const FlowFields& fields);
  /// A rule of the same priority with another match would have had the last frame too: which one wins is the
  /// hardware's affair.
  const FlowRule* conflicting() const { return conflicting_; }

 private:
  struct Entry {
    uint32_t handle;
    FlowRule rule;
  };
  std::vector<Entry> rules_;  // in order of precedence
  std::vector<const FlowRule*> found_;
  const FlowRule* conflicting_ = nullptr;
  uint32_t next_ = 1;
};

}  // namespace model
