#include "mlx5/standing_rules.h"

#include <algorithm>
#include <utility>

namespace accel::mlx5 {
namespace {

/// Addresses that no packet has (RFC 5737, RFC 3849).
constexpr uint32_t kNobodysNet = 0xc0000200;  // 192.0.2.0/24
constexpr uint8_t kNobodysPrefix[] = {0x20, 0x01, 0x0d, 0xb8};

IpAddress nobody(bool v4, uint8_t host) {
  if (v4) return IpAddress::v4(kNobodysNet | host);
  uint8_t bytes[16] = {};
  std::copy(std::begin(kNobodysPrefix), std::end(kNobodysPrefix), bytes);
  bytes[15] = host;
  return IpAddress::from_v6_bytes(bytes);
}

}  // namespace

StandingRules::Kind StandingRules::kind_of(const Match& match) {
  return {.priority = match.priority,
          .remote_mask = match.remote_mask,
          .protocol = match.key.protocol,
          .v4 = match.key.local.address.is_v4(),
          .tagged = match.key.vlan != 0,
          .connected = match.key.is_connected(),
          .any_local_port = match.any_local_port};
}

/// The same fields with other values.
RuleMaker::Match StandingRules::nobodys(const Match& like) const {
  const bool v4 = like.key.local.address.is_v4();
  const auto port = static_cast<uint16_t>(owner_ | 1);
  Match match = like;
  match.key.local = {nobody(v4, static_cast<uint8_t>(owner_ >> 16 | 1)), port};
  if (like.key.is_connected()) match.key.remote = {nobody(v4, static_cast<uint8_t>(owner_ >> 24)), port};
  return match;
}

Result<void> StandingRules::stand(const Match& like) {
  auto rule = device_.create(nobodys(like));
  kinds_.push_back({.kind = kind_of(like), .rule = rule ? *rule : nullptr});
  return rule ? Result<void>() : rule.error();
}

Result<void> StandingRules::begin() {
  const FlowKey connected{Protocol::kTcp, {nobody(true, 1), 1}, {nobody(true, 1), 1}};
  const auto r = stand({.key = connected, .priority = 1, .tag = owner_ & kTagBits});
  return r || r.is(EEXIST) || r.is(ENOSPC) ? Result<void>() : r.error();
}

bool StandingRules::give_room(uint16_t priority) {
  const auto found = std::find_if(kinds_.begin(), kinds_.end(), [priority](const Standing& s) {
    return s.kind.priority == priority && s.rule != nullptr;
  });
  if (found == kinds_.end()) return false;
  device_.destroy(std::exchange(found->rule, nullptr));
  return true;
}

Result<void*> StandingRules::create(const Match& match) {
  const Kind kind = kind_of(match);
  if (std::none_of(kinds_.begin(), kinds_.end(), [&](const Standing& s) { return s.kind == kind; }))
    (void)stand(match);
  auto rule = device_.create(match);
  while ((rule.is(ENOSPC) || rule.is(ENOMEM)) && give_room(match.priority)) rule = device_.create(match);
  return rule;
}

size_t StandingRules::rules() const {
  return static_cast<size_t>(
      std::count_if(kinds_.begin(), kinds_.end(), [](const Standing& s) { return s.rule != nullptr; }));
}

void StandingRules::clear() {
  for (const Standing& s : kinds_)
    if (s.rule != nullptr) device_.destroy(s.rule);
  kinds_.clear();
}

}  // namespace accel::mlx5
