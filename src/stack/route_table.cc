#include "stack/route_table.h"

#include <algorithm>
#include <tuple>

namespace accel {
namespace {

constexpr uint8_t kV4Bits = 96;  ///< prefix lengths of IPv4 begin here, since addresses are mapped ones

bool is_own(const RouteEntry& r) { return r.kind == RouteKind::kLocal || r.kind == RouteKind::kBroadcast; }

IpAddress masked(IpAddress address, uint8_t bits) {
  for (unsigned i = 0; i < 16; ++i) {
    const unsigned before = i * 8;
    if (bits <= before)
      address.bytes[i] = 0;
    else if (bits < before + 8)
      address.bytes[i] = static_cast<uint8_t>(address.bytes[i] & 0xff << (before + 8 - bits));
  }
  return address;
}

}  // namespace

void RouteTable::set(std::vector<RouteEntry> rows, bool ask) {
  ask_ = ask;
  learned_.clear();
  if (ask) std::erase_if(rows, [](const RouteEntry& r) { return !is_own(r); });
  for (RouteEntry& r : rows) r.prefix = masked(r.prefix, r.prefix_length);
  auto key = [](const RouteEntry& r) { return std::tuple(!is_own(r), 128 - r.prefix_length, r.prefix); };
  std::stable_sort(rows.begin(), rows.end(),
                   [&](const RouteEntry& a, const RouteEntry& b) { return key(a) < key(b); });
  rows_ = std::move(rows);
  levels_.clear();
  for (size_t i = 0; i < rows_.size(); ++i) {
    const RouteEntry& r = rows_[i];
    if (levels_.empty() || levels_.back().prefix_length != r.prefix_length || levels_.back().own != is_own(r))
      levels_.push_back({i, i, r.prefix_length, is_own(r)});
    levels_.back().last = i + 1;
  }
}

std::span<const RouteEntry> RouteTable::find_in(const Level& level, const IpAddress& address) const {
  const IpAddress wanted = masked(address, level.prefix_length);
  const auto begin = rows_.begin() + static_cast<ptrdiff_t>(level.first),
             end = rows_.begin() + static_cast<ptrdiff_t>(level.last);
  const auto first = std::lower_bound(begin, end, wanted,
                                      [](const RouteEntry& r, const IpAddress& a) { return r.prefix < a; });
  auto last = first;
  while (last != end && last->prefix == wanted) ++last;
  return {first, last};
}

std::span<const RouteEntry> RouteTable::find(const IpAddress& remote, const IpAddress& local) const {
  const bool v4 = remote.is_v4();
  for (const Level& level : levels_) {
    if (v4 && level.prefix_length < kV4Bits)
      continue;  // IPv6's default route covers mapped addresses as well
    if (auto found = find_in(level, remote); !found.empty()) return found;
  }
  if (!ask_) return {};
  auto known = learned_.find({remote, local});
  if (known == learned_.end()) return {};
  return {&known->second, 1};
}

bool RouteTable::is_question(const IpAddress& remote, const IpAddress& local) const {
  return ask_ && find(remote, local).empty();
}

void RouteTable::learn(const IpAddress& remote, const IpAddress& local, const RouteEntry& answer) {
  if (learned_.size() >= kMostLearned) learned_.clear();
  learned_[{remote, local}] = answer;
}

}  // namespace accel
