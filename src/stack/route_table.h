// The kernel's routing as far as packets without a connection need it: which way an answer leaves, and
// whether a source address is one that may come in by an interface.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "stack/types.h"

namespace accel {

class RouteTable {
 public:
  explicit RouteTable(uint64_t secret) : learned_(16, PairHash{secret}) {}

  /// Replaces the rows; what learn() told is forgotten. `ask`: policy routing, so rows other than local and
  /// broadcast ones do not count and each pair of addresses is a question to the kernel.
  void set(std::vector<RouteEntry> rows, bool ask);

  /// The rows of the longest prefix, several where the route has several next hops; the kernel's local table
  /// comes before the others. Empty: no route, or not known (is_question()). Valid until the next set() or
  /// learn(). O(log rows) for each prefix length in use.
  std::span<const RouteEntry> find(const IpAddress& remote, const IpAddress& local) const;
  bool is_question(const IpAddress& remote, const IpAddress& local) const;
  bool asks() const { return ask_; }
  /// The kernel's answer for what leaves from `local` to `remote`.
  void learn(const IpAddress& remote, const IpAddress& local, const RouteEntry& answer);

  static constexpr size_t kMostLearned = 4096;  ///< peers choose the pairs; beyond it all are forgotten

 private:
  struct Level {
    size_t first, last;  ///< rows_[first, last)
    uint8_t prefix_length;
    bool own;  ///< of the kernel's local table
  };
  using Pair = std::pair<IpAddress, IpAddress>;
  struct PairHash {
    uint64_t secret;
    size_t operator()(const Pair& p) const {
      return static_cast<size_t>(hash_tuple({p.first, 0}, {p.second, 0}, secret));
    }
  };
  std::span<const RouteEntry> find_in(const Level& level, const IpAddress& address) const;

  std::vector<RouteEntry> rows_;  ///< by level, then by prefix
  std::vector<Level> levels_;     ///< in the order of the search
  std::unordered_map<Pair, RouteEntry, PairHash> learned_;
  bool ask_ = false;
};

}  // namespace accel
