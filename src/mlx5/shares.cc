#include "mlx5/shares.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace accel::mlx5 {
namespace {

/// The `n` lowest of a set.
Shares first_of(Shares set, unsigned n) {
  Shares taken = 0;
  for (; n > 0 && set != 0; --n) {
    taken |= set & -set;
    set &= set - 1;
  }
  return taken;
}

unsigned count(Shares set) { return static_cast<unsigned>(std::popcount(set)); }

}  // namespace

std::vector<Shares> divide(std::span<const ShareHolder> group) {
  std::vector<Shares> wanted(group.size());
  std::vector<size_t> keepers;
  Shares free = kAllShares;
  for (size_t i = 0; i < group.size(); ++i) {
    wanted[i] = group[i].held;
    free &= ~group[i].held;
    if (group[i].keeps) keepers.push_back(i);
  }
  if (keepers.empty()) return wanted;
  for (size_t i = 0; i < group.size(); ++i)
    if (!group[i].keeps) wanted[i] = 0;
  // Who has most keeps the odd ones: the fewest moves.
  std::stable_sort(keepers.begin(), keepers.end(),
                   [&](size_t a, size_t b) { return count(group[a].held) > count(group[b].held); });
  const auto n = static_cast<unsigned>(keepers.size());
  for (unsigned k = 0; k < n; ++k) {
    const size_t i = keepers[k];
    const unsigned due = kShareCount / n + (k < kShareCount % n ? 1 : 0);
    wanted[i] = first_of(group[i].held, due);
    if (!group[i].takes) continue;
    const Shares more = first_of(free, due - count(wanted[i]));
    wanted[i] |= more;
    free &= ~more;
  }
  return wanted;
}

}  // namespace accel::mlx5
