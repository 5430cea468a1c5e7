// IDs of IPv4 datagrams that may be cut into fragments (RFC 6864 section 4.3).
#pragma once

#include <array>
#include <cstdint>

#include "base/instant.h"
#include "base/ip.h"

namespace accel {

/// As the kernel's ip_idents_reserve() (net/ipv4/route.c): pairs of addresses share counters by a keyed hash,
/// so that a pair's numbers come again as late as can be. A counter runs ahead by chance while it rests, so
/// that a peer cannot count what is sent to others. The key decides what chance is.
class IpIds {
 public:
  explicit IpIds(uint64_t key) : key_(key) {
    for (uint32_t i = 0; i < kCounters; ++i) counters_[i].next = static_cast<uint32_t>(by_chance(i));
  }
  /// The first of `count` numbers in a row.
  uint16_t reserve(const IpAddress& from, const IpAddress& to, Protocol protocol, uint32_t count,
                   Instant now) {
    const uint64_t hash = hash_tuple({from, 0}, {to, static_cast<uint16_t>(protocol)}, key_);
    Counter& c = counters_[hash % kCounters];
    const auto tick = static_cast<uint32_t>(now.time_since_epoch() / kTick);
    if (const uint32_t rested = tick - c.tick; rested != 0) {
      c.next += static_cast<uint32_t>(by_chance(hash ^ tick) % rested);
      c.tick = tick;
    }
    const uint32_t first = c.next;
    c.next += count;
    return static_cast<uint16_t>(first);
  }
  /// Where the numbers of a connected socket begin, which have a counter of their own (inet_id).
  uint16_t begin(const Endpoint& local, const Endpoint& remote, Instant now) const {
    return static_cast<uint16_t>(
        by_chance(hash_tuple(local, remote, key_) ^ static_cast<uint64_t>(now.time_since_epoch().count())));
  }

 private:
  struct Counter {
    uint32_t next = 0;
    uint32_t tick = 0;  ///< when a number was last taken
  };
  static constexpr uint32_t kCounters = 2048;  ///< the kernel's least
  static constexpr Duration kTick = 4ms;       ///< its jiffy
  uint64_t by_chance(uint64_t of) const {
    return hash_tuple({}, {}, key_ ^ of * 0x9e3779b97f4a7c15ULL) >> 16;
  }

  uint64_t key_;
  std::array<Counter, kCounters> counters_{};
};

}  // namespace accel
