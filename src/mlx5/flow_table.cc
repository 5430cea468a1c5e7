#include "mlx5/flow_table.h"

#include <bit>
#include <optional>
#include <utility>

namespace accel::mlx5 {
namespace {

/// Exact rules before wide ones; the kernel's own come last. While a local end is divided the rules of its
/// shares and the one of the whole are there together. A VLAN's go before those without, which bring tagged
/// frames as well (make()).
constexpr uint16_t kExact = 0, kShare = 2, kLocalEnd = 4, kRemoteEnd = 6;

constexpr uint32_t kEthernetHeader = 14;
constexpr uint16_t kVlan = 0x8100, kIpv4 = 0x0800, kIpv6 = 0x86dd;
constexpr uint8_t kSyn = 0x02, kRst = 0x04, kAck = 0x10;

struct Summary {
  FlowKey key;  ///< ports 0: a fragment, or neither TCP nor UDP
  bool opening = false;
  bool acknowledges = false;  ///< ACK without SYN or RST
};

uint16_t be16(const uint8_t* p) { return static_cast<uint16_t>(p[0] << 8 | p[1]); }

/// As much as is needed to tell whose the frame is. Headers lie in the first buffer.
std::optional<Summary> summarize(const Packet& frame) {
  const uint8_t* p = frame.data();
  uint32_t at = kEthernetHeader;
  if (frame.length < at) return {};
  uint16_t type = be16(p + 12);
  Summary s;
  if (type == kVlan && frame.length >= at + 4) {
    s.key.vlan = be16(p + 14) & kVlanId;
    type = be16(p + 16);
    at += 4;
  }
  uint8_t protocol = 0;
  if (type == kIpv4 && frame.length >= at + 20) {
    s.key.remote.address = IpAddress::from_v4_bytes(p + at + 12);
    s.key.local.address = IpAddress::from_v4_bytes(p + at + 16);
    protocol = p[at + 9];
    if ((be16(p + at + 6) & 0x3fff) != 0) return s;
    at += (p[at] & 15u) * 4;
  } else if (type == kIpv6 && frame.length >= at + 40) {
    s.key.remote.address = IpAddress::from_v6_bytes(p + at + 8);
    s.key.local.address = IpAddress::from_v6_bytes(p + at + 24);
    protocol = p[at + 6];
    at += 40;
  } else {
    return {};
  }
  const bool tcp = protocol == static_cast<uint8_t>(Protocol::kTcp);
  if (!tcp && protocol != static_cast<uint8_t>(Protocol::kUdp)) return s;
  if (frame.length < at + (tcp ? 20u : 8u)) return {};
  s.key.protocol = static_cast<Protocol>(protocol);
  s.key.remote.port = be16(p + at);
  s.key.local.port = be16(p + at + 2);
  s.opening = tcp && (p[at + 13] & (kSyn | kAck)) == kSyn;
  s.acknowledges = tcp && (p[at + 13] & (kSyn | kAck | kRst)) == kAck;
  return s;
}

bool is_v4_fragment(const Packet& frame) {
  const uint8_t* p = frame.data();
  return frame.length >= kEthernetHeader + 20 && be16(p + 12) == kIpv4 && (be16(p + 20) & 0x3fff) != 0;
}

/// A rule without VLAN brings tagged frames as well: verbs cannot ask for none.
bool is_tagged(const Packet& frame) {
  return frame.length >= kEthernetHeader && be16(frame.data() + 12) == kVlan;
}

bool no_room(const Result<void*>& rule) { return rule.is(ENOSPC) || rule.is(ENOMEM); }

}  // namespace

FlowTable::FlowTable(RuleMaker& device, uint32_t owner, ListenerSharing* sharing, KernelHas kernel_has)
    : device_(device), tags_{owner}, sharing_(sharing), kernel_has_(kernel_has) {
  if (sharing_) sharing_->set_holder(this);
}

Result<void*> FlowTable::make(RuleMaker::Match match) {
  if (match.key.vlan == 0) ++match.priority;
  auto rule = device_.create(match);
  if (rule) ++rules_;
  return rule;
}

Result<void> FlowTable::add(const FlowKey& key, bool shared) {
  return key.is_connected() ? add_connected(key) : add_bound(key, shared);
}

Result<void> FlowTable::add_bound(const FlowKey& key, bool shared) {
  const auto known = bound_.find(key);
  const bool tcp = key.protocol == Protocol::kTcp;
  if (known != bound_.end()) {  // kept for connections of an earlier listener
    known->second.open = true;
    if (ListenerSharing* s = sharing_of(known->second)) s->set_listening(key, true);
    return {};
  }
  ListenerSharing* const sharing = shared ? sharing_ : nullptr;
  if (sharing && !sharing->join(key)) {
    // The others leave us shares; until then the kernel accepts.
    Wide& entry = bound_[key];
    entry.open = entry.shared = true;
    entry.shares = std::make_unique<std::array<void*, kShareCount>>();
    return {};
  }
  auto rule = make({.key = key, .priority = kLocalEnd, .tag = tcp ? tags_.wide() : tags_.exact()});
  if (!rule) {
    if (sharing) sharing->leave(key);
    return no_room(rule) ? err(ENOSPC) : rule.error();
  }
  Wide& entry = bound_[key];
  entry.rule = *rule;
  entry.open = true;
  entry.shared = shared;
  return {};
}

Result<void> FlowTable::add_connected(const FlowKey& key) {
  if (connected_.contains(key)) return {};
  if (key.protocol == Protocol::kTcp) {
    if (const auto bound = bound_.find(local_of(key));
        bound != bound_.end() && bound->second.covers(key.remote)) {
      ++bound->second.covered;
      connected_[key] = {nullptr, Cover::kLocal};
      return {};
    }
  }
  auto rule = make({.key = key, .priority = kExact, .tag = tags_.exact()});
  if (!rule) return no_room(rule) ? add_under_remote(key, err(ENOSPC)) : Result<void>(rule.error());
  connected_[key] = {*rule, Cover::kOwnRule};
  return {};
}

/// The device is full: one rule for all connections to that remote end, told apart here.
Result<void> FlowTable::add_under_remote(const FlowKey& key, Errno why) {
  auto [entry, is_new] = remotes_.try_emplace(remote_of(key));
  if (is_new) {
    auto rule = make({.key = key, .any_local_port = true, .priority = kRemoteEnd, .tag = tags_.wide()});
    if (!rule) {
      remotes_.erase(entry);
      return no_room(rule) ? why : rule.error();
    }
    entry->second.rule = *rule;
  }
  ++entry->second.covered;
  connected_[key] = {nullptr, Cover::kRemote};
  return {};
}

void FlowTable::drop_if_unused(WideRules& wide, WideRules::iterator at) {
  if (at->second.open || at->second.covered != 0) return;
  destroy_all(at->second);
  const FlowKey key = at->first;
  ListenerSharing* const sharing = sharing_of(at->second);
  wide.erase(at);
  if (sharing) sharing->leave(key);
}

void FlowTable::destroy(void*& rule) {
  if (rule == nullptr) return;
  device_.destroy(std::exchange(rule, nullptr));
  --rules_;
}

void FlowTable::destroy_all(Wide& entry) {
  destroy(entry.rule);
  if (!entry.shares) return;
  for (void*& rule : *entry.shares) destroy(rule);
}

void FlowTable::uncover(WideRules& wide, const FlowKey& key) {
  const auto at = wide.find(key);
  if (at == wide.end()) return;
  --at->second.covered;
  drop_if_unused(wide, at);
}

void FlowTable::take_acks(const FlowKey& key, bool on) {
  if (const auto at = bound_.find(key); at != bound_.end()) at->second.takes_acks = on;
}

void FlowTable::remove(const FlowKey& key) {
  if (!key.is_connected()) {
    const auto at = bound_.find(key);
    if (at == bound_.end()) return;
    at->second.open = at->second.takes_acks = false;
    if (ListenerSharing* s = sharing_of(at->second); s && at->second.covered != 0)
      s->set_listening(key, false);
    else
      drop_if_unused(bound_, at);
    return drop_uncovered();
  }
  const auto at = connected_.find(key);
  if (at == connected_.end()) return;
  const Connected flow = at->second;
  connected_.erase(at);
  switch (flow.cover) {
    case Cover::kOwnRule:
      device_.destroy(flow.rule);
      --rules_;
      return;
    case Cover::kLocal:
      return uncover(bound_, local_of(key));
    case Cover::kRemote:
      return uncover(remotes_, remote_of(key));
  }
}

void FlowTable::clear() {
  for (const auto& [key, flow] : connected_)
    if (flow.rule) device_.destroy(flow.rule);
  for (WideRules* wide : {&bound_, &remotes_})
    for (auto& [key, entry] : *wide) destroy_all(entry);
  for (const auto& [key, entry] : bound_)
    if (ListenerSharing* s = sharing_of(entry)) s->leave(key);
  abandon();
}

void FlowTable::abandon() {
  connected_.clear();
  bound_.clear();
  uncovered_.clear();
  remotes_.clear();
  rules_ = 0;
}

// --- shares ---

Shares FlowTable::Wide::held() const {
  if (!shares) return rule != nullptr ? kAllShares : 0;
  Shares held = 0;
  for (unsigned i = 0; i < kShareCount; ++i)
    if ((*shares)[i] != nullptr) held |= Shares{1} << i;
  return held;
}

bool FlowTable::make_share(const FlowKey& local, Wide& entry, unsigned share) {
  auto rule = make({.key = local,
                    .remote_bits = port_of_share(share),
                    .remote_mask = kShareMask,
                    .priority = kShare,
                    .tag = tags_.wide()});
  if (rule) (*entry.shares)[share] = *rule;
  return rule.ok();
}

/// Rules for connections whose share is to be another's. What the device has no room for keeps its share;
/// returns those.
Shares FlowTable::uncover_shares(const FlowKey& local, Wide& entry, Shares leaving) {
  Shares kept = 0;
  for (auto& [key, flow] : connected_) {
    const Shares share = Shares{1} << share_of(key.remote.port);
    if (flow.cover != Cover::kLocal || (share & leaving) == 0 || local_of(key) != local) continue;
    auto rule = make({.key = key, .priority = kExact, .tag = tags_.exact()});
    if (!rule) {
      kept |= share;
      continue;
    }
    flow = {*rule, Cover::kOwnRule};
    --entry.covered;
  }
  return kept;
}

/// One rule for each share that is kept, instead of the one for all. False: no room, all stays as it was.
bool FlowTable::split(const FlowKey& local, Wide& entry, Shares kept) {
  entry.shares = std::make_unique<std::array<void*, kShareCount>>();
  bool made = true;
  for (unsigned i = 0; made && i < kShareCount; ++i)
    if (kept >> i & 1) made = make_share(local, entry, i);
  if (made) {
    destroy(entry.rule);
    return true;
  }
  for (void*& rule : *entry.shares) destroy(rule);
  entry.shares.reset();
  return false;
}

Shares FlowTable::hold(const FlowKey& local, Shares wanted) {
  const auto at = bound_.find(local);
  if (at == bound_.end()) return 0;
  Wide& entry = at->second;
  const Shares before = entry.held();
  if (before == wanted) return before;
  const Shares kept = wanted | uncover_shares(local, entry, before & ~wanted);
  if (!entry.shares && !split(local, entry, before & kept)) return before;
  for (unsigned i = 0; i < kShareCount; ++i) {
    void*& rule = (*entry.shares)[i];
    if ((kept >> i & 1) == 0)
      destroy(rule);
    else if (rule == nullptr && (wanted >> i & 1) != 0)
      (void)make_share(local, entry, i);  // refused: the kernel accepts what comes there
  }
  const Shares now = entry.held();
  shares_taken_ += static_cast<uint64_t>(std::popcount(now & ~before));
  shares_given_ += static_cast<uint64_t>(std::popcount(before & ~now));
  if (!entry.open && entry.covered == 0) uncovered_.push_back(local);  // the caller is in its group
  return now;
}

void FlowTable::drop_uncovered() {
  for (const FlowKey& local : std::exchange(uncovered_, {}))
    if (const auto at = bound_.find(local); at != bound_.end()) drop_if_unused(bound_, at);
}

void FlowTable::serve() {
  if (!sharing_) return;
  sharing_->serve();
  drop_uncovered();
}

bool FlowTable::is_ours(const Packet& frame, uint32_t tag) {
  if (tag == tags_.exact() && !is_tagged(frame)) return !is_v4_fragment(frame);
  const auto summary = summarize(frame);
  if (!summary) return true;  // malformed: the stack counts it
  const FlowKey& key = summary->key;
  if (key.local.port == 0) return false;
  const auto bound = bound_.find(local_of(key));
  const bool open = bound != bound_.end() && bound->second.open;
  if (key.protocol == Protocol::kUdp) return open || connected_.contains(key);
  if (connected_.contains(key)) return true;
  if (!open) return false;
  Wide& listener = bound->second;
  if (summary->opening || (summary->acknowledges && listener.takes_acks))
    return !listener.kernel_connected || !kernel_has_ || !kernel_has_(key.local, key.remote);
  listener.kernel_connected |= summary->acknowledges;
  return false;
}

}  // namespace accel::mlx5
